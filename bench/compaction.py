"""Does a producer notice compaction? Its latencies in windows with compaction at work and without, in turn.

A topic of many partitions is filled with updates of few keys. A probe sends one small record at a time, at a
steady rate, to another topic with acks=all. Compaction is let loose and held back from window to window by
`min.cleanable.dirty.ratio` of the first topic; the node's own metrics say that it worked, or rested.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console

from bench.bars import end
from bench.windows import PROBED, Latencies, above, arguments, measure, ratios, table
from tests.configs import set_configs
from tests.node import ChronikNode
from tests.process import HOST

COMPACTED = "compacted"
DEADLINE_S = 120
METRIC = "chronik_cleaner_"
RATIOS_MAX = {0.5: 3.0, 0.99: 5.0}
"""As for readers of history (`bench.history`): somebody else is at work on the same two cores."""


@dataclass
class Window:
    latencies_ms: Latencies
    compacted_bytes: float
    step_count: float
    step_seconds: float
    broker_cpu_seconds: float


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


def look(node: ChronikNode, seconds: float, rate: float) -> Window:
    before = metrics(node)
    latencies = measure(node, seconds, rate)
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
    measure(node, args.seconds, args.rate)  # warm
    busy: list[Window] = []
    idle: list[Window] = []
    for _ in range(args.pairs):
        hold_back(node, ratio="1")
        wait_until(node, compacting=False)
        idle.append(look(node, args.seconds, args.rate))
        hold_back(node, ratio="0")
        wait_until(node, compacting=True)
        busy.append(look(node, args.seconds, args.rate))
        if idle[-1].compacted_bytes or not busy[-1].compacted_bytes:
            raise RuntimeError("compaction did not keep to its windows: give it more --updates")
    return idle, busy


def report(idle: list[Window], busy: list[Window]) -> list[str]:
    """What misses its bar is returned."""
    rested, worked = ([window.latencies_ms for window in windows] for windows in (idle, busy))
    console = Console(soft_wrap=True)
    console.print(table({"compaction held back": rested, "compaction at work": worked}))
    console.print(ratios(rested, worked))
    steps, seconds = sum(w.step_count for w in busy), sum(w.step_seconds for w in busy)
    moved = sum(w.compacted_bytes for w in busy)
    cpu = [sum(w.broker_cpu_seconds for w in windows) for windows in (idle, busy)]
    console.print(
        f"compaction moved {moved / 1e6:.1f} MB"
        f" in {steps:.0f} steps of {1000 * seconds / max(steps, 1):.2f} ms;"
        f" broker CPU {cpu[1]:.2f} s with it, {cpu[0]:.2f} s without"
    )
    return above(rested, worked, RATIOS_MAX)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--updates", type=int, default=1_000_000, help="records to compact")
    parser.add_argument("--keys", type=int, default=10_000, help="different keys among them")
    parser.add_argument("--partitions", type=int, default=50, help="of the compacted topic")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chronik-bench-") as folder:
        node = ChronikNode(Path(folder), cleaner_backoff_ms=50)
        with node:
            return end(Console(), report(*run(node, args)))


if __name__ == "__main__":
    sys.exit(main())
