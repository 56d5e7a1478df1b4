"""What more shards carry: the same load on one shard and on several, with a load generator that costs little.

The generator sends requests that were made beforehand and only counts the bytes of the answers, so nearly all
CPU is the broker's; what it used stands in the table. Afterwards the ends of all partitions must add up to
what was acknowledged. On a machine with as many cores as shards the generator takes its share from them.
`--write` puts the figures into docs/PERFORMANCE.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench.bars import end
from bench.compare import DOCS
from bench.pages import machine, markdown, put
from chronik.client import Admin, ClientOptions, Cluster, parse_bootstrap
from chronik.client.admin import NewTopic
from chronik.client.offsets import LATEST
from chronik.model import TopicPartition
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.testing import free_ports
from tests.node import ChronikNode
from tests.process import cpu_seconds

PARTITIONS = 8
SHARDS, TIMES_MIN = 2, 1.6
"""What as many shards must carry, as a multiple of one (N01)."""
CHUNK_BYTES = 1 << 20
LOADS = {"bulk": (64, 1_000, 4), "small": (1, 100, 16)}
"""Records of a request, bytes of a record, requests under way per connection; one connection a partition."""


def produce_request(topic: str, partition: int, records: int, size: int) -> bytes:
    batch = bytes(build_batch([Record(key=None, value=b"x" * size, timestamp_ms=0)] * records))
    name = topic.encode()
    body = struct.pack(">hhih", 0, 7, 1, -1) + struct.pack(">hhi", -1, -1, 30_000)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, partition, len(batch)) + batch
    return struct.pack(">i", len(body)) + body


class Stream:
    """One connection with a fixed number of equal requests under way; all answers have the same length."""

    def __init__(self, address: tuple[str, int], request: bytes, under_way: int) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = request
        self.socket.sendall(request)
        first = self._exactly(4)
        answer = first + self._exactly(struct.unpack(">i", first)[0])
        # Head, topic count, name, partition count, index, then the error code.
        (name_bytes,) = struct.unpack_from(">h", answer, 12)
        (code,) = struct.unpack_from(">h", answer, 14 + name_bytes + 8)
        if code:
            raise RuntimeError(f"a produce request was refused with code {code}")
        self._answer_bytes = len(answer)
        self._extra = 0
        self.answered = 1
        self.socket.sendall(request * under_way)
        self.socket.setblocking(False)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += self.socket.recv(count - len(data))
        return data

    def read(self, *, go_on: bool) -> int:
        """Answers that came in; as many requests go out."""
        data = self.socket.recv(CHUNK_BYTES)
        if not data:
            raise RuntimeError("the broker closed a connection")
        done, self._extra = divmod(self._extra + len(data), self._answer_bytes)
        self.answered += done
        if go_on and done:
            self.socket.setblocking(True)
            self.socket.sendall(self._request * done)
            self.socket.setblocking(False)
        return done


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the generator is to do, as it is told on its command line."""

    topic: str
    records: int
    size: int
    leaders: list[tuple[str, int]]
    """Of each partition."""
    under_way: int
    seconds: float


def generate(plan: Plan) -> dict[str, float]:
    """Runs in a process of its own: sends for `seconds`, waits for the rest, tells what was answered."""
    streams = [
        Stream(address, produce_request(plan.topic, partition, plan.records, plan.size), plan.under_way)
        for partition, address in enumerate(plan.leaders)
    ]
    chosen = selectors.DefaultSelector()
    for stream in streams:
        chosen.register(stream.socket, selectors.EVENT_READ, stream)
    began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    until = began + plan.seconds
    counted = 0
    while (now := time.monotonic()) < until:
        for key, _ in chosen.select(until - now):
            counted += key.data.read(go_on=True)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
    wanted = sum(stream.answered for stream in streams) + len(streams) * plan.under_way
    while sum(stream.answered for stream in streams) < wanted:
        for key, _ in chosen.select(10):
            key.data.read(go_on=False)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    total = sum(stream.answered for stream in streams)
    return {"requests": counted, "seconds": seconds, "cpu": cpu, "total": total}


async def prepare(bootstrap: str, topic: str) -> list[tuple[str, int]]:
    """The leader's address of each partition."""
    async with Cluster(parse_bootstrap(bootstrap), ClientOptions()) as cluster:
        await Admin(cluster).create_topics(
            [NewTopic(name=topic, partitions=PARTITIONS, replication_factor=1)]
        )
        leaders = await cluster.leaders([TopicPartition(topic, number) for number in range(PARTITIONS)])
        nodes = (await cluster.probe()).nodes
        found = [nodes[leaders[TopicPartition(topic, number)]].address for number in range(PARTITIONS)]
        return [(address.host, address.port) for address in found]


async def stored(bootstrap: str, topic: str) -> int:
    async with Cluster(parse_bootstrap(bootstrap), ClientOptions()) as cluster:
        latest = {TopicPartition(topic, number): LATEST for number in range(PARTITIONS)}
        return sum(found.offset for found in (await Admin(cluster).offsets(latest)).values())


def shard_pids(node: ChronikNode) -> list[int]:
    files = list(node.data_dir.glob("shard-*/node.pid"))
    return [int(path.read_text()) for path in files] or [node.pid]


def ports(count: int) -> dict[str, int]:
    """First ports with room for `count` shards behind each."""
    found: list[int] = []
    while len(found) < 4:
        (port,) = free_ports(1)
        if all(abs(port - other) > count for other in found):
            found.append(port)
    return dict(zip(("kafka_port", "http_port", "wal_port", "raft_port"), found, strict=True))


def measure(shards: int, name: str, seconds: float) -> dict[str, float]:
    records, size, under_way = LOADS[name]
    with tempfile.TemporaryDirectory(prefix="chronik-shards-") as folder:
        settings: dict[str, Any] = {**ports(shards), **({"shards": shards} if shards > 1 else {})}
        node = ChronikNode(Path(folder), **settings)
        with node:
            leaders = asyncio.run(prepare(node.bootstrap, name))
            plan = Plan(
                topic=name, records=records, size=size, leaders=leaders, under_way=under_way, seconds=seconds
            )
            before = sum(map(cpu_seconds, shard_pids(node)))
            command = [sys.executable, "-m", "bench.shards", "--generate", msgspec.json.encode(plan).decode()]
            told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            used = sum(map(cpu_seconds, shard_pids(node))) - before
            assert asyncio.run(stored(node.bootstrap, name)) == told["total"] * records, "records are missing"
    return {
        "records/s": told["requests"] * records / told["seconds"],
        "brokers' CPU, s": used,
        "generator's CPU, s": told["cpu"],
        "seconds": told["seconds"],
    }


HEADINGS = ("load", "shards", "records/s", "× one", "brokers' CPU, s", "generator's CPU, s")
Best = dict[str, dict[int, dict[str, float]]]
"""Figures of the best round, by load and number of shards."""


def best_of(shards: int, rounds: int, seconds: float) -> Best:
    """One and several shards by turns."""
    best: Best = {}
    for name in LOADS:
        of_load = best[name] = {}
        for _ in range(rounds):
            for count in (1, shards):
                found = measure(count, name, seconds)
                if count not in of_load or found["records/s"] > of_load[count]["records/s"]:
                    of_load[count] = found
    return best


def times_one(of_load: dict[int, dict[str, float]], shards: int) -> float:
    return of_load[shards]["records/s"] / of_load[1]["records/s"]


def judge(best: Best) -> list[str]:
    return [
        f"{name}: {SHARDS} shards give {times:.2f} times what one gives, not {TIMES_MIN}"
        for name, of_load in best.items()
        if SHARDS in of_load and (times := times_one(of_load, SHARDS)) < TIMES_MIN
    ]


def rows(best: Best) -> list[list[str]]:
    return [
        [name, str(shards), f"{one['records/s']:,.0f}", f"{times_one(of_load, shards):.2f}"]
        + [f"{one[key]:,.1f}" for key in HEADINGS[-2:]]
        for name, of_load in best.items()
        for shards, one in of_load.items()
    ]


def page(best: Best, rounds: int) -> str:
    """The table for docs/PERFORMANCE.md."""
    records, size, _ = LOADS["bulk"]
    missed = "; ".join(judge(best)) or "reached"
    told = (
        f"The best of {rounds} rounds, measured by `make bench-shards` on {machine()}. Bulk is {records} "
        f"records of {size:,} B in a request, small is one of {LOADS['small'][1]} B. The aim, {SHARDS} "
        f"shards carry {TIMES_MIN} times what one does: {missed}."
    )
    return f"\n{told}\n\n{markdown(HEADINGS, rows(best))}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=SHARDS)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--rounds", type=int, default=3, help="one and several shards by turns; the best counts"
    )
    parser.add_argument("--write", action="store_true", help="put the figures into docs/PERFORMANCE.md")
    parser.add_argument("--generate", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.generate:
        print(json.dumps(generate(msgspec.json.decode(given.generate, type=Plan))))
        return 0
    best = best_of(given.shards, given.rounds, given.seconds)
    table = Table(*HEADINGS)
    for cells in rows(best):
        table.add_row(*cells)
    console = Console(width=120)
    console.print(table)
    if given.write:
        put(DOCS / "PERFORMANCE.md", "shards", page(best, given.rounds))
    return end(console, judge(best))


if __name__ == "__main__":
    sys.exit(main())
