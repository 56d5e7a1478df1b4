"""Somebody who guesses keeps others neither out nor waiting."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chronik.client.login import Login
from chronik.metadata.commands import SetQuota
from chronik.model import ErrorCode, RequestError
from chronik.security.quotas import BURST_SECONDS
from chronik.security.scram import password_fits
from chronik.server import hash_queue, login_failures, sasl
from chronik.server.hash_queue import HashQueue
from chronik.server.login_failures import (
    WAITING_PER_HOST_MAX,
    WAITING_PER_USER_MAX,
    Crowded,
    LoginFailures,
)
from chronik.wire.api import ApiKey
from chronik.wire.schema import decode_response, encode_request
from tests.unit.server.test_login import address, closed, opened

GUESSES = 60


async def plain(port: int, host: str, user: str, password: str) -> ErrorCode:
    """A new connection from this address that logs in by PLAIN."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
    message = f"\0{user}\0{password}".encode()
    try:
        for api, version, fields in (
            (ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}),
            (ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": message}),
        ):
            writer.write(encode_request(api, version, 1, "tester", fields))
            answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            code: ErrorCode = decode_response(api, version, answer, 0)[1].error_code
        return code
    finally:
        writer.close()


async def test_a_guesser_does_not_keep_a_login_from_elsewhere_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guesses come first, all at once. The login of another address has its turn after the one that is
    being hashed; and after a few failures, guesses are not hashed at all."""
    hashed: list[str] = []
    go_on = threading.Event()

    def slow(credential: object, password: str) -> bool:
        hashed.append(password)
        assert go_on.wait(30)
        return password_fits(credential, password)  # type: ignore[arg-type]

    monkeypatch.setattr(sasl, "password_fits", slow)
    for name in ("DELAY_SECONDS", "DELAY_SECONDS_MAX"):
        monkeypatch.setattr(login_failures, name, 1.0)
    async with closed(tmp_path) as node, asyncio.TaskGroup() as tasks:
        port = address(node).port
        guesses = [
            tasks.create_task(plain(port, "127.0.0.1", "alice", f"guess {number}"))
            for number in range(GUESSES)
        ]
        queue = node.node.parts.security.authenticator._hashing  # type: ignore[union-attr]
        async with asyncio.timeout(30):
            while queue._waiting < GUESSES - 1:  # noqa: ASYNC110 (the node has no event for it)
                await asyncio.sleep(0.01)
            login = tasks.create_task(plain(port, "127.0.0.2", "alice", "password of alice"))
            while queue._waiting < GUESSES:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        go_on.set()
        assert await login == ErrorCode.none
        assert hashed.index("password of alice") <= 2
        codes = set(await asyncio.gather(*guesses))
        assert codes == {ErrorCode.sasl_authentication_failed}
        assert len(hashed) < GUESSES, "an address that keeps failing is not even looked at"


async def test_an_address_that_keeps_failing_is_refused_before_its_password_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoginFailures, "is_crowded", lambda _, host: host == "127.0.0.1")
    async with closed(tmp_path) as node:
        port = address(node).port
        refused = await plain(port, "127.0.0.1", "alice", "password of alice")
        assert refused == ErrorCode.sasl_authentication_failed
        assert await plain(port, "127.0.0.2", "alice", "password of alice") == ErrorCode.none


async def test_addresses_take_turns_and_have_their_own_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_queue, "WAITING_PER_HOST_MAX", 3)
    monkeypatch.setattr(hash_queue, "WAITING_MAX", 5)
    served: list[str] = []
    queue = HashQueue(lambda *_: None)
    go_on = threading.Event()
    running = [asyncio.ensure_future(queue.run("a", go_on.wait, 30))]
    await asyncio.sleep(0)
    names = ["a1", "a2", "a3", "b1", "c1"]
    running += [asyncio.ensure_future(queue.run(name[0], served.append, name)) for name in names]
    await asyncio.sleep(0)
    for host in ("a", "d"):
        with pytest.raises(Crowded):
            await queue.run(host, served.append, "too much")
    running[2].cancel()
    go_on.set()
    await asyncio.gather(*running, return_exceptions=True)
    assert served == ["a1", "b1", "c1", "a3"]
    assert await queue.run("a", lambda: "there is room again") == "there is room again"


async def test_other_work_in_threads_keeps_no_login_waiting() -> None:
    loop, go_on = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(max_workers=1))
    busy = asyncio.ensure_future(asyncio.to_thread(go_on.wait, 30))
    queue = HashQueue(lambda *_: None)
    async with asyncio.timeout(20):
        assert await queue.run("a", lambda: "hashed") == "hashed"
    assert not busy.done()
    go_on.set()
    await busy
    queue.close()
    with pytest.raises(Crowded, match="stops"):
        await queue.run("a", lambda: "too late")


async def test_who_waits_for_ten_failures_may_not_try_again() -> None:
    failures = LoginFailures()
    waiting = [asyncio.ensure_future(failures.punish("a", "wrong")) for _ in range(WAITING_PER_HOST_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(Crowded):
        failures.require_room("a")
    failures.require_room("b")
    for one in waiting:
        one.cancel()


async def test_a_client_that_keeps_failing_does_not_keep_out_who_shares_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a NAT. A user who logged in from there lately is looked at, by PLAIN and SCRAM."""
    async with closed(tmp_path) as node:
        where, failures = address(node), node.node.parts.security.failures
        host = "127.0.0.1"
        assert await plain(where.port, host, "alice", "password of alice") == ErrorCode.none
        monkeypatch.setattr(LoginFailures, "is_crowded", lambda _, room: room == host)
        refused = await plain(where.port, host, "bob", "password of bob")
        assert refused == ErrorCode.sasl_authentication_failed
        assert await plain(where.port, host, "alice", "password of alice") == ErrorCode.none
        login = Login(mechanism="SCRAM-SHA-256", user="alice", password="password of alice")
        (await opened(where, login=login)).close()
        assert failures.has_room(host, "alice")
        assert not failures.has_room(host, "bob")


async def test_guesses_at_a_user_who_logged_in_lately_are_bounded_too() -> None:
    clock = Clock()
    failures = LoginFailures(now=clock)
    failures.forgive("a", "alice")
    waiting = [asyncio.ensure_future(failures.punish("a", "wrong")) for _ in range(WAITING_PER_HOST_MAX)]
    await asyncio.sleep(0)
    failures.require_room("a", "alice")
    for user, host in (("bob", "a"), (None, "a")):
        with pytest.raises(Crowded):
            failures.require_room(host, user)
    guesses = [
        asyncio.ensure_future(failures.punish("a", "wrong", user="alice"))
        for _ in range(WAITING_PER_USER_MAX)
    ]
    await asyncio.sleep(0)
    assert not failures.has_room("a", "alice")
    for one in guesses:
        one.cancel()
    await asyncio.gather(*guesses, return_exceptions=True)
    assert failures.has_room("a", "alice")
    clock.now += login_failures.LATELY_SECONDS
    assert not failures.has_room("a", "alice"), "that was long ago"
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert not failures._waiting


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long those who failed were let wait; nobody waits really."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(round(seconds, 3))

    monkeypatch.setattr(login_failures.asyncio, "sleep", sleep)
    return found


async def test_a_login_takes_back_its_own_users_failures_alone(delays: list[float]) -> None:
    """Somebody with an account guesses at another: his own logins do not make his guesses quick again."""
    failures = LoginFailures(now=Clock())
    for _ in range(4):
        await failures.punish("a", "wrong", user="alice")
        failures.forgive("a", "mallory")
        failures.forgive("b", "alice")
    assert delays == [0.1, 0.2, 0.4, 0.8]
    await failures.punish("a", "wrong", user="mallory")
    failures.forgive("a", "mallory")
    failures.forgive("a", "mallory")
    await failures.punish("a", "wrong", user="alice")
    assert delays[4:] == [1.6, 1.6]
    failures.forgive("a", "alice")
    await failures.punish("a", "wrong", user="alice")
    assert delays[6:] == [0.1], "they were slips"


async def test_an_address_is_forgiven_by_and_by(delays: list[float]) -> None:
    clock = Clock()
    failures = LoginFailures(now=clock)
    for _ in range(4):
        await failures.punish("a", "a token that is not valid")
    clock.now += 2 * login_failures.HALF_LIFE_SECONDS
    await failures.punish("a", "a token that is not valid")
    assert delays == [0.1, 0.2, 0.4, 0.8, 0.2]
    clock.now += 100 * login_failures.HALF_LIFE_SECONDS
    await failures.punish("a", "a token that is not valid")
    assert delays[5:] == [0.1]


async def test_what_is_remembered_of_failures_is_bounded(
    delays: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_failures, "FAILURES_KEPT", 10)
    monkeypatch.setattr(login_failures, "LATELY_KEPT", 10)
    failures = LoginFailures()
    for number in range(100):
        await failures.punish(f"host {number}", "wrong", user=f"{number}" + "u" * 10_000)
    assert (len(failures._rooms._counts), len(failures._users._counts)) == (10, 10)
    for number in range(100):
        failures.forgive(f"host {number}", "u" * 10_000)
    assert len(failures._lately) == 10
    assert max(len(str(key)) for key in failures._lately) < 200
    assert max(len(str(key)) for key in failures._users._counts) < 200


async def test_guesses_at_the_nodes_secret_have_a_room_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait like others, and keep out neither the nodes, which prove the secret, nor the users."""
    protocols = {"listener_security_protocol_map": "KAFKA:SASL_PLAINTEXT,CLIENTS:SASL_PLAINTEXT"}
    async with closed(tmp_path, cluster_secret="of the nodes", **protocols) as node:
        where, failures = address(node, "KAFKA"), node.node.parts.security.failures

        async def as_node(password: str) -> None:
            given = Login(mechanism="CHRONIK-NODE", user="1", password=password)
            (await opened(where, login=given)).close()

        await as_node("of the nodes")
        with pytest.raises(RequestError, match="invalid"):
            await as_node("guessed")
        crowded = "127.0.0.1 as a node"
        monkeypatch.setattr(LoginFailures, "is_crowded", lambda _, room: room == crowded)
        monkeypatch.setattr(sasl, "DELAY_SECONDS_MAX", 0.0)
        total, room = failures.total, dict(failures._rooms._counts)
        with pytest.raises(RequestError, match="too many failed logins"):
            await as_node("guessed")
        assert (failures.total, failures._rooms._counts) == (total + 1, room)
        await as_node("of the nodes")
        assert await plain(where.port, "127.0.0.1", "alice", "password of alice") == ErrorCode.none
        crowded = "127.0.0.1"
        await as_node("of the nodes")


async def test_an_address_may_connect_as_often_as_its_quota_says(tmp_path: Path) -> None:
    """Asked when a connection comes, before anything it says; other addresses have quotas of their own."""

    async def is_served(port: int, host: str) -> bool:
        try:
            return await plain(port, host, "alice", "password of alice") == ErrorCode.none
        except (asyncio.IncompleteReadError, ConnectionError):
            return False

    async with closed(tmp_path) as node:
        parts, port = node.node.parts, address(node).port
        quota = {"connection_creation_rate": 2.5 / BURST_SECONDS}
        await parts.metadata.submit(SetQuota(entity=(("ip", "127.0.0.1"),), values=quota))
        assert [await is_served(port, "127.0.0.1") for _ in range(4)] == [True, True, False, False]
        assert [await is_served(port, "127.0.0.2") for _ in range(4)] == [True] * 4
        assert parts.listener.stats.refused["per_ip_rate"] == 2
