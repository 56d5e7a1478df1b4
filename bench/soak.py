"""Half an hour at 70 % of the peak: do latency, memory and descriptors stay flat (`make bench-soak`)?

Apache Kafka's tool finds the peak in bulk, then writes at a share of it, while a consumer reads at the tail
and a probe sends single records with acks=all. Retention deletes meanwhile, so that the disk does not fill.
The first third is warming up; the last third is compared with the second. The exit code is 1 if a line is not
flat, or if any request failed. `--write` puts the thirds into docs/PERFORMANCE.md and draws docs/soak.svg.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.bars import end
from bench.chart import draw_soak
from bench.compare import DOCS
from bench.pages import machine, markdown, put
from bench.windows import percentile
from bench.workloads import CLIENT_OPTIONS, TOOLS, produce
from tests import java
from tests.node import ChronikNode
from tests.process import ServerProcess

TOPIC: Final = "soak"
RECORD_BYTES: Final = 256
PARTITIONS: Final = 3
SHARE: Final = 0.7
PEAK_RECORDS: Final = 2_000_000
PROBES_PER_SECOND: Final = 50
WINDOWS: Final = 30
P99_RATIO_MAX: Final = 1.5
MEMORY_RATIO_MAX: Final = 1.1
DESCRIPTORS_MORE_MAX: Final = 5
CONFIG: Final = {"retention.bytes": "500000000", "segment.bytes": "100000000"}


class Window(NamedTuple):
    p99_ms: float
    memory_mb: float
    descriptors: int


def flat(windows: Sequence[Window], errors: int, lag: int) -> list[str]:
    """What is not flat: the last third of the windows beside the third before."""
    if len(windows) < 6:
        return [f"{len(windows)} windows are too few to tell"]
    third = len(windows) // 3
    before, after = windows[third : 2 * third], windows[-third:]
    missed = []
    for what, pick, ratio_max in (
        ("p99 of a record", lambda one: one.p99_ms, P99_RATIO_MAX),
        ("memory", lambda one: one.memory_mb, MEMORY_RATIO_MAX),
    ):
        ratio = statistics.median(map(pick, after)) / statistics.median(map(pick, before))
        if ratio > ratio_max:
            missed.append(
                f"{what} grew {ratio:.2f} times from the second third to the last, more than {ratio_max}"
            )
    more = max(one.descriptors for one in after) - max(one.descriptors for one in before)
    if more > DESCRIPTORS_MORE_MAX:
        missed.append(f"{more} descriptors more in the last third than in the second")
    if errors:
        missed.append(f"{errors} requests failed")
    if lag:
        missed.append(f"the consumer missed {lag:,} records that retention had not deleted")
    return missed


class Probe:
    """Single records with acks=all at a steady rate, each timed from when it was due; retries are off."""

    def __init__(self, bootstrap: str) -> None:
        self.taken: list[float] = []
        self.errors: list[Any] = []
        self._is_over = threading.Event()
        config = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "retries": 0, "log_level": 0}
        self._producer = confluent_kafka.Producer({**config, "error_cb": self.errors.append})
        self._thread = threading.Thread(target=self._work)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def window(self) -> list[float]:
        taken, self.taken = self.taken, []
        return taken

    def _work(self) -> None:
        due = time.monotonic()
        while not self._is_over.is_set():
            due += 1 / PROBES_PER_SECOND
            time.sleep(max(0.0, due - time.monotonic()))
            self._send(due)

    def _send(self, due: float) -> None:
        def delivered(error: Any, _: Any) -> None:
            self.errors.append(error) if error else self.taken.append(1000 * (time.monotonic() - due))

        self._producer.produce("probed", b"x" * RECORD_BYTES, on_delivery=delivered)
        self._producer.flush(60)


class Reader:
    """Reads the topic at its tail; counts what it should have got and did not."""

    def __init__(self, bootstrap: str) -> None:
        self.records = 0
        self.errors: list[Any] = []
        self._is_over = threading.Event()
        config = {"bootstrap.servers": bootstrap, "group.id": "soak", "auto.offset.reset": "error"}
        self._consumer = confluent_kafka.Consumer({**config, "enable.auto.commit": False, "log_level": 0})
        self._consumer.assign([confluent_kafka.TopicPartition(TOPIC, n, 0) for n in range(PARTITIONS)])
        self._thread = threading.Thread(target=self._work)

    def start(self) -> None:
        self._thread.start()

    def stop(self, expected: int) -> int:
        """How many of so many records did not come."""
        deadline = time.monotonic() + 60
        while self.records < expected and time.monotonic() < deadline:
            time.sleep(0.1)
        self._is_over.set()
        self._thread.join()
        self._consumer.close()
        return expected - self.records

    def _work(self) -> None:
        while not self._is_over.is_set():
            for message in self._consumer.consume(5_000, 0.1):
                if message.error() is None:
                    self.records += 1
                else:
                    self.errors.append(message.error())


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def soak(node: ServerProcess, seconds: float, progress: Progress) -> tuple[list[Window], float, int, int]:
    """The windows, records a second, errors, records that did not arrive."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    wanted = [NewTopic(name, PARTITIONS, 1, config=CONFIG) for name in (TOPIC, "peak", "probed")]
    for made in admin.create_topics(wanted).values():
        made.result(60)
    peak = produce(node, "peak", PEAK_RECORDS, RECORD_BYTES, "batch.size=65536", "linger.ms=5")
    rate = int(peak * SHARE)
    count = int(rate * seconds)
    writer = subprocess.Popen(
        java.command(
            f"{TOOLS}.ProducerPerformance",
            *("--topic", TOPIC, "--num-records", str(count), "--record-size", str(RECORD_BYTES)),
            *("--throughput", str(rate), "--producer-props", f"bootstrap.servers={node.bootstrap}"),
            *("acks=1", "batch.size=65536", "linger.ms=5", "retries=0"),
            options=CLIENT_OPTIONS,
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    probe, reader = Probe(node.bootstrap), Reader(node.bootstrap)
    probe.start()
    reader.start()
    windows = []
    task = progress.add_task(f"{rate:,} records a second", total=WINDOWS)
    try:
        for _ in range(WINDOWS):
            time.sleep(seconds / WINDOWS)
            memory = node.rss_bytes() / 1e6
            windows.append(Window(percentile(probe.window(), 0.99), memory, descriptors(node.pid)))
            progress.advance(task)
        out, errors = writer.communicate(timeout=seconds + 300)
    finally:
        writer.kill()
        probe.stop()
    failed = len(probe.errors) + len(reader.errors) + errors.count("Exception")
    if f"{count} records sent" not in out:
        failed += 1
    return windows, rate, failed, reader.stop(count)


def page(windows: Sequence[Window], told: str, errors: int, lag: int) -> str:
    """Medians of each third: the first warms up, the other two are compared."""
    third = max(1, len(windows) // 3)
    rows = []
    for name, some in (
        ("first third", windows[:third]),
        ("second third", windows[third : 2 * third]),
        ("last third", windows[2 * third :]),
    ):
        p99 = statistics.median(one.p99_ms for one in some)
        memory = statistics.median(one.memory_mb for one in some)
        rows.append([name, f"{p99:.1f}", f"{memory:.0f}", str(max(one.descriptors for one in some))])
    missed = "; ".join(flat(windows, errors, lag)) or "flat"
    headings = ["", "p99 of a record, ms", "memory, MB", "descriptors"]
    return (
        f"\n{told}, {SHARE:.0%} of the peak, by `make bench-soak` on {machine()}: {errors} requests failed, "
        f"{lag:,} records did not reach the consumer. Verdict: {missed}.\n\n"
        f"{markdown(headings, rows)}\n![Soak](soak.svg)\n\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--write", action="store_true", help="put table and chart into docs/")
    options = parser.parse_args()
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        Progress(console=console, transient=True) as shown,
        ChronikNode(Path(folder), retention_check_interval_ms=1_000) as node,
    ):
        windows, rate, errors, lag = soak(node, options.minutes * 60, shown)
    table = Table(title=f"{options.minutes:g} minutes at {rate:,.0f} records a second of {RECORD_BYTES} B")
    for heading in ("window", "p99 of a record, ms", "memory, MB", "descriptors"):
        table.add_column(heading, justify="right")
    for number, one in enumerate(windows, 1):
        table.add_row(str(number), f"{one.p99_ms:.1f}", f"{one.memory_mb:.0f}", str(one.descriptors))
    console.print(table)
    console.print(f"{errors} requests failed, {lag:,} records did not reach the consumer")
    if options.write:
        told = f"{options.minutes:g} minutes at {rate:,.0f} records of {RECORD_BYTES} B a second"
        put(DOCS / "PERFORMANCE.md", "soak", page(windows, told, errors, lag))
        draw_soak(windows, DOCS / "soak.svg")
    return end(console, flat(windows, errors, lag))


if __name__ == "__main__":
    sys.exit(main())
