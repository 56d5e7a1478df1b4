"""One record's way, told by a node: which batch, where it lies, how its transaction ended (O03)."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from chronik.admin.explaining import RecordQuestion, look_into_archive
from chronik.cli.explain import _has_it, _when, facts
from chronik.client import Admin, ClientOptions, Cluster, Producer, Transaction
from chronik.client.admin import NewTopic
from chronik.model import TopicPartition
from chronik.node import Node
from chronik.published.steps import PublishedStep, step_path
from chronik.records.batch import read_header
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.storage.locating import is_checkpointed, locate_batch
from chronik.storage.wal_format import ENTRY_HEADER_BYTES, decode_header
from tests.unit.admin.support import Http, with_node

TP = TopicPartition("orders", 0)


async def asked(http: Http, offset: int, topic: str = "orders", partition: int = 0) -> Any:
    answer = await http.get(f"/admin/topics/{topic}/explain?partition={partition}&offset={offset}")
    assert answer.status == 200, answer.body
    return answer.json


async def write(cluster: Cluster) -> None:
    """Offset 0 alone; 1 and its marker 2 committed; 3 and its marker 4 aborted; 5 in an open transaction."""
    async with Producer(cluster) as producer:
        await (await producer.send("orders", b"alone", partition=0))
    transaction = Transaction(cluster, "billing")
    async with Producer(cluster, transaction=transaction) as producer:
        for end in (transaction.commit, transaction.abort):
            await transaction.begin()
            await (await producer.send("orders", b"in a transaction", partition=0))
            await end(producer)
        await transaction.begin()
        await (await producer.send("orders", b"open", partition=0))


def test_a_records_batch_place_and_transaction(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await http.post("/admin/create-topic", {"name": "orders"})
        async with Cluster(f"127.0.0.1:{node.kafka_port}") as cluster:
            await write(cluster)
        found = [await asked(http, offset) for offset in range(6)]
        batches = [one["batch"] for one in found]
        ends = [None, "committed", None, "aborted", None, "open"]
        assert [one["transaction"] for one in batches] == ends
        assert [one["marker"] for one in batches] == [None, None, "commit", None, "abort", None]
        assert [one["is_transactional"] for one in batches] == [False] + 5 * [True]
        assert [one["producer_id"] is None for one in batches] == [True] + 5 * [False]
        assert {(one["high_watermark"], one["last_stable_offset"]) for one in found} == {(6, 5)}
        assert {one["replicas"][0]["facts"]["stage"] for one in found} == {"wal"}
        for offset, one in enumerate(found):
            wal = one["replicas"][0]["facts"]["wal"]
            data = (tmp_path / wal["file"]).read_bytes()
            entry = decode_header(data[wal["position"] : wal["position"] + ENTRY_HEADER_BYTES])
            assert entry is not None
            assert (wal["state"], entry.offset, entry.round) == ("held", offset, wal["round"])

        await node.parts.store.checkpoint()
        log = node.parts.replicas.leader(TP).log
        for in_memory in (True, False):
            while not in_memory and log.drop_cached():
                pass
            assert bool(log.tail) is in_memory
            for offset, batch in enumerate(batches):
                again = await asked(http, offset)
                (replica,) = again["replicas"]
                told = replica["facts"]
                assert again["batch"] == batch
                assert (told["stage"], told["is_in_file"], replica["is_leader"]) == (
                    "checkpointed",
                    True,
                    True,
                )
                data = (tmp_path / told["segment"]).read_bytes()
                header = read_header(data, told["position"])
                assert header.base_offset == batch["base_offset"] == offset
                assert header.size_bytes == batch["size_bytes"]

        # The same offset in another epoch is another batch: one that came after a truncation.
        place = await locate_batch(log, 0)
        assert place is not None
        other = place.header._replace(leader_epoch=place.header.leader_epoch + 1)
        assert await is_checkpointed(node.parts.store.disk, node.parts.store.root, log, 0, place.header)
        assert not await is_checkpointed(node.parts.store.disk, node.parts.store.root, log, 0, other)

    with_node(tmp_path, work)


def test_offsets_that_no_record_has(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await http.post("/admin/create-topic", {"name": "orders"})
        for _ in range(3):
            await http.post("/admin/topics/orders/messages", {"value": "v"})
        partition = node.parts.replicas.leader(TP)
        restored = bytearray(
            build_batch([Record(key=None, value=b"v", timestamp_ms=1, offset=0)], base_offset=10)
        )
        partition.append_restored(memoryview(restored), 3, now_ms=1)
        async with Cluster(f"127.0.0.1:{node.kafka_port}") as cluster:
            await Admin(cluster).delete_records({TP: 2})

        assert (await asked(http, 2))["batch"]["base_offset"] == 2
        gap = await asked(http, 5)
        assert (gap["batch"], gap["replicas"][0]["facts"]["segment"]) == (None, None)
        await node.parts.store.checkpoint()
        while partition.log.drop_cached():
            pass
        assert not partition.log.tail
        assert (await asked(http, 5))["batch"] is None
        for question, status, words in (
            ("partition=0&offset=1", 400, "retention or DeleteRecords removed everything before 2"),
            ("partition=0&offset=11", 400, "has not been written yet: the last one is 10"),
            ("partition=1&offset=0", 404, "has the partitions 0 to 0, not 1"),
            ("partition=0", 400, "offset"),
        ):
            answer = await http.get(f"/admin/topics/orders/explain?{question}")
            assert answer.status == status, question
            assert words in answer.json["message"]
        assert (await http.get("/admin/topics/nobody/explain?partition=0&offset=0")).status == 404

    with_node(tmp_path, work)


TIERED = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "0",
    "segment.bytes": "1024",
    "file.delete.delay.ms": "0",
}


def test_a_record_that_is_in_the_object_store_alone(tmp_path: Path) -> None:
    store = tmp_path / "objects"

    async def work(node: Node, http: Http) -> None:
        async with Cluster(f"127.0.0.1:{node.kafka_port}") as cluster:
            await Admin(cluster).create_topics([NewTopic(name="orders", partitions=1, configs=TIERED)])
            transaction = Transaction(cluster, "billing")
            async with Producer(cluster, transaction=transaction) as producer:
                await transaction.begin()
                await (await producer.send("orders", b"taken back", partition=0))
                await transaction.abort(producer)
            async with Producer(cluster) as producer:
                for _ in range(10):
                    await (await producer.send("orders", b"." * 300, partition=0))
        log = node.parts.replicas.leader(TP).log
        async with asyncio.timeout(30):
            while (await asked(http, 2))["replicas"][0]["facts"]["has_record"]:
                pass

        found = await asked(http, 0)
        (replica,) = found["replicas"]
        assert (replica["facts"]["has_record"], replica["facts"]["stage"]) == (False, None)
        batch = found["batch"]
        assert (batch["base_offset"], batch["transaction"], found["transactional_id"]) == (
            0,
            "aborted",
            "billing",
        )
        assert (await asked(http, 1))["batch"]["marker"] == "abort"
        assert found["remote"]["has_record"]
        assert (store / found["remote"]["object"]).is_file()
        lines = dict(facts({**found, "record": None, "groups": []}))
        assert lines["WAL"] == "not needed: the object store has the record, the local copy is gone"
        assert found["remote"]["object"] in lines["object store"]
        assert _has_it(replica, 0) == "in the object store alone"

        # A store that does not tell takes nothing from what the node itself knows.
        for name in store.rglob("*.*"):
            name.unlink()
        silent = await asked(http, log.log_start_offset - 1)
        assert silent["batch"] is None
        lines = dict(facts({**silent, "record": None, "groups": []}))
        assert lines["batch"] == "not known: the object store did not tell in time"

    with_node(
        tmp_path / "data",
        work,
        object_store=store.as_uri(),
        tiering_interval_ms=20,
        retention_check_interval_ms=20,
    )


async def test_coordinators_that_do_not_answer_hold_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def __init__(self, _cluster: object) -> None:
            pass

        async def list(self, **_wanted: object) -> list[Any]:
            return await asyncio.get_running_loop().create_future()

    route = importlib.import_module("chronik.admin.routes.explain")
    monkeypatch.setattr(route, "Transactions", Silent)
    monkeypatch.setattr(route, "ASK_SECONDS", 0.01)
    call = SimpleNamespace(context=SimpleNamespace(loopback=SimpleNamespace(cluster=lambda: None)))
    batch = SimpleNamespace(is_transactional=True, producer_id=7)
    async with asyncio.timeout(20):
        assert await route._transactional_id(call, batch) is None


def test_who_wrote_it_and_when_the_leader_had_it(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        for name, kind in (("orders", "CreateTime"), ("stamped", "LogAppendTime")):
            config = {"message.timestamp.type": kind}
            await http.post("/admin/create-topic", {"name": name, "partitions": 1, "config": config})
        for client_id in ("shop", "till"):
            options = ClientOptions(client_id=client_id)
            async with (
                Cluster(f"127.0.0.1:{node.kafka_port}", options) as cluster,
                Producer(cluster) as producer,
            ):
                for _ in range(3):
                    for topic in ("orders", "stamped"):
                        await (await producer.send(topic, b"v", partition=0))
        clients = [(await asked(http, offset))["client"] for offset in range(6)]
        assert [one["client_id"] for one in clients] == 3 * ["shop"] + 3 * ["till"]
        assert {one["host"] for one in clients} == {"127.0.0.1"}
        assert all(one["port"] for one in clients)

        (unknown,) = (await asked(http, 0))["replicas"]
        assert (unknown["acknowledged"], _when(unknown)) == (None, "unknown")
        stamped = await asked(http, 4, "stamped")
        (told,) = stamped["replicas"]
        appended_ms = stamped["batch"]["max_timestamp_ms"]
        assert told["acknowledged"] == {"node_id": 1, "after_ms": appended_ms, "by_ms": appended_ms}
        assert _when(told).startswith("at ")

    with_node(tmp_path, work)


def step(version: int, **fields: Any) -> PublishedStep:
    return PublishedStep(version=version, topic="orders", **{"topic_id": "now", **fields})


@pytest.mark.parametrize(
    ("offset", "state", "number", "files"),
    [
        (4, "archived", 1, ("a", "b")),
        (12, "archived", 2, ("all",)),
        (23, "archived", 3, ("all",)),
        (30, "expired", 4, ()),
        (40, "waiting", None, ()),
    ],
)
def test_where_the_archive_has_a_record(
    tmp_path: Path, offset: int, state: str, number: int | None, files: tuple[str, ...]
) -> None:
    steps = [
        step(0, topic_id="before", ranges={"0": (0, 99)}, offsets={"0": 99}, moves={"s": "deleted"}),
        step(1, ranges={"0": (0, 10)}, offsets={"0": 10}, moves={"s1": "a", "s2": "b"}),
        step(2, ranges={"0": (10, 20)}, offsets={"0": 20}, moves={"s3": "c"}),
        step(3, ranges={"0": (20, 30), "1": (0, 99)}, offsets={"0": 30, "1": 99}, moves={"s4": "d"}),
        step(4, ranges={"0": (30, 40)}, offsets={"0": 40}, moves={"s5": "e"}),
        step(5, kind="compact", moves={"s6": "both"}, removes=("c", "d")),
        step(6, kind="compact", moves={"s7": "all"}, removes=("both",)),
        step(7, kind="expire", removes=("e",)),
    ]
    for one in steps:
        path = tmp_path / step_path("orders", one.version)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(one))
    question = RecordQuestion(topic="orders", topic_id="now", partition=0, offset=offset)
    found = look_into_archive(tmp_path, question)
    assert (found.state, found.step, found.files, found.next_offset) == (state, number, files, 40)
