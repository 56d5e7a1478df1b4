"""A partition on a real disk, led by node 1, with an object store in a directory and real metadata."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch
from uuid import UUID

from chronik.metadata import commands as c
from chronik.metadata.state import ClusterState
from chronik.metadata.topic_config import TopicConfig
from chronik.metadata.values import Outcome
from chronik.metrics import TieringStats
from chronik.model import ErrorCode, RequestError, TopicPartition, Unavailable
from chronik.objects.door import ObjectDoor
from chronik.objects.local import LocalObjects
from chronik.objects.store import ObjectStore
from chronik.records.reader import read_all_records
from chronik.replication.manager import log_config
from chronik.replication.partition import Partition
from chronik.storage.store import LogStore
from chronik.tiering import uploader
from chronik.tiering.cache import ObjectCache
from chronik.tiering.catalog import Catalog
from chronik.tiering.fetches import Fetches
from chronik.tiering.memory import ByteBudget
from chronik.tiering.reader import RemoteReader
from chronik.tiering.remote_logs import TieredLogs
from chronik.tiering.retention import RemoteRetention
from chronik.tiering.uploader import Uploader
from tests.unit.replication.support import Clock, Replicas, cleaner, context, put
from tests.unit.storage.support import opened

TOPIC = "tiered"
TOPIC_ID = UUID(bytes=TOPIC.encode().ljust(16, b"\0"))
TP = TopicPartition(TOPIC, 0)
MEMORY_BYTES = 16 * 1024 * 1024
CONFIGS = {
    "remote_storage_enable": "true",
    "local_retention_bytes": "0",
    "segment_bytes": "2000",
    "index_interval_bytes": "100",
    "file_delete_delay_ms": "0",
}


class Gate(LocalObjects):
    """A store whose answers wait while it is not open."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.opened = asyncio.Event()
        self.opened.set()
        self.entered = asyncio.Event()
        """Somebody asked for something."""
        self.asked: Counter[tuple[str, int]] = Counter()
        """By name and position."""

    async def get(self, name: str, start: int, size: int) -> bytes:
        self.asked[name, start] += 1
        self.entered.set()
        await self.opened.wait()
        return await super().get(name, start, size)


class Metadata:
    """The state machine with a log that commits at once, unless it is `gone`."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.partitions: list[Partition] = []
        self.is_gone = False
        self.is_silent = False
        """The next commands get no answer; they are applied before the first one that does."""
        self._unanswered: list[c.Command] = []
        self.submitted: list[c.Command] = []

    async def submit(self, command: c.Command) -> Outcome:
        if self.is_gone:
            raise Unavailable("nobody leads the metadata log")
        if self.is_silent:
            self._unanswered.append(command)
            raise RequestError(ErrorCode.request_timed_out, "the metadata log did not answer")
        for late in self._unanswered:
            self.apply(late)
        self._unanswered.clear()
        return self.apply(command)

    def apply(self, command: c.Command) -> Outcome:
        self.submitted.append(command)
        outcome = self.state.apply(command, self.state.applied_index + 1)
        if outcome.refused is not None:
            raise RequestError(outcome.refused.code, outcome.refused.message)
        for partition in self.partitions:
            found = self.state.partition(partition.tp)
            if found is not None:
                partition.assign(found)
        return outcome


class Tiered:
    def __init__(self, store: LogStore, objects: ObjectStore, clock: Clock, **configs: object) -> None:
        self.store = store
        self.clock = clock
        self.metadata = Metadata()
        self.stats = TieringStats()
        self.door = ObjectDoor(objects, rng=random.Random(1), timeout_s=0.5)
        self.fetches = Fetches(ByteBudget(MEMORY_BYTES, self.stats))
        self.catalog = Catalog(self.door, self.fetches, self.metadata, random.Random(2), self.stats)
        self.cache = ObjectCache(self.door, self.fetches, MEMORY_BYTES, self.stats)
        self.memory = ByteBudget(MEMORY_BYTES, self.stats)
        self.reader = RemoteReader(
            self.catalog,
            self.cache,
            self.fetches,
            self.memory,
            index_bytes_max=MEMORY_BYTES,
            stats=self.stats,
        )
        self.logs = TieredLogs(self.catalog, self.reader, self.stats)
        self.uploader = Uploader(self.catalog, self.stats)
        self.retention = RemoteRetention(self.catalog, self.logs, self.stats, clock)
        for command in (
            c.InitCluster(cluster_id="a cluster"),
            c.RegisterBroker(broker_id=1, incarnation=UUID(int=1), endpoints={}),
            c.CreateTopic(name=TOPIC, topic_id=TOPIC_ID, assignments=((1,),)),
        ):
            self.metadata.apply(command)
        self.replicas = Replicas(store, replace(context(), remote_logs=self.logs))
        self.partition = self.replicas.add(TOPIC, **{**CONFIGS, **configs})
        self.metadata.partitions.append(self.partition)

    async def fill(self, count: int, **how: object) -> None:
        for _ in range(count):
            put(self.partition, (b"key", b"v" * 80), now_ms=self.clock.now_ms, **how)
            self.clock.now_ms += 10
        await self.settle()

    async def settle(self) -> None:
        await self.store.wal.drained()
        await self.store.flusher.flushed()
        await self.store.wal.drained()

    async def retain_locally(self) -> None:
        await cleaner(self.replicas, self.clock).retain()

    def configure(self, **configs: object) -> None:
        """Set configs of the topic, with underscores for dots; others are those it began with."""
        given = {name.replace("_", "."): str(value) for name, value in {**CONFIGS, **configs}.items()}
        config = TopicConfig.resolve(given)
        self.partition.reconfigure(config, log_config(TOPIC, config))

    async def offsets(self, start: int | None = None) -> list[int]:
        """Of everything that a reader gets, in small steps."""
        partition = self.partition
        offset = partition.log_start_offset if start is None else start
        found: list[int] = []
        while offset < partition.high_watermark:
            read = await partition.read(offset, 700, partition.high_watermark)
            records = [one.offset for one in read_all_records(b"".join(read.buffers)) if one.offset >= offset]
            if not records:
                break
            found += records
            offset = records[-1] + 1
        return found

    def bump_epoch(self) -> None:
        """Another leader epoch begins, in the metadata log."""
        known = self.metadata.state.partition(TP)
        assert known is not None
        self.metadata.apply(
            c.ChangePartition(
                topic_id=TOPIC_ID,
                partition=0,
                partition_epoch=known.partition_epoch,
                bump_leader_epoch=True,
            )
        )


def objects_in(folder: Path, suffix: str) -> list[Path]:
    return sorted((folder / "objects").rglob(f"*.{suffix}"))


@contextlib.asynccontextmanager
async def tiered(
    folder: Path, objects: ObjectStore | None = None, **configs: object
) -> AsyncIterator[Tiered]:
    store_folder = folder / "objects"
    async with opened(folder / "data") as (store, _):
        made = Tiered(store, objects or LocalObjects(store_folder), Clock(1_700_000_000_000), **configs)
        try:
            with patch.object(uploader, "INDEX_INTERVAL_MIN", 100):  # so that small segments have an index
                yield made
        finally:
            await made.logs.stop()
            await made.fetches.stop()
            await made.door.close()
