"""Answers about partitions whose records are in an object store, which may not answer."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import pytest

from chronik.metadata.commands import RemoteLog
from chronik.model import TopicPartition
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.replication.partition import Partition
from chronik.storage.reading import EMPTY, LogSlice
from chronik.wire.api import ApiKey
from chronik.wire.schema import encode_request
from tests.unit.server.live import live
from tests.unit.server.test_produce_refusals import produce

PARTITIONS = 40


async def test_a_store_that_hangs_for_one_partition_leaves_the_others_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    patiences: list[float] = []
    askers: set[Hashable] = set()

    async def slow_read(self: Partition, *args: int, until: float, asker: Hashable, **how: Any) -> LogSlice:
        askers.add(asker)
        patiences.append(until - loop.time())
        await asyncio.sleep(max(patiences[-1], 0))
        return EMPTY

    async with live(tmp_path, remote_fetch_max_wait_ms=100) as node:
        await node.topic("far", PARTITIONS)
        monkeypatch.setattr(Partition, "read_now", lambda *args, **how: None)
        monkeypatch.setattr(Partition, "read", slow_read)
        wanted = [{"partition": number, "partition_max_bytes": 100} for number in range(PARTITIONS)]
        fields = {
            "max_wait": datetime.timedelta(milliseconds=10),
            "min_bytes": 1,
            "topics": [{"topic": "far", "partitions": wanted}],
        }
        reader, writer = await asyncio.open_connection("127.0.0.1", node.node.kafka_port)
        writer.write(bytes(encode_request(ApiKey.FETCH, 11, 1, "patient", fields)))
        await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        writer.close()
    assert len(askers) == 1, "all reads count for the connection"
    assert 0.05 < patiences[0] <= 0.1
    assert 0 < patiences[1] <= 0.02, "enough for what is in memory"
    assert sum(max(one, 0) for one in patiences) < 0.7, "and all of them together take not much longer"


async def test_a_fetch_reads_once_at_a_time_however_often_it_is_woken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is put off at first. Records of a busy partition wake it while the read that it began then lasts."""
    reads, begun, may_end = 0, asyncio.Event(), asyncio.Event()

    async def read(self: Partition, *args: int, **how: Any) -> LogSlice:
        nonlocal reads
        reads += 1
        if reads == 2:
            begun.set()
            await may_end.wait()
        return EMPTY if reads <= 2 else LogSlice([bytes(100)], 100)

    async with live(tmp_path) as node:
        await node.topic("far")
        partition = node.node.parts.replicas.leader(TopicPartition("far", 0))
        watch, is_watched = partition.watch, asyncio.Event()

        def watched(self: Partition, wake: Callable[[], None]) -> None:
            watch(wake)
            is_watched.set()

        monkeypatch.setattr(Partition, "watch", watched)
        monkeypatch.setattr(Partition, "read_now", lambda *args, **how: None)
        monkeypatch.setattr(Partition, "read", read)
        fields = {
            "max_wait": datetime.timedelta(minutes=2),
            "min_bytes": 1,
            "topics": [{"topic": "far", "partitions": [{"partition": 0, "partition_max_bytes": 100}]}],
        }
        reader, writer = await asyncio.open_connection("127.0.0.1", node.node.kafka_port)
        writer.write(bytes(encode_request(ApiKey.FETCH, 11, 1, "patient", fields)))
        await asyncio.wait_for(is_watched.wait(), 20)
        partition._wake_watchers()
        await asyncio.wait_for(begun.wait(), 20)
        for _ in range(20):
            partition._wake_watchers()
            await asyncio.sleep(0)
        assert reads == 2
        may_end.set()
        answer = reader.readexactly(int.from_bytes(await asyncio.wait_for(reader.readexactly(4), 20)))
        assert len(await answer) > 100, "what woke it was not forgotten"
        assert reads == 3
        writer.close()


async def test_a_produce_answer_says_where_the_whole_log_starts(tmp_path: Path) -> None:
    """Not where it starts on the local disk: a producer takes what is before that for deleted."""
    async with live(tmp_path) as node:
        await node.topic("t")
        partition = node.node.parts.replicas.leader(TopicPartition("t", 0))
        batch = bytes(build_batch([Record(key=b"k", value=b"v")] * 10))
        assert (await produce(node, 9, "t", batch)).log_start_offset == 0
        await partition.log.advance_start(5)
        partition.remote = RemoteLog(start_offset=2, end_offset=5, manifest="m", manifest_bytes=1)
        assert (await produce(node, 9, "t", batch)).log_start_offset == 2
