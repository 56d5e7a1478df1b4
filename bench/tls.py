"""TLS beside Apache Kafka's TLS, and ACLs on beside ACLs off (`make bench-tls`); exit 1 below an aim.

Both brokers of a pair are up, one is driven at a time, in alternating order. For TLS there are two states, as
in `bench.compare`: brokers that were just started for the round of a load (with the reading of what it
wrote), and brokers that are warm. Apache Kafka acknowledges before it syncs and chronik does not, so warm
brokers are also measured at equal durability, both ways: Apache Kafka syncs each write too, and neither syncs
before it acknowledges (chronik's topics have `flush.ms=1000`). Apache Kafka's own tools are the clients. CPU
is the broker's alone, per million records; its ratio is Apache Kafka's figure by chronik's, so that more is
better in every line.

Before the warm brokers are driven, each holds idle TLS connections, and it is told what one costs: with
nothing but a handshake and a small request behind it, and after a large request that was refused. A JVM takes
memory from the system in large steps, so Apache Kafka's figure is a rough one.

`--write` puts the figures into docs/PERFORMANCE.md.

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
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.bars import end
from bench.compare import DOCS, SYNCED, make_relaxed
from bench.pages import machine, markdown, put
from bench.workloads import consume, produce
from chronik.client import ClientOptions, Cluster
from chronik.client.apis import Api
from chronik.client.connection import Connection
from chronik.client.options import parse_bootstrap
from chronik.client.security import create_acls
from chronik.security.acls import AclBinding, Operation, ResourceType
from chronik.server.tls import client_context
from chronik.testing import free_ports
from chronik.wire.api import ApiKey
from tests.apache import ApacheKafka
from tests.node import ChronikNode
from tests.process import HOST, ServerProcess
from tests.tls import make_certificate

AIM_TLS = 1.0
IDLE_KIB_MAX = {"a small request": 32, "a refused produce of 1 MB": 64}
"""Most that an idle TLS connection may hold after each of these."""
IDLE_CONNECTIONS = 200
AIM_ACLS = 0.97
BULK = ("batch.size=65536", "linger.ms=5")
ALONE = ("batch.size=1", "linger.ms=0")
STARTED, WARM, ACLS = "TLS, just started", "TLS, warm", "ACLs on beside off"
BOTH_SYNC, NEITHER_SYNCS = "TLS, warm, both sync", "TLS, warm, neither syncs"
AIMS = {STARTED: AIM_TLS, WARM: AIM_TLS, BOTH_SYNC: AIM_TLS, NEITHER_SYNCS: AIM_TLS, ACLS: AIM_ACLS}
REFUSED: dict[str, Any] = {
    "acks": 1,
    "timeout": 10_000,
    "topic_data": [{"name": "missing", "partition_data": [{"index": 0, "records": bytes(1_000_000)}]}],
}
"""A large request for a topic that is not there."""
Figures = dict[tuple[str, str], list[float]]
"""Ratios, one a round, by state and figure."""
Idle = dict[str, tuple[float, float]]
"""KiB of an idle connection, Apache Kafka's and ours, by what it was used for."""


@dataclass
class Side:
    """A broker as clients reach it."""

    broker: ServerProcess
    bootstrap: str
    properties: tuple[str, ...] = ()
    config: Path | None = None
    cert: Path | None = None
    """That of its listener with TLS."""

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
def tls_pair(folder: Path, **kafka_settings: Any) -> Iterator[tuple[Side, Side]]:
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
            **kafka_settings,
        },
    )
    text = kafka.properties.read_text()
    for name in ("listeners", "advertised.listeners"):
        text = text.replace(f"\n{name}=PLAINTEXT", f"\n{name}=SSL://{HOST}:{theirs},PLAINTEXT")
    kafka.properties.write_text(text)
    with chronik, kafka:  # in this order: the sooner a port is bound, the fewer others can take it
        yield (
            Side(kafka, f"{HOST}:{theirs}", properties, config, cert),
            Side(chronik, f"{HOST}:{ours}", properties, config, cert),
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


async def idle_kib(side: Side, *, after_bulk: bool) -> float:
    """What the broker grows by with one more idle connection; the first ones warm the allocator."""
    tls = client_context(side.cert)
    async with contextlib.AsyncExitStack() as stack:

        async def one() -> None:
            options = ClientOptions(tls=tls, request_timeout_ms=60_000)
            connection = await Connection.open(parse_bootstrap(side.bootstrap)[0], options)
            stack.callback(connection.close)
            if after_bulk:
                await connection.request(Api(ApiKey.PRODUCE, 9, 9), REFUSED)

        for _ in range(IDLE_CONNECTIONS // 4):
            await one()
        before = side.broker.rss_bytes()
        for _ in range(IDLE_CONNECTIONS):
            await one()
        return (side.broker.rss_bytes() - before) / 1024 / IDLE_CONNECTIONS


def measure_idle(pair: tuple[Side, Side]) -> Idle:
    found: Idle = {}
    for after in IDLE_KIB_MAX:
        theirs, ours = (asyncio.run(idle_kib(side, after_bulk="1 MB" in after)) for side in pair)
        found[after] = theirs, ours
        print(f"idle TLS connection after {after}: {theirs:.0f} and {ours:.0f} KiB", flush=True)
    return found


def topic_of(figure: str, number: int) -> str:
    return f"{'single' if 'one record' in figure else 'bulk'}-{number}"


def relax(side: Side, loads: dict[str, int], rounds: range) -> None:
    """Makes the topics of all rounds as those that acknowledge writes before they are synced."""
    topics = dict.fromkeys(topic_of(figure, number) for number in rounds for figure in loads)
    client = {
        "bootstrap.servers": side.bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": str(side.cert),
    }
    make_relaxed(topics, client)


def measure(
    pair: tuple[Side, Side], state: str, rounds: range, loads: dict[str, int], figures: Figures
) -> None:
    for number in rounds:
        for figure, count in loads.items():
            topic = topic_of(figure, number)
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


def table(figures: Figures) -> Table:
    out = Table(title="ratios: Apache Kafka's TLS = 1, ACLs off = 1")
    for heading in ("state", "figure", "ratio", "spread", "aim"):
        out.add_column(heading)
    for (state, figure), ratios in figures.items():
        median = statistics.median(ratios)
        colour = "green" if median >= AIMS[state] else "red"
        out.add_row(state, figure, f"[{colour}]{median:.2f}[/]", spread(ratios), f">= {AIMS[state]}")
    return out


def spread(ratios: list[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def marked(shown: str, is_reached: bool) -> str:
    return shown if is_reached else f"**{shown}** ✗"


def judge(figures: Figures, idle: Idle) -> list[str]:
    """What misses its aim."""
    return [
        f"an idle TLS connection after {after}: {ours:.0f} KiB, aim <= {IDLE_KIB_MAX[after]}"
        for after, (_, ours) in idle.items()
        if ours > IDLE_KIB_MAX[after]
    ] + [
        f"{state}, {figure}"
        for (state, figure), ratios in figures.items()
        if statistics.median(ratios) < AIMS[state]
    ]


def page(figures: Figures, idle: Idle, rounds: int) -> str:
    """Both tables for docs/PERFORMANCE.md. What misses its aim is marked."""
    rows = []
    for (state, figure), ratios in figures.items():
        median = statistics.median(ratios)
        shown = marked(f"{median:.2f}", median >= AIMS[state])
        rows.append([f"{state}: {figure}", shown, spread(ratios), f">= {AIMS[state]}"])
    held = [
        [
            after,
            f"{theirs:.0f}",
            marked(f"{ours:.0f}", ours <= IDLE_KIB_MAX[after]),
            f"<= {IDLE_KIB_MAX[after]}",
        ]
        for after, (theirs, ours) in idle.items()
    ]
    told = (
        f"Medians of {rounds} pairs, measured by `make bench-tls` on {machine()}; ✗ marks what misses its "
        "aim. Ratios are to Apache Kafka's TLS, and of ACLs on to ACLs off; CPU counts the other way round, "
        "so that more is better everywhere."
    )
    ratios_table = markdown(["figure", "ratio", "spread", "aim"], rows)
    headings = ["an idle TLS connection after", "Apache Kafka 4.1, KiB", "chronik, KiB", "aim"]
    return f"\n{told}\n\n{ratios_table}\n{markdown(headings, held)}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the records")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of each figure; the median counts")
    parser.add_argument("--only", choices=tuple(AIMS), help="one part of the table")
    parser.add_argument("--write", action="store_true", help="put the figures into docs/PERFORMANCE.md")
    options = parser.parse_args()
    if options.write and options.only:
        parser.error("the page has every part of the table: no --only")
    scale, rounds = 0.1 if options.quick else 1.0, options.rounds
    bulk = {"produce 256 B": int(1_000_000 * scale), "consume 256 B": int(1_000_000 * scale)}
    single = {"produce 256 B, one record per request": int(20_000 * scale)}
    figures: Figures = defaultdict(list)
    idle: Idle = {}
    if options.only in (None, STARTED):
        for number in range(rounds):
            for loads in (bulk, single):
                with in_folder(tls_pair) as pair:
                    measure(pair, STARTED, range(number, number + 1), loads, figures)
    if options.only in (None, WARM):
        with in_folder(tls_pair) as pair:
            idle = measure_idle(pair)
            measure(pair, WARM, range(rounds + 1), bulk | single, figures)
    if options.only in (None, BOTH_SYNC):
        with in_folder(partial(tls_pair, **SYNCED)) as pair:
            measure(pair, BOTH_SYNC, range(rounds + 1), bulk | single, figures)
    if options.only in (None, NEITHER_SYNCS):
        with in_folder(tls_pair) as pair:
            relax(pair[1], bulk | single, range(rounds + 1))
            measure(pair, NEITHER_SYNCS, range(rounds + 1), bulk | single, figures)
    if options.only in (None, ACLS):
        with in_folder(acl_pair) as pair:
            acls = {"produce 256 B": int(2_000_000 * scale)}
            measure(pair, ACLS, range(2 * rounds + 1), acls, figures)
    for (state, _), ratios in figures.items():
        if state != STARTED:
            del ratios[0]  # the round that warms up
    console = Console(width=120)
    console.print(table(figures))
    if options.write:
        put(DOCS / "PERFORMANCE.md", "tls", page(figures, idle, rounds))
    return end(console, judge(figures, idle))


if __name__ == "__main__":
    sys.exit(main())
