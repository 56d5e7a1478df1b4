"""Does a producer notice compaction? Its latencies in windows with compaction at work and without, in turn.

A topic of many partitions is filled with updates of few keys. A probe sends one small record at a time, at a
steady rate, to another topic with acks=all. Compaction is let loose and held back from window to window by
`min.cleanable.dirty.ratio` of the first topic; the node's own metrics say that it worked, or rested.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import struct
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from chronik.records.reader import Record
from chronik.records.writer import build_batch
from tests.configs import set_configs
from tests.crash.load import produce_answer, produce_frame
from tests.node import ChronikNode
from tests.process import HOST

COMPACTED, PROBED = "compacted", "probed"
DEADLINE_S = 120
VALUE_BYTES = 256
METRIC = "chronik_cleaner_"


@dataclass
class Window:
    latencies_ms: list[float]
    compacted_bytes: float
    step_count: float
    step_seconds: float
    broker_cpu_seconds: float

    def percentile(self, share: float) -> float:
        return percentile(self.latencies_ms, share)


def percentile(latencies_ms: list[float], share: float) -> float:
    ordered = sorted(latencies_ms)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def metrics(node: ChronikNode) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{HOST}:{node.settings['http_port']}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines)
        if name.startswith((METRIC, "process_cpu")) and "{" not in name
    }


def hold_back(node: ChronikNode, *, ratio: str) -> None:
    set_configs(node.bootstrap, "topic", COMPACTED, {"min.cleanable.dirty.ratio": ratio})


def fill(node: ChronikNode, updates: int, partitions: int, keys: int) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": node.bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 200_000}
    )
    for number in range(updates):
        while True:
            try:
                key = b"key-%d" % (number * 7919 % keys)
                producer.produce(COMPACTED, b"%0100d" % number, key, number % partitions)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(DEADLINE_S):
        raise RuntimeError("not everything was written")


def wait_until(node: ChronikNode, compacting: bool) -> None:
    end = time.monotonic() + DEADLINE_S
    while bool(metrics(node)[METRIC + "compacting"]) is not compacting:
        if time.monotonic() > end:
            raise RuntimeError("compaction did not begin" if compacting else "compaction did not end")
        time.sleep(0.05)


async def probe(node: ChronikNode, seconds: float, rate: float) -> list[float]:
    """Latencies in ms of single records; one that is late does not hold up the schedule of the others."""
    reader, writer = await asyncio.open_connection(HOST, node.kafka_port)
    batch = bytes(build_batch([Record(key=None, value=b"x" * VALUE_BYTES, timestamp_ms=1)]))
    found: list[float] = []
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        for number in range(int(seconds * rate)):
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - loop.time()))
            sent = time.perf_counter()
            writer.write(produce_frame(number, PROBED, 0, batch))
            (length,) = struct.unpack(">i", await reader.readexactly(4))
            _, code, _ = produce_answer(await reader.readexactly(length), PROBED)
            if code:
                raise RuntimeError(f"a record was refused with {code}")
            found.append((time.perf_counter() - sent) * 1000)
    finally:
        writer.close()
    return found


def measure(node: ChronikNode, seconds: float, rate: float) -> Window:
    before = metrics(node)
    latencies = asyncio.run(probe(node, seconds, rate))
    after = metrics(node)

    def grown(name: str) -> float:
        return after[name] - before[name]

    return Window(
        latencies,
        grown(METRIC + "processed_bytes_total"),
        grown(METRIC + "step_seconds_count"),
        grown(METRIC + "step_seconds_sum"),
        grown("process_cpu_seconds_total"),
    )


def run(node: ChronikNode, args: argparse.Namespace) -> tuple[list[Window], list[Window]]:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "1",
        "segment.bytes": str(16 * 1024 * 1024),
        "segment.ms": "1000",
    }
    topics = [
        NewTopic(COMPACTED, args.partitions, 1, config=configs),
        NewTopic(PROBED, 1, 1),
    ]
    for made in admin.create_topics(topics).values():
        made.result(DEADLINE_S)
    fill(node, args.updates, args.partitions, args.keys)
    asyncio.run(probe(node, args.seconds, args.rate))  # warm
    busy: list[Window] = []
    idle: list[Window] = []
    for _ in range(args.pairs):
        hold_back(node, ratio="1")
        wait_until(node, compacting=False)
        idle.append(measure(node, args.seconds, args.rate))
        hold_back(node, ratio="0")
        wait_until(node, compacting=True)
        busy.append(measure(node, args.seconds, args.rate))
        if idle[-1].compacted_bytes or not busy[-1].compacted_bytes:
            raise RuntimeError("compaction did not keep to its windows: give it more --updates")
    return idle, busy


def report(idle: list[Window], busy: list[Window]) -> None:
    table = Table(title="produce latency, one record at a time (ms)")
    for column in ("", "p50", "p99", "p50 of windows", "p99 of windows"):
        table.add_column(column)
    medians: dict[str, tuple[float, float]] = {}
    for name, windows in (("compaction held back", idle), ("compaction at work", busy)):
        every = Window([one for window in windows for one in window.latencies_ms], 0, 0, 0, 0)
        halves, tails = ([w.percentile(share) for w in windows] for share in (0.5, 0.99))
        medians[name] = statistics.median(halves), statistics.median(tails)
        table.add_row(
            name,
            f"{every.percentile(0.5):.2f}",
            f"{every.percentile(0.99):.2f}",
            *(f"{statistics.median(v):.2f} ({min(v):.2f} to {max(v):.2f})" for v in (halves, tails)),
        )
    console = Console(soft_wrap=True)
    console.print(table)
    rested, worked = medians.values()
    pairs = [b.percentile(0.99) / i.percentile(0.99) for i, b in zip(idle, busy, strict=True)]
    steps, seconds = sum(w.step_count for w in busy), sum(w.step_seconds for w in busy)
    moved = sum(w.compacted_bytes for w in busy)
    cpu = [sum(w.broker_cpu_seconds for w in windows) for windows in (idle, busy)]
    console.print(
        f"ratio p50 {worked[0] / rested[0]:.2f}, p99 {worked[1] / rested[1]:.2f};"
        f" p99 of neighbouring windows: median {statistics.median(pairs):.2f}"
        f" ({min(pairs):.2f} to {max(pairs):.2f})"
    )
    console.print(
        f"compaction moved {moved / 1e6:.1f} MB"
        f" in {steps:.0f} steps of {1000 * seconds / max(steps, 1):.2f} ms;"
        f" broker CPU {cpu[1]:.2f} s with it, {cpu[0]:.2f} s without"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=1_000_000, help="records to compact")
    parser.add_argument("--keys", type=int, default=10_000, help="different keys among them")
    parser.add_argument("--partitions", type=int, default=50, help="of the compacted topic")
    parser.add_argument("--pairs", type=int, default=8, help="windows of each kind")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a window")
    parser.add_argument("--rate", type=float, default=200.0, help="records a second")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chronik-bench-") as folder:
        node = ChronikNode(Path(folder), cleaner_backoff_ms=50)
        with node:
            report(*run(node, args))


if __name__ == "__main__":
    main()
