"""What a stranger can see of a user that does not exist: nothing that a user could not have."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from chronik.metadata import commands as c
from chronik.security.scram import ITERATIONS_DEFAULT, MECHANISMS, SALT_BYTES, Credential, make_credential
from chronik.server import decoys as decoys_module
from chronik.server.decoys import Decoys
from tests.unit.server.live import Live
from tests.unit.server.test_login import closed
from tests.unit.server.test_login_exchange import Talk

SHA256, SHA512 = MECHANISMS["SCRAM-SHA-256"], MECHANISMS["SCRAM-SHA-512"]
NAMES = [f"nobody-{number}" for number in range(200)]


def credential(salt: bytes, iterations: int, mechanism: str = "SCRAM-SHA-256") -> Credential:
    return Credential(mechanism=mechanism, salt=salt, iterations=iterations, stored_key=b"", server_key=b"")


def users(*given: Credential, each: int = 1) -> dict[str, dict[str, Credential]]:
    return {
        f"{number}-{one}": {found.mechanism: found}
        for number, found in enumerate(given)
        for one in range(each)
    }


def test_it_looks_like_a_user_that_was_made_here() -> None:
    decoys = Decoys(b"key", dict)
    found = decoys.scram(SHA256, "nobody")
    assert (len(found.salt), found.iterations) == (SALT_BYTES, ITERATIONS_DEFAULT)
    assert found.salt != decoys.scram(SHA512, "nobody").salt != decoys.scram(SHA512, "somebody").salt


def test_it_looks_like_the_users_that_there_are() -> None:
    """Those of Apache Kafka's tools have 4,096 iterations and a salt of letters and digits."""
    made_here, by_kafka = credential(b"\xff" * 32, 8192), credential(b"1a2b3c4d5e6f7g8h9i0j1k2l3m", 4096)
    decoys = Decoys(b"key", lambda: users(made_here, by_kafka, by_kafka, by_kafka, each=10))
    seen = Counter[Any]()
    for name in NAMES:
        found = decoys.scram(SHA256, name)
        seen[len(found.salt), found.iterations, found.salt.isalnum()] += 1
        assert decoys.plain(name).iterations in (4096, 8192)
    assert set(seen) == {(32, 8192, False), (26, 4096, True)}
    assert 0.5 < seen[26, 4096, True] / len(NAMES) < 0.95


def test_few_change_when_users_come() -> None:
    given = users(credential(b"x" * 32, 8192), credential(b"y" * 26, 4096), each=20)
    decoys = Decoys(b"key", lambda: given)
    before = [decoys.scram(SHA256, name) for name in NAMES]
    given |= {"new": {"SCRAM-SHA-256": credential(b"z" * 26, 4096)}}
    decoys.changed()
    changed = sum(decoys.scram(SHA256, name) != one for name, one in zip(NAMES, before, strict=True))
    assert changed < len(NAMES) / 10


def test_they_are_the_same_in_whatever_order_the_users_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that began with a snapshot has the users, and each one's mechanisms, in another order."""
    monkeypatch.setattr(decoys_module, "USERS_LOOKED_AT", 3)
    iterations = {"SCRAM-SHA-256": 5000, "SCRAM-SHA-512": 6000}
    both = {name: credential(b"x" * 32, number, name) for name, number in iterations.items()}
    given = {str(number): both for number in range(3)}
    given |= {str(number): {"SCRAM-SHA-256": credential(b"y" * 26, 4096)} for number in range(3, 6)}
    other = {name: dict(reversed(each.items())) for name, each in reversed(given.items())}
    one, two = (Decoys(b"key", lambda users=users: users) for users in (given, other))
    for name in NAMES:
        assert one.plain(name) == two.plain(name)
        assert one.scram(SHA256, name) == two.scram(SHA256, name)
    assert one.plain("nobody").iterations == 5000


def test_many_users_are_looked_at_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoys_module, "USERS_LOOKED_AT", 10)
    now = [100.0]
    given = users(credential(b"x" * 32, 8192), each=11)
    decoys = Decoys(b"key", lambda: given, now=lambda: now[0])
    assert decoys.plain("nobody").iterations == 8192
    given = users(credential(b"x" * 32, 4096), each=11)
    decoys.changed()
    assert decoys.plain("nobody").iterations == 8192
    now[0] += decoys_module.LOOK_SECONDS
    assert decoys.plain("nobody").iterations == 4096


def test_a_password_takes_as_long_to_check_as_a_users() -> None:
    decoys = Decoys(b"key", lambda: users(credential(b"x" * 32, 16384, "SCRAM-SHA-512")))
    assert (decoys.plain("nobody").mechanism, decoys.plain("nobody").iterations) == ("SCRAM-SHA-512", 16384)


async def challenge(node: Live, user: str) -> tuple[str, str]:
    """Salt and iterations that a login as this user is asked with."""
    talk = await Talk.with_node(node)
    await talk.handshake("SCRAM-SHA-256")
    answer = (await talk.authenticate(f"n,,n={user},r=abc".encode())).auth_bytes.decode()
    talk.writer.close()
    fields = dict(field.partition("=")[::2] for field in answer.split(","))
    return fields["s"], fields["i"]


@pytest.mark.parametrize("settings", [{}, {"cluster_secret": "of the nodes"}])
async def test_the_same_after_a_restart(tmp_path: Path, settings: dict[str, Any]) -> None:
    async with closed(tmp_path, **settings) as node:
        before = await challenge(node, "nobody")
    async with closed(tmp_path, **settings) as node:
        assert await challenge(node, "nobody") == before
        assert await challenge(node, "somebody") != before


async def test_the_same_on_every_node_with_the_secret(tmp_path: Path) -> None:
    seen = []
    for name, secret in (("a", "shared"), ("b", "shared"), ("c", "another")):
        async with closed(tmp_path / name, cluster_secret=secret) as node:
            seen.append(await challenge(node, "nobody"))
    assert seen[0] == seen[1] != seen[2]


async def test_a_node_learns_how_its_users_look(tmp_path: Path) -> None:
    async with closed(tmp_path) as node:  # its users have salts of four bytes
        salt, iterations = await challenge(node, "nobody")
        assert (len(base64.b64decode(salt)), iterations) == (4, "4096")
        metadata = node.node.parts.metadata
        for user in ("admin", "alice"):
            new = await asyncio.to_thread(make_credential, SHA256, "new", b"\xff" * 32, 5000)
            await metadata.submit(c.PutCredential(user=user, credential=new))
        salt, iterations = await challenge(node, "nobody")
        assert (len(base64.b64decode(salt)), iterations) == (32, "5000")
