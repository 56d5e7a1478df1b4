"""The data source beside the official Kafka connector, in one Spark, on one node (`make bench-spark`).

The same topic (JSON of 200 B, three partitions) is counted, written to Parquet and streamed to Parquet, by
turns, in alternating order; the ratio is the median of the pairs'. One round before it warms both up. Memory
is the most that the driver's JVM and every Python process below it held while each source did the same in a
Spark of its own with the same heap: the connector in Spark as it comes and in the session that chronik makes,
which collects garbage more sparingly. Pages that processes share count once (PSS), as forked ones share most
of theirs. The scanner is also measured alone, on one core. Then the archive job runs over everything, over
what came since, and over nothing new.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from bench.bars import end
from bench.compare import in_turn
from chronik.client import Cluster, FetchOptions
from chronik.columns.scanner import RecordWindow, Scanner
from chronik.model import TopicPartition
from chronik.spark.fetching import RangeFetcher
from chronik.spark.jobs.archive import ArchiveOptions, archive
from chronik.spark.options import connect_options, read_options, write_options
from chronik.spark.producing import TaskProducer
from chronik.spark.ranges import OffsetRange
from chronik.spark.session import start_session
from chronik.spark.source import COLUMNS
from tests.java import JARS
from tests.node import ChronikNode
from tests.spark.processes import descendants, memory_bytes
from tests.spark.topics import Topics

KINDS = ("kafka", "chronik")
MEMORIES = {
    "kafka, Spark as it comes": ("kafka", True),
    "kafka, chronik's session": ("kafka", False),
    "chronik": ("chronik", False),
}
"""Whose memory is measured: the source, and whether Spark is left to its own settings."""
PARTITIONS = 3
RATIO_MIN = 1.0
"""Not slower than the official connector."""
FILL_ROWS = 100_000
SCANNED_ROWS = 30_000
VALUE = '{"id": %d, "customer": "c%05d", "amount": %d.25, "text": "'
FILLER = "lorem ipsum dolor sit amet " * 8


def rows(first: int, count: int) -> pa.RecordBatch:
    values = [
        ((VALUE % (n, n % 9973, n % 1000)) + FILLER)[:198].encode() + b'"}'
        for n in range(first, first + count)
    ]
    partitions = [n % PARTITIONS for n in range(first, first + count)]
    return pa.record_batch({"value": pa.array(values), "partition": pa.array(partitions, pa.int32())})


def fill(bootstrap: str, topic: str, first: int, count: int) -> None:
    """JSON values of 200 bytes; batches of 64 KiB."""
    options = write_options(
        {"bootstrap.servers": bootstrap, "topic": topic, "batch.size": "65536", "transactional": "false"}
    )

    async def work() -> None:
        async with Cluster(bootstrap) as cluster:
            starts = range(first, first + count, FILL_ROWS)
            batches = (rows(start, min(FILL_ROWS, first + count - start)) for start in starts)
            await TaskProducer(cluster, options, None).write_all(batches)

    asyncio.run(work())


def scanner_alone(bootstrap: str, topic: str, console: Console) -> None:
    """All columns of what one partition holds, again and again, from memory: CPU time of one thread."""
    options = read_options({"bootstrap.servers": bootstrap, "subscribe": topic}, streaming=False)
    fetch = FetchOptions(partition_max_bytes=options.fetch_bytes, max_bytes=options.fetch_bytes)
    wanted = OffsetRange(TopicPartition(topic, 0), 0, SCANNED_ROWS)
    chunks = [bytes(chunk.data) for chunk in RangeFetcher(options.connect, wanted, fetch)]
    scanner = Scanner(tuple(COLUMNS), topic, 0)
    rates = []
    for _ in range(10):
        began = time.process_time()
        count = sum(batch.num_rows for chunk in chunks for batch in scanner.scan(chunk, RecordWindow()))
        rates.append(count / (time.process_time() - began))
    console.print(f"scanner alone: {statistics.median(rates):,.0f} records/s on one core")


class Memory(threading.Thread):
    """The most that all processes below this one held together: the JVM, and Python of whatever task."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._stop_it = threading.Event()
        self.total = self.jvm = 0

    def run(self) -> None:
        while not self._stop_it.wait(0.2):
            found = descendants()
            held = {pid: memory_bytes(pid) for pid in found}
            if (total := sum(held.values())) > self.total:
                self.total = total
                self.jvm = sum(size for pid, size in held.items() if "java" in found[pid].split(" ")[0])

    def stop(self) -> tuple[int, int]:
        """All of it, and the JVM's part at the same moment."""
        self._stop_it.set()
        self.join()
        return self.total, self.jvm


@contextlib.contextmanager
def session(*, is_plain: bool = False) -> Iterator[SparkSession]:
    jars = sorted(map(str, (JARS / "spark").glob("*.jar")))
    own = {"spark.driver.extraJavaOptions": ""} if is_plain else {}
    spark = start_session("bench", jars=jars, conf={"spark.driver.memory": "2g", **own})
    try:
        yield spark
    finally:
        spark.stop()


class Loads:
    """What is measured, by name; each takes the kind of source and the topic."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._folder = folder
        self.all: dict[str, Callable[[str, str], None]] = {
            "count()": self._count,
            "to Parquet": self._to_parquet,
            "stream to Parquet": self._stream,
        }

    def _options(self, topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._bootstrap, "subscribe": topic}

    def _read(self, kind: str, topic: str) -> DataFrame:
        return self._spark.read.format(kind).options(**self._options(topic)).load()

    def _count(self, kind: str, topic: str) -> None:
        self._read(kind, topic).count()

    def _to_parquet(self, kind: str, topic: str) -> None:
        self._read(kind, topic).write.parquet(str(self._folder / "table"))

    def _stream(self, kind: str, topic: str) -> None:
        reader = self._spark.readStream.format(kind).options(**self._options(topic))
        writer = reader.option("startingOffsets", "earliest").load().writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        query = writer.option("path", str(self._folder / "table")).trigger(availableNow=True).start()
        query.awaitTermination()

    def measure(self, load: str, kind: str, topic: str) -> float:
        for name in ("table", "checkpoint"):
            shutil.rmtree(self._folder / name, ignore_errors=True)
        began = time.monotonic()
        self.all[load](kind, topic)
        return time.monotonic() - began


def memory_alone(kind: str, is_plain: bool, bootstrap: str, topic: str) -> tuple[int, int]:
    """Bytes at most, and those of the JVM, in a process that reads with this source alone."""
    command = [
        sys.executable,
        "-m",
        "bench.spark",
        "--memory",
        kind,
        "--bootstrap",
        bootstrap,
        "--topic",
        topic,
        *(["--plain"] if is_plain else []),
    ]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    total, jvm = said.split()[-2:]
    return int(total), int(jvm)


def measure_memory(kind: str, is_plain: bool, bootstrap: str, topic: str) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as folder, session(is_plain=is_plain) as spark:
        loads = Loads(spark, bootstrap, Path(folder))
        watch = Memory()
        watch.start()
        for load in loads.all:
            loads.measure(load, kind, topic)
        print(*watch.stop())


def compare_memory(bootstrap: str, topic: str, rounds: int, console: Console) -> None:
    """In as many rounds: how far the JVM's heap grows depends on when its collector finds a core."""
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in MEMORIES}
    for number in range(rounds):
        for name in in_turn(list(MEMORIES), number):
            found[name].append(memory_alone(*MEMORIES[name], bootstrap, topic))
    table = Table(title=f"Memory at most, MB, median of {rounds} rounds")
    for heading in ("source", "all processes", "from", "to", "JVM's part"):
        table.add_column(heading, justify="left" if heading == "source" else "right")
    for name, pairs in found.items():
        totals, jvms = ([size / 1e6 for size in sizes] for sizes in zip(*pairs, strict=True))
        figures = (statistics.median(totals), min(totals), max(totals), statistics.median(jvms))
        table.add_row(name, *(f"{figure:,.0f}" for figure in figures))
    console.print(table)


def compare(loads: Loads, topic: str, records: int, rounds: int, console: Console) -> list[str]:
    """What misses its bar is returned."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for number in range(-1, rounds):
        for load in loads.all:
            for kind in in_turn(list(KINDS), number):
                took = loads.measure(load, kind, topic)
                if number >= 0:
                    seconds.setdefault((load, kind), []).append(took)
                console.print(f"[dim]round {number}: {load}, {kind}: {took:.2f} s[/dim]")
    table = Table(title=f"{records:,} records of 200 B, {PARTITIONS} partitions, {rounds} rounds")
    for heading in ("load", "kafka, rows/s", "chronik, rows/s", "ratio"):
        table.add_column(heading, justify="left" if heading == "load" else "right")
    missed = []
    for load in loads.all:
        theirs, ours = seconds[load, "kafka"], seconds[load, "chronik"]
        ratios = [their / our for their, our in zip(theirs, ours, strict=True)]
        table.add_row(
            load,
            f"{records / statistics.median(theirs):,.0f}",
            f"{records / statistics.median(ours):,.0f}",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        )
        if (ratio := statistics.median(ratios)) < RATIO_MIN:
            missed.append(f"{load}: {ratio:.2f} times the connector's rate, not {RATIO_MIN}")
    console.print(table)
    return missed


def growth(loads: Loads, small: tuple[str, int], large: tuple[str, int], console: Console) -> None:
    table = Table(title="Growth: seconds a million records")
    for heading in ("load", f"{small[1]:,} records", f"{large[1]:,} records"):
        table.add_column(heading, justify="left" if heading == "load" else "right")
    for load in loads.all:
        per_million = [
            min(loads.measure(load, "chronik", topic) for _ in range(2)) / count * 1e6
            for topic, count in (small, large)
        ]
        table.add_row(load, *(f"{each:.2f}" for each in per_million))
    console.print(table)


def incremental(
    spark: SparkSession, bootstrap: str, topic: str, records: int, folder: Path, console: Console
) -> None:
    """The archive of everything, of a twentieth more, of nothing more."""
    connect = connect_options({"bootstrap.servers": bootstrap})
    options = ArchiveOptions(connect=connect, folder=str(folder / "archive"))
    table = Table(title="Archive (JSON decoded), run by run")
    for heading in ("new records", "there are", "seconds"):
        table.add_column(heading, justify="right")
    there = records
    for new in (records, records // 20, 0):
        if there != records or new == records // 20:
            fill(bootstrap, topic, there, new)
            there += new
        began = time.monotonic()
        done = archive(spark, topic, options)
        table.add_row(f"{done.rows:,}", f"{there:,}", f"{time.monotonic() - began:.2f}")
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip-jobs", action="store_true", help="only beside the connector")
    parser.add_argument("--memory", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", help=argparse.SUPPRESS)
    parser.add_argument("--topic", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.memory:
        measure_memory(given.memory, given.plain, given.bootstrap, given.topic)
        return 0
    console = Console()
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as name:
        folder = Path(name)
        with ChronikNode(folder / "node") as node:
            with Topics(node.bootstrap) as topics:
                large, small = (topics.create(partitions=PARTITIONS) for _ in range(2))
            console.print("[dim]filling[/dim]")
            fill(node.bootstrap, large, 0, given.records)
            fill(node.bootstrap, small, 0, given.records // 10)
            scanner_alone(node.bootstrap, small, console)
            with session() as spark:
                loads = Loads(spark, node.bootstrap, folder)
                missed = compare(loads, large, given.records, given.rounds, console)
                if not given.skip_jobs:
                    growth(loads, (small, given.records // 10), (large, given.records), console)
                    incremental(spark, node.bootstrap, large, given.records, folder, console)
            compare_memory(node.bootstrap, large, given.rounds, console)
    return end(console, missed)


if __name__ == "__main__":
    sys.exit(main())
