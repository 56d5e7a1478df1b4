"""Windows in which something is at work, and windows in which it rests, by turns: does a producer notice?

A probe sends one small record at a time with acks=all, at a steady rate, to a topic of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import struct
import time
from collections.abc import Mapping

from rich.table import Table

from chronik.records.reader import Record
from chronik.records.writer import build_batch
from tests.crash.load import produce_answer, produce_frame
from tests.node import ChronikNode
from tests.process import HOST

PROBED = "probed"
VALUE_BYTES = 256
Latencies = list[float]
"""Of one window, in ms."""


def percentile(values: list[float], share: float) -> float:
    if not values:
        raise ValueError("a percentile of no samples")
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser that knows what describes windows."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=8, help="windows of each kind")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a window")
    parser.add_argument("--rate", type=float, default=200.0, help="records a second")
    return parser


def measure(node: ChronikNode, seconds: float, rate: float) -> Latencies:
    return asyncio.run(_probe(node, seconds, rate))


async def _probe(node: ChronikNode, seconds: float, rate: float) -> Latencies:
    """One that is late does not hold up the schedule of the others."""
    reader, writer = await asyncio.open_connection(HOST, node.kafka_port)
    batch = bytes(build_batch([Record(key=None, value=b"x" * VALUE_BYTES, timestamp_ms=1)]))
    found: Latencies = []
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


def table(kinds: dict[str, list[Latencies]]) -> Table:
    """All windows of each kind."""
    out = Table(title="produce latency, one record at a time (ms)")
    for column in ("", "p50", "p99", "p50 of windows", "p99 of windows"):
        out.add_column(column)
    for name, windows in kinds.items():
        every = [one for window in windows for one in window]
        out.add_row(
            name,
            *(f"{percentile(every, share):.2f}" for share in (0.5, 0.99)),
            *(spread([percentile(window, share) for window in windows]) for share in (0.5, 0.99)),
        )
    return out


def ratios(rested: list[Latencies], worked: list[Latencies]) -> str:
    """Of windows that are neighbours."""
    found = []
    for share in (0.5, 0.99):
        pairs = zip(rested, worked, strict=True)
        found.append(spread([percentile(busy, share) / percentile(idle, share) for idle, busy in pairs]))
    return f"ratio of neighbouring windows: p50 {found[0]}, p99 {found[1]}"


def above(rested: list[Latencies], worked: list[Latencies], limits: Mapping[float, float]) -> list[str]:
    """Complaints about ratios of neighbouring windows, by share, whose median is above its limit."""
    out = []
    for share, limit in limits.items():
        pairs = zip(rested, worked, strict=True)
        ratio = statistics.median(percentile(busy, share) / percentile(idle, share) for idle, busy in pairs)
        if ratio > limit:
            out.append(f"p{share * 100:.0f} is {ratio:.2f} times that of its neighbour, more than {limit}")
    return out
