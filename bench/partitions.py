"""Costs that must not grow with the number of partitions.

- One commit round with 1, 100 and 1,000 dirty partitions: how many syncs, how long. Beside it what the
  same appends would cost with a file and a sync per partition.
- A node with 10,000 idle partitions beside one with none: start-up time, memory, latency of one record.

The exit code is 1 if a round needs more than one sync, or if idle partitions cost more than their bars.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import confluent_kafka.admin
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from bench.windows import PROBED, measure, percentile
from chronik.model import TopicPartition
from chronik.records.batch import read_header
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.storage.disk import RealDisk, RealFile
from chronik.storage.log import LogConfig
from chronik.storage.recovery import open_store
from chronik.storage.store import StoreOptions
from chronik.storage.wal import PROFILES, WalOptions
from tests.node import ChronikNode

BATCH_VALUE_BYTES = 256
SYNCS_MAX = 1
"""Of a commit round, however many partitions it has batches for."""
IDLE_KB_MAX = 20
"""Memory of an idle partition: what 10,000 take beyond a node that has none (T33)."""
IDLE_LATENCY_RATIO_MAX = 1.5
"""How much longer one record may take beside 10,000 idle partitions than beside none (L05)."""
IDLE_START_RATIO_MAX = 3.0
"""How much longer a node may take to start with 10,000 idle partitions than with none (L05)."""
STARTS = 3
PROBES_PER_SECOND = 200


class TimedFile(RealFile):
    """Notes how long each sync took."""

    __slots__ = ("syncs",)

    syncs: list[float]

    def sync(self) -> None:
        began = time.perf_counter()
        super().sync()
        self.syncs.append(time.perf_counter() - began)


class TimedDisk(RealDisk):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.wal_syncs: list[float] = []

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        if path.suffix != ".wal":
            return super().open(path, create=create)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        file = TimedFile(path, os.open(path, flags, 0o644))
        file.syncs = self.wal_syncs
        return file


async def commit_rounds(folder: Path, partitions: int, rounds: int) -> tuple[float, float, float]:
    """Milliseconds a round, milliseconds of it in the sync, syncs a round; medians."""
    disk = TimedDisk(asyncio.get_running_loop())
    options = StoreOptions(wal=WalOptions(profile=PROFILES["ultra"]))
    store, _ = open_store(disk, folder, options)
    topic_id = uuid.uuid4()
    logs = [store.open_log(TopicPartition("dirty", n), topic_id, LogConfig()) for n in range(partitions)]
    took, in_sync, counts = [], [], []
    for number in range(rounds + 1):
        batches = [
            build_batch([Record(key=None, value=b"x" * BATCH_VALUE_BYTES, timestamp_ms=1)]) for _ in logs
        ]
        disk.wal_syncs.clear()
        before = store.wal.stats.rounds
        began = time.perf_counter()
        for log, batch in zip(logs, batches, strict=True):
            log.append(batch, read_header(batch), 0, 1)
        await store.wal.drained()
        if number:  # the first round also makes the files
            took.append((time.perf_counter() - began) * 1000)
            in_sync.append(sum(disk.wal_syncs) * 1000)
            counts.append(len(disk.wal_syncs) / max(1, store.wal.stats.rounds - before))
    await store.stop()
    disk.close()
    return statistics.median(took), statistics.median(in_sync), statistics.median(counts)


def file_per_partition(folder: Path, partitions: int, rounds: int) -> float:
    """Milliseconds a round when every partition has a file and a sync of its own."""
    files = [os.open(folder / str(n), os.O_RDWR | os.O_CREAT) for n in range(partitions)]
    data = b"x" * BATCH_VALUE_BYTES
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        for file in files:
            os.write(file, data)
            os.fdatasync(file)
        took.append((time.perf_counter() - began) * 1000)
    for file in files:
        os.close(file)
    return statistics.median(took)


def print_rounds(console: Console, rounds: int) -> dict[int, float]:
    """Syncs of a round, by the number of dirty partitions."""
    table = Table(title="one commit round, one batch for each dirty partition")
    for heading in (
        "dirty partitions",
        "round, ms",
        "in sync, ms",
        "syncs per round",
        "a file for each, ms",
    ):
        table.add_column(heading, justify="right")
    syncs = {}
    for partitions in (1, 100, 1000):
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            took, in_sync, count = asyncio.run(commit_rounds(Path(folder), partitions, rounds))
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            apart = file_per_partition(Path(folder), partitions, max(3, rounds // partitions))
        table.add_row(f"{partitions:,}", f"{took:.2f}", f"{in_sync:.2f}", f"{count:.1f}", f"{apart:,.1f}")
        syncs[partitions] = count
    console.print(table)
    return syncs


def judge_rounds(syncs: Mapping[int, float]) -> list[str]:
    """What misses its bar."""
    return [
        f"{partitions:,} dirty partitions: {count:.1f} syncs a round, not {SYNCS_MAX}"
        for partitions, count in syncs.items()
        if count > SYNCS_MAX
    ]


class Idle(NamedTuple):
    """A node that has `partitions` and nothing to do."""

    partitions: int
    creation_s: float
    start_s: float
    """From the start of the process until it serves clients; the median of some."""
    memory_mb: float
    record_ms: float
    """Median of one record."""


def measure_idle(count: int, starts: int = STARTS) -> Idle:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        node = ChronikNode(Path(folder))
        try:
            node.start()
            began = time.monotonic()
            create(node, count)
            creation = time.monotonic() - began
            took = []
            for _ in range(starts):
                node.stop(timeout_s=60)
                took.append(node.start())
            mb = node.rss_bytes() / 1e6
            create(node, 1, topic=PROBED, per_topic=1)
            measure(node, 1.0, PROBES_PER_SECOND)  # warm
            record = percentile(measure(node, 3.0, PROBES_PER_SECOND), 0.5)
            node.stop(timeout_s=60)
        finally:
            node.kill()
    return Idle(count, creation, statistics.median(took), mb, record)


def kb_each(none: Idle, many: Idle) -> float:
    """Memory of one idle partition."""
    return (many.memory_mb - none.memory_mb) * 1000 / many.partitions


def judge_idle(none: Idle, many: Idle) -> list[str]:
    """What misses its bar: each figure beside that of the same node without partitions."""
    missed = []
    each = kb_each(none, many)
    if each > IDLE_KB_MAX:
        missed.append(f"an idle partition takes {each:.1f} KB, more than {IDLE_KB_MAX}")
    for what, own, base, ratio_max in (
        ("a record", many.record_ms, none.record_ms, IDLE_LATENCY_RATIO_MAX),
        ("the start", many.start_s, none.start_s, IDLE_START_RATIO_MAX),
    ):
        if own > ratio_max * base:
            missed.append(
                f"{what} takes {own / base:.2f} times as long beside {many.partitions:,} idle partitions, "
                f"more than {ratio_max}"
            )
    return missed


def print_idle(console: Console, none: Idle, many: Idle) -> None:
    table = Table(title="one node, idle")
    for heading in (
        "partitions",
        "creation, s",
        "start, s",
        "memory, MB",
        "KB per partition",
        "one record p50, ms",
    ):
        table.add_column(heading, justify="right")
    for one in (none, many):
        table.add_row(
            *(f"{one.partitions:,}", f"{one.creation_s:.2f}", f"{one.start_s:.2f}", f"{one.memory_mb:.0f}"),
            *(f"{kb_each(none, one):.1f}" if one.partitions else "", f"{one.record_ms:.2f}"),
        )
    console.print(table)


def create(node: ChronikNode, partitions: int, topic: str = "idle", per_topic: int = 100) -> None:
    if not partitions:
        return
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": node.bootstrap})
    topics = [
        NewTopic(topic if per_topic == 1 else f"{topic}-{n}", per_topic, 1)
        for n in range(partitions // per_topic)
    ]
    for future in admin.create_topics(topics, request_timeout=120, operation_timeout=120).values():
        future.result(120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=10_000, help="idle partitions of the second table")
    options = parser.parse_args()
    console = Console()
    missed = judge_rounds(print_rounds(console, options.rounds))
    none, many = measure_idle(0), measure_idle(options.partitions)
    print_idle(console, none, many)
    missed += judge_idle(none, many)
    for miss in missed:
        console.print(f"[red]missed: {miss}[/red]")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
