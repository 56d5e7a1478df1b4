"""What fails again and again, at a client's or a disk's pace, is logged once a minute and not each time."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chronik.client.apis import PRODUCE
from chronik.cluster import raft_driver
from chronik.cluster.controller import Controller
from chronik.cluster.raft_driver import RaftDriver
from chronik.config import Settings
from chronik.coordinators.journal import AppendResult, Journal
from chronik.groups.matching import TopicMatching
from chronik.groups.patterns import PatternWork
from chronik.links.handshake import LinkIdentity, NodeKey
from chronik.links.link import Link
from chronik.log_lines import RepeatingLine
from chronik.model import ErrorCode, Limits, RequestError, StorageError, TopicPartition, Unavailable
from chronik.replication.isr import MetadataIsrProposals
from chronik.replication.repair import Repairs
from chronik.security.exchange import AuthenticationFailed
from chronik.server import auto_create_topics, jwks
from chronik.server.jwks import KeySource
from chronik.server.listener import KafkaListener
from chronik.wire.api import ApiKey
from chronik.wire.schema import encode_request
from tests.unit.server.harness import Harness
from tests.unit.server.live import live
from tests.unit.server.test_produce_order import codes, connect, request

TP = TopicPartition("orders", 0)


@pytest.fixture(autouse=True)
def nothing_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Other tests of this process may have logged the same line."""
    caplog.set_level(logging.INFO)
    for name, module in list(sys.modules.items()):
        if name.startswith("chronik."):
            for value in vars(module).values():
                if isinstance(value, RepeatingLine):
                    value._logged.clear()


def told(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [found for record in caplog.records if text in (found := record.getMessage())]


async def test_a_topic_that_cannot_be_created(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> None:
        raise Unavailable("no controller")

    monkeypatch.setattr(auto_create_topics, "ensure_topic", refuse)
    async with live(tmp_path) as node:
        connection = await connect(node)
        producer = {"producer_id": -1, "producer_epoch": -1}
        for _ in range(5):
            answer = await connection.request(PRODUCE, request("new", {0: -1}, producer, None))
            assert codes([answer]) == [ErrorCode.unknown_topic_or_partition]
        connection.close()
    assert len(told(caplog, "topic new could not be created on first use")) == 1


def test_clients_that_send_nonsense(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(send_nonsense(Harness()))
    assert len(told(caplog, "closing the connection of 127.0.0.1")) == 1


async def send_nonsense(harness: Harness) -> None:
    listener = KafkaListener(dispatcher=harness.dispatcher, limits=Limits(), pressures=())
    port = await listener.bind("127.0.0.1", 0)
    await listener.serve()
    for _ in range(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
    # A request with a version that nobody knows is refused where it is read.
    for _ in range(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        frame = bytearray(encode_request(ApiKey.HEARTBEAT, 4, 1, "test", {"group_id": "g"}))
        frame[6:8] = b"\x7f\xff"
        writer.write(frame)
        assert await reader.read() == b""
        writer.close()
    await listener.stop()


class Wire:
    """The transport of a link that somebody at `host` opened."""

    def __init__(self, host: str) -> None:
        self._host = host

    def get_extra_info(self, name: str) -> Any:
        return (self._host, 4_711) if name == "peername" else None

    def set_write_buffer_limits(self, *, high: int) -> None: ...

    def abort(self) -> None: ...

    def is_closing(self) -> bool:
        return False


async def test_strangers_at_the_port_for_nodes(caplog: pytest.LogCaptureFixture) -> None:
    identity = LinkIdentity(1, (b"secret",), lambda size: bytes(size), NodeKey(bytes(32)))
    for host in ("10.0.0.9",) * 5 + ("10.0.0.8",):
        link = Link(identity, lambda _purpose: None, 1_000_000)
        link.connection_made(cast("asyncio.Transport", Wire(host)))
        nonsense = b"GET / HTTP/1.1\r\n\r\n"
        link.get_buffer(len(nonsense))[: len(nonsense)] = nonsense
        link.buffer_updated(len(nonsense))
        link.connection_lost(None)
    lines = told(caplog, "closing a new link")
    assert [line.partition(":")[0] for line in lines] == [
        "closing a new link of 10.0.0.9",
        "closing a new link of 10.0.0.8",
    ]


class Refusing:
    """Metadata that cannot be changed."""

    def __init__(self) -> None:
        current = SimpleNamespace(leader=1, leader_epoch=5, partition_epoch=1, isr=(1, 2))
        self.state = SimpleNamespace(
            partition=lambda _tp: current, topics={"orders": object()}, is_alive=lambda _id: True
        )

    async def submit(self, *_: Any, **__: Any) -> None:
        raise Unavailable("no controller")


def replica(**fields: Any) -> Any:
    known = {"tp": TP, "topic_id": None, "leader_epoch": 5, "is_leader": True, "node_id": 2}
    return SimpleNamespace(**{**known, **fields})


async def test_changes_of_the_isr_that_nobody_decides(caplog: pytest.LogCaptureFixture) -> None:
    proposals = MetadataIsrProposals(cast("Any", Refusing()))
    for _ in range(5):
        assert await proposals._change(replica(), (1,)) is None
    assert len(told(caplog, "orders-0: the ISR stays as it is")) == 1


async def test_a_damaged_replica_that_still_leads(caplog: pytest.LogCaptureFixture) -> None:
    repairs = Repairs(cast("Any", Refusing()))
    for _ in range(5):
        assert await repairs._step_back(replica())
    assert len(told(caplog, "orders-0: this damaged replica still leads or is in the ISR")) == 1


async def until_cancelled(work: Coroutine[Any, Any, None]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await work


async def test_a_controller_that_cannot_work(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = 0

    async def look() -> None:
        nonlocal times
        times += 1
        if times > 5:
            raise asyncio.CancelledError
        raise Unavailable("nobody answers")

    monkeypatch.setattr("chronik.cluster.controller.CHECK_SECONDS", 0)
    core = SimpleNamespace(term=1)
    driver = SimpleNamespace(is_leader=True, applied_term=1, core=core)
    controller = Controller(
        node_id=1,
        driver=cast("Any", driver),
        transport=cast("Any", None),
        presence=cast("Any", None),
        metadata=cast("Any", None),
        voters=3,
        voter_replace_seconds=1,
        now_ms=lambda: 1,
    )
    monkeypatch.setattr(controller, "_look", look)
    monkeypatch.setattr(controller, "_misses_somebody", lambda: False)
    await until_cancelled(controller._run())
    assert told(caplog, "controller: ") == ["controller: nobody answers"]


async def test_a_metadata_log_that_stays_unreadable(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = 0

    async def build() -> None:
        nonlocal times
        times += 1
        if times > 5:
            raise asyncio.CancelledError
        raise OSError("the disk is gone")

    monkeypatch.setattr(raft_driver, "RELOAD_SECONDS", 0)
    driver = RaftDriver.__new__(RaftDriver)
    driver._timer, driver._core = None, None
    monkeypatch.setattr(driver, "_build", build)
    await until_cancelled(driver._reload())
    assert len(told(caplog, "the metadata log cannot be read back")) == 1


def test_a_coordinators_log_that_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_batch: bytes, _now_ms: int) -> None:
        raise StorageError("no space left")

    journal = Journal(cast("Any", replica(append_internal=fail)), lambda: 1)
    results: list[AppendResult] = []
    for _ in range(5):
        assert journal.append([(b"key", b"value")], results.append) == -1
    assert [result.error for result in results] == [ErrorCode.coordinator_not_available] * 5
    assert len(told(caplog, "orders-0 cannot be appended to")) == 1


async def test_keys_that_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks, "AGE_SECONDS_MAX", 0.0)
    source = KeySource(Settings(sasl_oauthbearer_jwks=str(tmp_path / "missing.json")))
    for _ in range(5):
        with pytest.raises(AuthenticationFailed):
            await source.check("a token", 1.0)
    assert len(told(caplog, "the keys for OAuth tokens cannot be read")) == 1


async def test_a_pattern_that_has_become_too_expensive(caplog: pytest.LogCaptureFixture) -> None:
    matching = TopicMatching(cast("Any", dict))
    work = PatternWork(regex="(", topics={"orders": None}, fresh=frozenset({"orders"}), kept=frozenset())
    for _ in range(5):
        assert await matching._compute(work, is_new=False) == frozenset()
    with pytest.raises(RequestError):
        await matching._compute(work, is_new=True)
    assert len(told(caplog, "a pattern of a consumer group matches nothing")) == 1
