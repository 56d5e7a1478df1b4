"""TLS beside Apache Kafka's TLS, and ACLs on beside ACLs off (`make bench-tls`); exit 1 below an aim.

Both brokers of a pair are up, one is driven at a time, in alternating order. For TLS there are two states, as
in `bench.compare`: brokers that were just started for the round, and brokers that are warm. Apache Kafka's
own tools are the clients. CPU is the broker's alone, per million records; its ratio is Apache Kafka's figure
by chronik's, so that more is better in every line.

Guards X01, X03.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.workloads import consume, produce
from chronik.client import ClientOptions, Cluster
from chronik.client.options import parse_bootstrap
from chronik.client.security import create_acls
from chronik.security.acls import AclBinding, Operation, ResourceType
from chronik.testing import free_ports
from tests.apache import ApacheKafka
from tests.node import ChronikNode
from tests.process import HOST, ServerProcess
from tests.tls import make_certificate

AIM_TLS = 1.0
AIM_ACLS = 0.97
BULK = ("batch.size=65536", "linger.ms=5")
ALONE = ("batch.size=1", "linger.ms=0")
STARTED, WARM, ACLS = "TLS, just started", "TLS, warm", "ACLs on beside off"
Figures = dict[tuple[str, str], list[float]]
"""Ratios, one a round, by state and figure."""


@dataclass
class Side:
    """A broker as clients reach it."""

    broker: ServerProcess
    bootstrap: str
    properties: tuple[str, ...] = ()
    config: Path | None = None

    @property
    def name(self) -> str:
        return self.broker.name


def run(side: Side, figure: str, topic: str, count: int) -> tuple[float, float]:
    """Records per second, and CPU seconds of the broker per million records."""
    before = side.broker.cpu_seconds()
    if figure.startswith("consume"):
        config = () if side.config is None else ("--consumer.config", str(side.config))
        rate = consume(side, topic, count, *config)
    else:
        shape = ALONE if "one record" in figure else BULK
        rate = produce(side, topic, count, 256, *shape, *side.properties)
    return rate, (side.broker.cpu_seconds() - before) / count * 1e6


@contextlib.contextmanager
def tls_pair(folder: Path) -> Iterator[tuple[Side, Side]]:
    cert, key = make_certificate(folder)
    both = folder / "both.pem"
    both.write_text(key.read_text() + cert.read_text())
    properties = (
        "security.protocol=SSL",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={cert}",
    )
    config = folder / "client.properties"
    config.write_text("\n".join(properties) + "\n")
    ours, theirs = free_ports(2)
    chronik = ChronikNode(
        folder / "chronik",
        listeners=f"CLIENTS://{HOST}:{ours}",
        listener_security_protocol_map="CLIENTS:SSL",
        kafka_tls_cert=cert,
        kafka_tls_key=key,
    )
    kafka = ApacheKafka(
        folder / "kafka",
        **{
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": both,
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "SSL:SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        },
    )
    text = kafka.properties.read_text()
    for name in ("listeners", "advertised.listeners"):
        text = text.replace(f"\n{name}=PLAINTEXT", f"\n{name}=SSL://{HOST}:{theirs},PLAINTEXT")
    kafka.properties.write_text(text)
    with chronik, kafka:  # in this order: the sooner a port is bound, the fewer others can take it
        yield (
            Side(kafka, f"{HOST}:{theirs}", properties, config),
            Side(chronik, f"{HOST}:{ours}", properties, config),
        )


@contextlib.contextmanager
def acl_pair(folder: Path) -> Iterator[tuple[Side, Side]]:
    """Every topic has an ACL that allows the client, and one that is about somebody else."""
    off = ChronikNode(folder / "off")
    on = ChronikNode(folder / "on", authorizer=True, allow_everyone_if_no_acl_found=True)
    with off, on:
        asyncio.run(_allow(on))
        yield Side(off, off.bootstrap), Side(on, on.bootstrap)


async def _allow(node: ServerProcess) -> None:
    async with Cluster(parse_bootstrap(node.bootstrap), ClientOptions()) as cluster:
        whose = ("User:ANONYMOUS", "User:somebody")
        bindings = [
            AclBinding(
                resource_type=ResourceType.TOPIC, resource_name="*", principal=who, operation=Operation.ALL
            )
            for who in whose
        ]
        await create_acls(cluster, bindings)


def measure(
    pair: tuple[Side, Side], state: str, rounds: range, loads: dict[str, int], figures: Figures
) -> None:
    for number in rounds:
        for figure, count in loads.items():
            topic = f"{'single' if 'one record' in figure else 'bulk'}-{number}"
            found = {}
            for side in pair if number % 2 == 0 else pair[::-1]:
                found[side.bootstrap] = run(side, figure, topic, count)
            (rate, cpu), (our_rate, our_cpu) = (found[side.bootstrap] for side in pair)
            figures[state, figure].append(our_rate / rate)
            figures[state, f"{figure}, CPU"].append(cpu / our_cpu if our_cpu else 1.0)
            print(
                f"{state}, {figure}: {rate:,.0f} and {our_rate:,.0f} records/s, "
                f"{cpu:.2f} and {our_cpu:.2f} CPU s per million",
                flush=True,
            )


@contextlib.contextmanager
def in_folder(
    pair: Callable[[Path], contextlib.AbstractContextManager[tuple[Side, Side]]],
) -> Iterator[tuple[Side, Side]]:
    with tempfile.TemporaryDirectory(prefix="bench-tls-") as folder, pair(Path(folder)) as sides:
        yield sides


def table(figures: Figures, aims: dict[str, float]) -> Table:
    out = Table(title="ratios: Apache Kafka's TLS = 1, ACLs off = 1")
    for heading in ("state", "figure", "ratio", "spread", "aim"):
        out.add_column(heading)
    for (state, figure), ratios in figures.items():
        median = statistics.median(ratios)
        colour = "green" if median >= aims[state] else "red"
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        out.add_row(state, figure, f"[{colour}]{median:.2f}[/]", spread, f">= {aims[state]}")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, a tenth of the records")
    options = parser.parse_args()
    scale, rounds = (0.1, 1) if options.quick else (1.0, 2)
    loads = {
        "produce 256 B": int(1_000_000 * scale),
        "consume 256 B": int(1_000_000 * scale),
        "produce 256 B, one record per request": int(20_000 * scale),
    }
    figures: Figures = defaultdict(list)
    for number in range(rounds):
        with in_folder(tls_pair) as pair:
            measure(pair, STARTED, range(number, number + 1), loads, figures)
    with in_folder(tls_pair) as pair:
        measure(pair, WARM, range(rounds + 1), loads, figures)
    with in_folder(acl_pair) as pair:
        bulk = {"produce 256 B": int(2_000_000 * scale)}
        measure(pair, ACLS, range(2 * rounds + 1), bulk, figures)
    for (state, _), ratios in figures.items():
        if state != STARTED:
            del ratios[0]  # the round that warms up
    aims = {STARTED: AIM_TLS, WARM: AIM_TLS, ACLS: AIM_ACLS}
    Console(width=120).print(table(figures, aims))
    sys.exit(any(statistics.median(ratios) < aims[state] for (state, _), ratios in figures.items()))


if __name__ == "__main__":
    main()
