"""What is measured: Apache Kafka's own performance tools, driven the same way against either broker."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tests import java
from tests.process import ServerProcess

TOOLS = "org.apache.kafka.tools"
CLIENT_OPTIONS = ("-Xmx512m",)
"""As Apache Kafka's scripts start their tools."""
DEADLINE_S = 300


@dataclass(frozen=True)
class Workload:
    """One line of the table; `run` returns records per second."""

    name: str
    topic: str
    """How the topics begin that it writes or reads, one a round."""
    run: Callable[[ServerProcess, int], float]
    """Takes the broker and the number of the round, which has topics of its own."""
    target: float
    """The ratio to Apache Kafka that must be reached."""
    reads: bool = False
    """Whether it needs what another one wrote to its topics."""


class Reachable(Protocol):
    @property
    def bootstrap(self) -> str: ...


def produce(broker: Reachable, topic: str, count: int, size: int, *properties: str) -> float:
    output = java.run(
        f"{TOOLS}.ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--record-size", str(size), "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={broker.bootstrap}", "acks=1", *properties),
        options=CLIENT_OPTIONS,
        timeout_s=DEADLINE_S,
    )
    found = re.match(r"(\d+) records sent, ([\d.,]+) records/sec", output.lines()[-1])
    if found is None or int(found[1]) != count:
        raise java.JavaFailed(f"not every record was sent: {output.out[-500:]}")
    return float(found[2].replace(",", "."))


def consume(broker: Reachable, topic: str, count: int, *options: str) -> float:
    output = java.run(
        f"{TOOLS}.ConsumerPerformance",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--messages", str(count)),
        *("--timeout", "60000", "--hide-header", *options),
        options=CLIENT_OPTIONS,
        timeout_s=DEADLINE_S,
    )
    row = [field.strip() for field in output.lines()[-1].split(",")]
    if int(row[4]) < count:
        raise java.JavaFailed(f"{row[4]} of {count} records were read: {output.out[-500:]}")
    return float(row[9])  # records per second of fetching, without the time the group took to form


def workloads(scale: float) -> list[Workload]:
    """All of them; `scale` 1 takes some ten seconds each."""
    small, large, single = int(2_000_000 * scale), int(600_000 * scale), int(60_000 * scale)
    bulk = ("batch.size=65536", "linger.ms=5")
    alone = ("batch.size=1", "linger.ms=0")
    return [
        _producing("produce 256 B, acks=1", "bulk-256", small, 256, *bulk, target=1.1),
        _consuming("consume 256 B", "bulk-256", small),
        _producing("produce 1 KB, acks=1", "bulk-1024", large, 1024, *bulk, target=1.1),
        _consuming("consume 1 KB", "bulk-1024", large),
        _producing("produce 256 B, one record per request", "single", single, 256, *alone, target=1.2),
    ]


def _producing(name: str, topic: str, count: int, size: int, *properties: str, target: float) -> Workload:
    def run(broker: ServerProcess, number: int) -> float:
        return produce(broker, f"{topic}-{number}", count, size, *properties)

    return Workload(name, topic, run, target)


def _consuming(name: str, topic: str, count: int) -> Workload:
    def run(broker: ServerProcess, number: int) -> float:
        return consume(broker, f"{topic}-{number}", count)

    return Workload(name, topic, run, target=1.0, reads=True)
