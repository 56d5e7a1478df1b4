"""What each WAL profile costs and saves (S20).

For every profile a node of its own: one record at a time, records of many writers at once, and topics created
one by one; all acknowledged by the disk. Rounds a second show what is saved: with `medium` and `low` the same
load needs fewer syncs. The exit code is 1 if a profile is slower than it may be. `--write` puts the figures
into docs/OPERATIONS.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.pages import markdown, put
from chronik.client import Admin, ClientOptions, Cluster, Producer, parse_bootstrap
from chronik.client.admin import NewTopic
from chronik.storage.wal import PROFILES
from tests.node import ChronikNode

PAGE = Path(__file__).parents[1] / "docs" / "OPERATIONS.md"
BENCH = "bench-profiles"
WRITERS = 32
VALUE = b"x" * 256
ONE_RECORD, TOPIC_CREATION = "one record p50, ms", "topic creation p50, ms"
BARS_MS = {
    "ultra": {ONE_RECORD: 2, TOPIC_CREATION: 5},
    "high": {ONE_RECORD: 5, TOPIC_CREATION: 10},
    "medium": {ONE_RECORD: 10, TOPIC_CREATION: 20},
    "low": {ONE_RECORD: 20, TOPIC_CREATION: 50},
}
"""What each profile may take (S20)."""


async def timed(work: Callable[[int], Awaitable[object]], count: int, first: int = 0) -> list[float]:
    """Milliseconds of each call, one after the other."""
    took = []
    for number in range(first, first + count):
        began = time.perf_counter()
        await work(number)
        took.append((time.perf_counter() - began) * 1000)
    return took


async def measure(node: ChronikNode, count: int) -> dict[str, float]:
    async with Cluster(parse_bootstrap(node.bootstrap), ClientOptions()) as cluster, Producer(cluster) as one:
        admin = Admin(cluster)

        async def create(number: int) -> None:
            await admin.create_topics([NewTopic(name=f"topic-{number}", partitions=1)])

        async def send(_number: int) -> None:
            await (await one.send("single", VALUE, partition=0))

        topics = await timed(create, count)
        await admin.create_topics(
            [NewTopic(name="single", partitions=1), NewTopic(name="many", partitions=WRITERS)]
        )
        await timed(send, 20)
        single = await timed(send, count)

        async def writer(partition: int) -> list[float]:
            async def send_here(_number: int) -> None:
                await (await one.send("many", VALUE, partition=partition))

            return await timed(send_here, count)

        rounds, began = wal_rounds(node), time.perf_counter()
        many = sorted(itertools.chain(*await asyncio.gather(*map(writer, range(WRITERS)))))
        seconds = time.perf_counter() - began
        return {
            ONE_RECORD: statistics.median(single),
            f"{WRITERS} writers p50, ms": statistics.median(many),
            f"{WRITERS} writers p99, ms": many[int(len(many) * 0.99)],
            "records/s": len(many) / seconds,
            "rounds/s": (wal_rounds(node) - rounds) / seconds,
            TOPIC_CREATION: statistics.median(topics),
        }


def wal_rounds(node: ChronikNode) -> float:
    url = f"http://127.0.0.1:{node.settings['http_port']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("chronik_wal_round_seconds_count"):
                return float(line.split()[-1])
    raise LookupError("the node counts no WAL rounds")


def missed(profile: str, found: dict[str, float]) -> list[str]:
    """Figures of a profile that are above their bars."""
    bars = BARS_MS[profile].items()
    return [
        f"{profile}: {name} {found[name]:.2f}, not below {bar}" for name, bar in bars if found[name] >= bar
    ]


def shown(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def figures(results: dict[str, dict[str, float]]) -> str:
    headings = ["profile", *next(iter(results.values()))]
    return markdown(headings, [[profile, *map(shown, found.values())] for profile, found in results.items()])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="calls of each kind")
    parser.add_argument("--write", action="store_true", help=f"put the figures into {PAGE.name}")
    options = parser.parse_args()
    table = Table(title="WAL profiles")
    table.add_column("profile")
    misses: list[str] = []
    results: dict[str, dict[str, float]] = {}
    for place, profile in enumerate(PROFILES):
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            node = ChronikNode(Path(folder), wal_profile=profile)
            try:
                node.start()
                found = asyncio.run(measure(node, options.count))
            finally:
                node.kill()
        if place == 0:
            for heading in found:
                table.add_column(heading, justify="right")
        misses += missed(profile, found)
        results[profile] = found
        table.add_row(profile, *map(shown, found.values()))
    console = Console()
    console.print(table)
    if options.write:
        put(PAGE, BENCH, figures(results))
    for miss in misses:
        console.print(f"[red]missed: {miss}[/red]")
    return int(bool(misses))


if __name__ == "__main__":
    sys.exit(main())
