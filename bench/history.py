"""Does a producer notice that others read history (T32)? Its latencies in windows with readers and without.

A topic is filled with far more than the node keeps in memory. Consumers in a process of their own read it
from its start to its end, over and over, as quickly as they get it. A probe sends one small record at a time,
at a steady rate, to another topic with acks=all. The exit code is 1 if a ratio misses its bar.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console

from bench.bars import end
from bench.windows import PROBED, Latencies, above, arguments, measure, ratios, table
from tests.node import ChronikNode

DEADLINE_S = 120
HISTORY = "history"
RECORD_BYTES = 1_000
RATIOS_MAX = {0.5: 3.0, 0.99: 5.0}
"""How many times as long a record may take while history is read (T32): medians of neighbouring windows, by
share. The readers take a whole processor beside the node's, so on two cores some of it is theirs."""


def fill(node: ChronikNode, megabytes: int, partitions: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 5})
    value = bytes(range(250)) * (RECORD_BYTES // 250)
    for number in range(megabytes * 1_000_000 // RECORD_BYTES):
        while True:
            try:
                producer.produce(HISTORY, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(DEADLINE_S):
        raise RuntimeError("not everything was written")


def read_history(
    bootstrap: str, partitions: int, go: Event, is_over: Event, read_bytes: Synchronized[int]
) -> None:
    """Read everything, and again from the start, whenever `go` is set."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "history", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer({**settings, "enable.partition.eof": True})
    starts = [confluent_kafka.TopicPartition(HISTORY, number, 0) for number in range(partitions)]
    consumer.assign(starts)
    is_reading = True
    while not is_over.is_set():
        if is_reading is not go.is_set():
            is_reading = go.is_set()
            (consumer.resume if is_reading else consumer.pause)(starts)
        for message in consumer.consume(1_000, 0.05):
            if message.error() is None:
                with read_bytes.get_lock():
                    read_bytes.value += len(message.value() or b"")
            else:
                consumer.seek(confluent_kafka.TopicPartition(HISTORY, message.partition() or 0, 0))
    consumer.close()


def run(node: ChronikNode, args: argparse.Namespace) -> tuple[list[Latencies], list[Latencies], float]:
    """Latencies of the windows without readers and with them, and how much a second those read."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    topics = [NewTopic(HISTORY, args.partitions, 1), NewTopic(PROBED, 1, 1)]
    for made in admin.create_topics(topics).values():
        made.result(DEADLINE_S)
    fill(node, args.megabytes, args.partitions)
    context = multiprocessing.get_context("spawn")
    go, is_over, read_bytes = context.Event(), context.Event(), context.Value("q", 0)
    reader = context.Process(
        target=read_history, args=(node.bootstrap, args.partitions, go, is_over, read_bytes)
    )
    reader.start()
    quiet: list[Latencies] = []
    busy: list[Latencies] = []
    try:
        measure(node, args.seconds, args.rate)  # warm
        for _ in range(args.pairs):
            go.clear()
            measure(node, 1.0, args.rate)  # what was asked for before comes in
            before = read_bytes.value
            quiet.append(measure(node, args.seconds, args.rate))
            if read_bytes.value - before > args.megabytes * 10_000:
                raise RuntimeError("the readers did not rest in their pause")
            go.set()
            busy.append(measure(node, args.seconds, args.rate))
    finally:
        is_over.set()
        reader.join()
    return quiet, busy, read_bytes.value / (args.pairs * args.seconds)


def report(quiet: list[Latencies], busy: list[Latencies], bytes_per_second: float) -> list[str]:
    """What misses its bar is returned."""
    console = Console(soft_wrap=True)
    console.print(table({"nobody reads history": quiet, "history is read": busy}))
    console.print(f"{ratios(quiet, busy)}; history was read at {bytes_per_second / 1e6:.0f} MB/s")
    missed = [] if bytes_per_second else ["no history was read"]
    return missed + above(quiet, busy, RATIOS_MAX)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--megabytes", type=int, default=1_000, help="of history")
    parser.add_argument("--partitions", type=int, default=6, help="of the topic with the history")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chronik-bench-") as folder:
        node = ChronikNode(Path(folder))
        with node:
            return end(Console(), report(*run(node, args)))


if __name__ == "__main__":
    sys.exit(main())
