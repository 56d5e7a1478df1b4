"""Tables with bars for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chronik.cli.client import print_table
from chronik.words import human_bytes

if TYPE_CHECKING:
    from chronik.spark.jobs.stats import Stats

BAR_CELLS: Final = 30
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def bar(value: float, largest: float) -> str:
    """A bar of up to BAR_CELLS characters, exact to an eighth of one."""
    eighths = round(BAR_CELLS * 8 * value / largest) if largest else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def print_hours(found: Stats) -> None:
    largest = max((each.records for each in found.hours), default=0)
    print_table(
        ["topic", "hour (UTC)", "#records", "", "#size", "#keys", "#tombstones"],
        [
            [
                each.topic,
                f"{each.hour:%Y-%m-%d %H:00}",
                f"{each.records:,}",
                bar(each.records, largest),
                human_bytes(each.size_bytes),
                f"~{each.keys:,}",
                f"{each.tombstones:,}",
            ]
            for each in found.hours
        ],
    )
    if found.lags:
        most = max(each.lag for each in found.lags)
        print_table(
            ["group", "topic", "#lag", ""],
            [[each.group, each.topic, f"{each.lag:,}", bar(each.lag, most)] for each in found.lags],
        )
