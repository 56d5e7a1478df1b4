"""HTTP ports and query processes prove whose they are: the cluster's secret alone opens nothing.

The way of each login is the real one: SCRAM's messages, the node's key, the cluster's metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import msgspec
import pytest

from chronik.client.login import Login
from chronik.links.handshake import NodeKey
from chronik.metadata import commands as c
from chronik.metadata.levels import LEVEL_CLIENT_WARRANT, LEVEL_FIRST
from chronik.metadata.state import ClusterState
from chronik.security.exchange import Authenticated, AuthenticationFailed
from chronik.security.scram import ITERATIONS_MIN, MECHANISMS, ScramClient, ScramServer, make_credential
from chronik.security.warrants import ClientKey, Warrant, is_signed_by, issue, read_warrant
from chronik.server.own_clients import HTTP_USER, QUERY_USER, OwnClients, own_password
from tests.unit.server.harness import Harness

KEYS = {7: NodeKey(b"7" * 32), 8: NodeKey(b"8" * 32)}
SCRAM = MECHANISMS["SCRAM-SHA-256"]
SECRETS = ("the secret", "another that is believed")


class Place:
    """The metadata of a cluster of nodes 7 and 8, and what each node makes of it."""

    def __init__(self, level: int = LEVEL_CLIENT_WARRANT) -> None:
        self._harness = Harness(brokers=1)
        self._starts = 0
        for node_id in KEYS:
            self.register(node_id)
        if level > LEVEL_FIRST:
            self._harness.submit(c.SetLevel(level=level))

    @property
    def state(self) -> ClusterState:
        return self._harness.store.state

    def register(self, node_id: int) -> None:
        self._starts += 1
        self._harness.submit(
            c.RegisterBroker(
                broker_id=node_id,
                incarnation=UUID(int=self._starts),
                endpoints={"kafka": c.Endpoint(host="h", port=1)},
                public_key=KEYS[node_id].public,
            )
        )

    def finalize(self) -> None:
        self._harness.submit(c.SetLevel(level=LEVEL_CLIENT_WARRANT))

    def remove(self, node_id: int) -> None:
        self._harness.submit(c.RemoveNode(broker_id=node_id, force=True))

    def node(self, node_id: int) -> OwnClients:
        return OwnClients(node_id, lambda: self.state, SECRETS, KEYS[node_id].sign)

    def query(self, node_id: int = 7) -> Login:
        given = self.node(node_id).query_credentials(None)
        return Login(
            mechanism=given.mechanism,
            user=given.user,
            password=given.password,
            sign=ClientKey(given.seed).sign,
            warrant=given.warrant,
        )

    def http(self, node_id: int = 7) -> Login:
        login = self.node(node_id).http_login()
        assert login is not None
        return login


def principal(at: OwnClients, login: Login) -> str:
    """Who the node takes this login for; AuthenticationFailed if for nobody."""
    return taken_for(at, login).principal


def taken_for(at: OwnClients, login: Login) -> Authenticated:
    salt = b"0" * 16
    found = [make_credential(SCRAM, one, salt, ITERATIONS_MIN) for one in at.passwords(login.user)]
    server = ScramServer(SCRAM, "of-the-server")
    client = ScramClient(
        SCRAM, login.user, login.password, "of-the-client", sign=login.sign, warrant=login.warrant
    )
    server.first(client.first())
    client.check(server.final(client.final(server.challenge(*found))))
    return at.who(login.user, server)


def test_each_is_known_as_the_client_of_its_node_on_all_nodes() -> None:
    place = Place()
    for at in (7, 8):
        assert principal(place.node(at), place.query(7)) == "Query:7"
        assert principal(place.node(at), place.http(8)) == "Http:8"


@pytest.mark.parametrize("user", [QUERY_USER, HTTP_USER])
def test_who_has_the_secret_and_no_warrant_is_nobody(user: str) -> None:
    stranger = Login(mechanism="CHRONIK-NODE", user=user, password=own_password(SECRETS[0], user))
    with pytest.raises(AuthenticationFailed, match="no warrant"):
        principal(Place().node(7), stranger)


def forged(node_id: int, user: str, epoch: int, sign: Callable[[bytes], bytes]) -> Login:
    """Of somebody who has the cluster's secret, and a key of his own."""
    key = ClientKey(b"s" * 32)
    warrant = issue(node_id, user, epoch, key.public, sign)
    password = own_password(SECRETS[0], user)
    return Login(mechanism="CHRONIK-NODE", user=user, password=password, sign=key.sign, warrant=warrant)


def test_nobody_but_a_registered_node_can_issue_one() -> None:
    place = Place()
    epoch = place.state.brokers[7].epoch
    assert principal(place.node(8), forged(7, QUERY_USER, epoch, KEYS[7].sign)) == "Query:7"
    own = ClientKey(b"s" * 32)
    for node_id, sign in ((7, KEYS[8].sign), (7, own.sign), (9, KEYS[8].sign), (0, KEYS[7].sign)):
        with pytest.raises(AuthenticationFailed):
            principal(place.node(8), forged(node_id, QUERY_USER, epoch, sign))


def test_a_warrant_is_for_one_kind_of_client() -> None:
    place = Place()
    epoch = place.state.brokers[7].epoch
    login = forged(7, QUERY_USER, epoch, KEYS[7].sign)
    as_http = replace(login, user=HTTP_USER, password=own_password(SECRETS[0], HTTP_USER))
    with pytest.raises(AuthenticationFailed):
        principal(place.node(7), as_http)


def test_a_warrant_that_was_seen_serves_nobody_without_its_key() -> None:
    place = Place()
    seen = place.query()
    for sign in (None, ClientKey(b"s" * 32).sign, KEYS[8].sign):
        with pytest.raises(AuthenticationFailed, match="another client"):
            principal(place.node(8), replace(seen, sign=sign))


def test_a_recorded_login_is_good_for_one_exchange() -> None:
    place, recorded = Place(), []
    login = place.query()
    assert login.sign is not None
    signature = login.sign(b"another exchange")
    recorded.append(signature)
    with pytest.raises(AuthenticationFailed):
        principal(place.node(7), replace(login, sign=lambda _data: recorded[0]))


def test_what_leaked_is_void_after_the_next_start_of_its_node() -> None:
    place = Place()
    leaked, of_the_other = place.query(7), place.query(8)
    place.register(7)
    with pytest.raises(AuthenticationFailed, match="before node 7 last started"):
        principal(place.node(8), leaked)
    assert principal(place.node(8), place.query(7)) == "Query:7"
    assert principal(place.node(7), of_the_other) == "Query:8"


def test_a_broker_that_has_not_heard_of_the_start_yet_believes_it() -> None:
    """The metadata of one broker may be behind that of another for a moment."""
    behind = Place()
    ahead = Place()
    ahead.register(7)
    assert principal(behind.node(8), ahead.query(7)) == "Query:7"


def test_a_node_that_was_removed_has_no_clients() -> None:
    place = Place()
    login = place.http(7)
    place.remove(7)
    with pytest.raises(AuthenticationFailed):
        principal(place.node(8), login)


def test_the_release_before_logs_in_until_the_upgrade_is_final() -> None:
    place = Place(LEVEL_FIRST)
    old = Login(mechanism="CHRONIK-NODE", user=QUERY_USER, password=own_password(SECRETS[1], QUERY_USER))
    assert principal(place.node(7), old) == "Query:"
    assert principal(place.node(7), place.query()) == "Query:"
    assert place.node(7).http_login() is None, "older nodes do not know the user"


def test_a_connection_by_the_password_alone_ends_when_the_upgrade_is_final() -> None:
    place = Place(LEVEL_FIRST)
    old = Login(mechanism="CHRONIK-NODE", user=QUERY_USER, password=own_password(SECRETS[1], QUERY_USER))
    holds = taken_for(place.node(7), old).holds
    assert holds is not None
    assert holds()
    place.finalize()
    assert not holds()


def test_a_node_that_is_alone_draws_a_password_at_each_start() -> None:
    place = Place()
    alone, again = (OwnClients(7, lambda: place.state, SECRETS, None) for _ in range(2))
    given = alone.query_credentials(None)
    login = Login(mechanism=given.mechanism, user=given.user, password=given.password)
    assert principal(alone, login) == "Query:7"
    for password in (own_password(SECRETS[0], QUERY_USER), again.query_credentials(None).password):
        with pytest.raises(AuthenticationFailed):
            principal(alone, replace(login, password=password))


def test_each_process_has_a_key_of_its_own_that_no_text_shows() -> None:
    node = Place().node(7)
    first, second = node.query_credentials(None), node.query_credentials(None)
    assert first.seed != second.seed
    assert repr(first) == "Credentials(query)"
    assert "sign" not in repr(Place().http())


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", msgspec.msgpack.encode([1, "query", 1]), b"\x80", b"\0" * 9_999]
)
def test_what_is_no_warrant_is_a_failed_login(data: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        read_warrant(data)


def test_a_key_or_signature_of_the_wrong_length_fits_nothing() -> None:
    assert not is_signed_by(b"short", b"s", b"data")
    assert not Warrant(7, QUERY_USER, 1, b"short", b"short").is_issued_by(b"")
