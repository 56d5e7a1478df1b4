"""A node that logs in proves the key that it registered with, as soon as all nodes know how to."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from chronik.links.handshake import NodeKey
from chronik.metadata import commands as c
from chronik.metadata.levels import LEVEL_FIRST, LEVEL_LAST, LEVEL_NODE_KEY
from chronik.node import Node
from chronik.security.exchange import AuthenticationFailed
from chronik.security.scram import ITERATIONS_MIN, MECHANISMS, ScramClient, ScramServer, Sign, make_credential
from chronik.server.decoys import Decoys
from chronik.server.login_failures import LoginFailures
from chronik.server.own_clients import OwnClients
from chronik.server.sasl import Authenticator
from tests.unit.admin.support import Http, with_node
from tests.unit.server.harness import Harness

KEY, OTHER = NodeKey(b"1" * 32), NodeKey(b"2" * 32)
SCRAM = MECHANISMS["SCRAM-SHA-256"]
CREDENTIAL = make_credential(SCRAM, "the secret", b"0" * 16, ITERATIONS_MIN)


def exchanged(user: str, sign: Sign | None) -> ScramServer:
    """The server's side of a login by the right secret."""
    server = ScramServer(SCRAM, "of-the-server")
    client = ScramClient(SCRAM, user, "the secret", "of-the-client", sign=sign)
    server.first(client.first())
    client.check(server.final(client.final(server.challenge(CREDENTIAL))))
    return server


def authenticator(level: int) -> Authenticator:
    harness = Harness(brokers=1)
    registered = c.RegisterBroker(
        broker_id=7,
        incarnation=UUID(int=7),
        endpoints={"kafka": c.Endpoint(host="h", port=1)},
        public_key=KEY.public,
    )
    harness.submit(registered)
    if level > LEVEL_FIRST:
        harness.submit(c.SetLevel(level=level))
    return Authenticator(
        harness.services.settings,
        harness.store,
        None,
        now_ms=lambda: 0,
        node_secrets=("the secret",),
        own_clients=OwnClients(1, lambda: harness.store.state, ("the secret",), None),
        failures=LoginFailures(lambda _host, _why: None),
        decoys=Decoys(b"key", dict),
    )


@pytest.mark.parametrize("sign", [None, OTHER.sign], ids=["without a key", "by another key"])
def test_the_secret_alone_is_not_enough(sign: Sign | None) -> None:
    found = authenticator(LEVEL_NODE_KEY)
    assert found.own_client("7", exchanged("7", KEY.sign)).principal == "Node:7"
    with pytest.raises(AuthenticationFailed, match="not the key of node 7"):
        found.own_client("7", exchanged("7", sign))
    assert found.own_client("1", exchanged("1", sign)).principal == "Node:1", "it registered without a key"


def test_nodes_of_the_release_before_log_in_until_the_upgrade_is_final() -> None:
    """They have keys, and do not prove them here."""
    place = authenticator(LEVEL_FIRST)
    old, new = (place.own_client("7", exchanged("7", sign)) for sign in (None, KEY.sign))
    assert old.principal == new.principal == "Node:7"
    assert old.holds is not None
    assert new.holds is not None
    assert (old.holds(), new.holds()) == (True, True)
    place._metadata.state.level = LEVEL_NODE_KEY
    assert (old.holds(), new.holds()) == (False, True), "a connection by the secret alone ends with it"


def test_a_signature_is_good_for_one_exchange() -> None:
    """A recorded one has another server's nonce in it."""
    recorded: list[bytes] = []

    def record(data: bytes) -> bytes:
        recorded.append(KEY.sign(data))
        return recorded[-1]

    exchanged("7", record)
    server = ScramServer(SCRAM, "another")
    client = ScramClient(SCRAM, "7", "the secret", "of-the-client", sign=lambda _data: recorded[0])
    server.first(client.first())
    server.final(client.final(server.challenge(CREDENTIAL)))
    with pytest.raises(AuthenticationFailed):
        authenticator(LEVEL_NODE_KEY).own_client("7", server)


def test_connections_are_looked_at_again_when_an_upgrade_is_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(node: Node, _http: Http) -> None:
        looked = asyncio.Event()
        monkeypatch.setattr(node.parts.listener, "end_sessions", looked.set)
        await node.parts.metadata.submit(c.SetLevel(level=LEVEL_LAST))
        async with asyncio.timeout(20):
            await looked.wait()

    with_node(tmp_path, work)
