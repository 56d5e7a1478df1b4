"""The figures of three nodes beside their rows and bars: the table that `bench.cluster` prints, and the one
on the page.

Of the steady rate by Apache Kafka's tool the p50 is shown without a bar: the tool tells whole milliseconds,
too coarse for a ratio of one or two. The same load by librdkafka has the bar.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Final, NamedTuple

from rich.table import Table

from bench.bars import verdict
from bench.cluster_dead import REFUSED, STALL
from bench.cluster_inside import BESIDE_DATA, DIFFERING, STAGES, ULTRA, WATERMARK
from bench.pages import machine, markdown

__all__ = ["AIMS", "QUORUM", "Figures", "below_aim", "page", "table", "unjudged"]

Figures = dict[str, dict[str, list[float]]]
"""Figure -> cluster -> one value a round."""
QUORUM: Final = "first acks=all after the quorum is up, s"


class Aim(NamedTuple):
    row: str
    """Of the requirements; empty where it is this project's own."""
    bar: str
    """A sign and a limit; a limit that ends in x is one for the ratio to Apache Kafka."""
    wish: str = ""
    """What is aimed at beyond the bar; missing it is shown, and no failure."""


def _stage(stage: str, share: str = "p50 ms") -> str:
    return f"{STAGES[stage]}, {share}"


AIMS: Final = {
    "one message acks=all, p50 ms": Aim("S02", "< 10"),
    "one message acks=all, p99 ms": Aim("S02", "< 20"),
    STALL: Aim("S02", "< 1.5"),
    REFUSED: Aim("S02", "< 20"),
    "128 threads acks=all, msg/s": Aim("S03", "> 652"),
    "128 threads acks=all, p50 ms": Aim("S03", "< 86"),
    "128 threads acks=all, p95 ms": Aim("S03", "< 200"),
    "128 threads acks=all, p99 ms": Aim("S03", "< 260"),
    "128 threads acks=all, failed": Aim("S03", "0"),
    "128 sends by librdkafka acks=all, msg/s": Aim("S03", ">= 15000", ">= 20000"),
    "128 sends by librdkafka acks=all, p99 ms": Aim("S03", "< 20", "< 15"),
    "128 sends by librdkafka acks=all, failed": Aim("S03", "0"),
    QUORUM: Aim("S07", "< 2"),
    _stage("wal"): Aim("S06", "< 1"),
    _stage("sent"): Aim("S06", "< 2"),
    _stage("followers"): Aim("S06", "< 5"),
    _stage("applied", "p99 ms"): Aim("S06", "< 10"),
    _stage("followers", "p99 ms"): Aim("S06, S16", "< 10"),
    BESIDE_DATA: Aim("S16", "< 50"),
    f"{ULTRA}, p50 ms": Aim("S17", "<= 2"),
    f"{ULTRA}, p99 ms": Aim("S17", "< 10"),
    "auto-create and produce, p50 ms": Aim("S12", "< 50"),
    "topic named by every node, p99 ms": Aim("S14", "< 100"),
    "100 topics at once, named by every node, s": Aim("S14", "< 5", "< 1"),
    "100 topics in a request, topics/s": Aim("S21", "> 200"),
    "create one topic, mean ms": Aim("S21", "< 10"),
    "consumed of what acks=1 took, %": Aim("S24", "100"),
    WATERMARK: Aim("S25", "< 10"),
    "long poll answered after the commit, p50 ms": Aim("S26", "< 2"),
    "bulk 256 B acks=1, msg/s": Aim("", ">= 1.2x"),
    "bulk 256 B acks=all, msg/s": Aim("", ">= 1.2x"),
    "1,000 msg/s acks=all, p99 ms": Aim("", "<= 0.5x"),
    "1,000 msg/s acks=all by librdkafka, p50 ms": Aim("", "<= 0.5x"),
    "1,000 msg/s acks=all by librdkafka, p99 ms": Aim("", "<= 0.5x"),
    "pause when a leader is killed, s": Aim("", "< 1.5"),
    DIFFERING: Aim("S15", "0"),
}


ELSEWHERE: Final = (
    "S05 (produce beside the search indexer) is measured by make bench-query, S20 (WAL profiles) by make "
    "bench-profiles, L05 and T33 by make bench-partitions, T32 by make bench-history"
)


class Line(NamedTuple):
    """A figure with what it is held against."""

    figure: str
    aim: Aim
    kafka: float | None
    own: float | None
    """Medians."""

    @property
    def ratio(self) -> float | None:
        return self.own / self.kafka if self.own is not None and self.kafka else None

    @property
    def is_reached(self) -> bool | None:
        """None without a bar, or where nothing was measured that it could judge."""
        return verdict(self.aim.bar, self.own, self.ratio) if self.aim.bar and self.own is not None else None

    @property
    def is_wished(self) -> bool | None:
        return verdict(self.aim.wish, self.own) if self.aim.wish and self.own is not None else None


def lines(figures: Figures) -> Iterator[Line]:
    """In the order of `AIMS`; figures without a bar come last."""
    order = list(AIMS)
    for figure in sorted(figures, key=lambda name: order.index(name) if name in AIMS else len(order)):
        middle = {kind: statistics.median(found) for kind, found in figures[figure].items() if found}
        yield Line(figure, AIMS.get(figure, Aim("", "")), middle.get("kafka"), middle.get("chronik"))


def below_aim(figures: Figures) -> list[str]:
    """Figures that reach their bar, or not, and miss what is aimed at beyond it."""
    return [
        f"{line.figure} {line.aim.wish}: {line.own:,.2f}"
        for line in lines(figures)
        if line.is_wished is False
    ]


def unjudged(figures: Figures) -> list[str]:
    """Figures with a bar for the ratio to Apache Kafka, which was not measured."""
    return [
        f"{line.figure} {line.aim.bar}: Apache Kafka was not measured"
        for line in lines(figures)
        if line.own is not None and line.aim.bar and line.is_reached is None
    ]


def shown(value: float | None) -> str:
    return "" if value is None else f"{value:,.{0 if value >= 100 else 2}f}"


def table(figures: Figures) -> tuple[Table, list[str]]:
    """All figures, and the names of those that miss their bar."""
    out = Table(title="three nodes of chronik beside three of Apache Kafka 4.1", caption=ELSEWHERE)
    out.add_column("row")
    out.add_column("figure")
    for heading in ("Apache Kafka", "chronik", "ratio", "bar (or red)", "aim (or yellow)"):
        out.add_column(heading, justify="right")
    missed = []
    for line in lines(figures):
        if line.is_reached is False:
            missed.append(line.figure)
        wish = line.aim.wish
        if line.is_wished is not None:
            wish = f"[{'green' if line.is_wished else 'yellow'}]{wish}[/]"
        out.add_row(
            line.aim.row,
            line.figure,
            shown(line.kafka),
            shown(line.own),
            "" if line.ratio is None else f"{line.ratio:.2f}",
            line.aim.bar,
            wish,
            style="" if line.is_reached is None else "green" if line.is_reached else "red",
        )
    return out, missed


def page(figures: Figures, rounds: int) -> str:
    """The same table for docs/PERFORMANCE.md. Figures that miss their bar or aim are marked."""
    rows = []
    for line in lines(figures):
        own = shown(line.own)
        row = f" ({line.aim.row})" if line.aim.row else ""
        rows.append(
            [
                line.figure + row,
                shown(line.kafka),
                f"**{own}** ✗" if line.is_reached is False else own,
                "" if line.ratio is None else f"{line.ratio:.2f}",
                line.aim.bar,
                f"{line.aim.wish} ✗" if line.is_wished is False else line.aim.wish,
            ]
        )
    told = (
        f"Medians of {rounds} rounds, measured by `make bench-cluster` on {machine()}; ✗ marks what misses "
        "its bar or its aim. Apache Kafka's tool tells the p50 of 1,000 msg/s in whole milliseconds, so that "
        "librdkafka's has the bar."
    )
    headings = ["figure", "Apache Kafka 4.1", "chronik", "ratio", "bar", "aim"]
    return f"\n{told}\n\n{markdown(headings, rows)}\n"
