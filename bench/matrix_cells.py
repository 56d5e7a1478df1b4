"""The cells of the matrix: what is measured, in which states, and how good is good enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from bench import matrix_loads as loads
from bench.matrix_brokers import STATES, Side

SIZES: Final = ((100, "100 B"), (256, "256 B"), (1_024, "1 KB"), (10_240, "10 KB"))
NODES: Final = (1, 3)
P99_MAX: Final = 0.5
MEMORY_MAX: Final = 0.35
START_MAX: Final = 0.3
FAILOVER_MAX: Final = 0.1

Run = Callable[[Side, str], loads.Found]
"""Takes the brokers and the beginning of the names of topics of its own."""


class Cell(NamedTuple):
    name: str
    run: Run
    figures: tuple[str, ...]
    """What `run` gives; a cell that was not measured is named by them."""
    states: tuple[str, ...]
    starts: bool = False
    """It is given brokers that are prepared and not started."""


RATE: Final = ("records/s",)
RATE_AND_CPU: Final = ("records/s", "broker CPU s per million records")
BULK: Final = (*RATE_AND_CPU, "memory loaded, MB")
LATENCY: Final = ("p50, ms", "p99, ms", "p99.9, ms")


def start(side: Side, topic: str) -> loads.Found:
    began = time.monotonic()
    side.start()
    side.create(topic)
    loads.send(side.producer(), topic)
    taken = time.monotonic() - began
    return {"to the first record acks=all, s": taken, "memory idle, MB": side.rss_mb()}


def cells(scale: float) -> list[Cell]:
    """All of them; at `scale` 1 most take about ten seconds for a kind of broker."""
    every = tuple(STATES)
    out = [
        Cell(
            "start", start, ("to the first record acks=all, s", "memory idle, MB"), ("started",), starts=True
        ),
        Cell("failover", loads.failover, ("s",), ("started",)),
    ]
    for size, named in SIZES:
        for acks in ("1", "all"):
            for codec in ("none", "lz4", "zstd"):
                run = partial(loads.bulk, size=size, acks=acks, codec=codec, scale=scale)
                out.append(Cell(f"bulk {named} acks={acks} {codec}", run, BULK, every))
    for under_way in (1, 5, 128):
        run = partial(loads.alone, under_way=under_way, scale=scale)
        out.append(Cell(f"one record per request, {under_way} under way", run, RATE_AND_CPU, every))
    for size, named in ((256, "256 B"), (1_024, "1 KB")):
        cold = partial(loads.consume_cold, size=size, scale=scale)
        out.append(Cell(f"consume cold {named}", cold, RATE_AND_CPU, every))
        tail = partial(loads.consume_tail, size=size, scale=scale)
        out.append(Cell(f"consume at the tail {named}", tail, RATE, every))
    seconds = max(2.0, 15 * scale)
    for rate in (1_000, 10_000):
        paced = partial(loads.end_to_end, rate=rate, seconds=seconds)
        out.append(Cell(f"end to end at {rate:,}/s", paced, LATENCY, every))
    out += [
        Cell("16 consumers of one log", partial(loads.consumers, count=16, scale=scale), RATE, every),
        Cell("transactions", partial(loads.transactions, seconds=seconds), ("transactions/s",), every),
        Cell("group join of 10", partial(loads.group_join, members=10), ("s",), every),
        Cell(
            "topic creation",
            partial(loads.topics, count=max(5, int(30 * scale))),
            ("one, p50, ms", "one, p99, ms", "100 at once, s"),
            every,
        ),
        Cell(
            "128 threads of kafka-python",
            partial(loads.threads, seconds=seconds),
            ("records/s", "p99, ms"),
            every,
        ),
    ]
    return out


def is_rate(figure: str) -> bool:
    return figure.endswith("/s")


def aim_of(cell: str, figure: str, state: str) -> tuple[str, float] | None:
    """A sign and the ratio to Apache Kafka that is aimed at; None for a figure that only informs."""
    if cell == "start":
        return "<=", MEMORY_MAX if figure.startswith("memory") else START_MAX
    if cell == "failover":
        return "<=", FAILOVER_MAX
    if figure.startswith("memory"):
        return "<=", MEMORY_MAX
    if figure.startswith(("p99", "one, p99")):
        return "<=", P99_MAX
    if "CPU" in figure:
        return None
    rate_min = STATES[state].rate_min
    return (">=", rate_min) if is_rate(figure) else ("<=", round(1 / rate_min, 2))
