"""The matrix: parts are merged, every cell is in the table, what misses its aim is marked and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.matrix import chosen_cells
from bench.matrix_brokers import STATES
from bench.matrix_cells import NODES, aim_of, cells
from bench.matrix_page import NOT_MEASURED, chart, is_reached, missed, page, rows_of, summary
from bench.matrix_results import Results, key
from bench.pages import with_figures

CELLS = cells(1.0)
BULK = "bulk 1 KB acks=all zstd"
PAGE = Path(__file__).parents[2] / "docs" / "PERFORMANCE.md"


def begun(path: Path, date: str = "2026-01-01") -> Results:
    results = Results.load(path)
    results.begin("a machine", f"a command of {date}", date)
    return results


def test_the_issue_s_cells_are_there() -> None:
    names = {cell.name for cell in CELLS}
    bulk = {
        f"bulk {size} acks={acks} {codec}"
        for size in ("100 B", "256 B", "1 KB", "10 KB")
        for acks in ("1", "all")
        for codec in ("none", "lz4", "zstd")
    }
    assert bulk < names
    assert len(names) == len(CELLS) == len(bulk) + 16
    assert {figure for cell in CELLS for figure in cell.figures} >= {
        "memory idle, MB",
        "memory loaded, MB",
        "broker CPU s per million records",
        "p99.9, ms",
        "transactions/s",
    }


@pytest.mark.parametrize(
    ("globs", "count"),
    [("*", len(CELLS)), ("bulk 256 B*", 6), ("start|failover", 2), ("", 0), ("no such", 0)],
)
def test_parts_are_chosen_by_globs(globs: str, count: int) -> None:
    assert len(chosen_cells(globs, CELLS)) == count


def test_a_run_replaces_the_cells_that_it_measured_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "matrix.json"
    first = begun(path)
    for pair in ((100.0, 150.0), (100.0, 170.0), (200.0, 150.0)):
        first.add("1|warm|a|records/s", pair)
        first.add("1|warm|b|records/s", pair)
    first.save()
    second = begun(path, "2026-02-02")
    second.add("1|warm|a|records/s", (10.0, 20.0))
    second.save()
    rows = Results.load(path).rows
    assert rows["1|warm|a|records/s"].pairs == [(10.0, 20.0)]
    assert rows["1|warm|a|records/s"].date == "2026-02-02"
    assert rows["1|warm|b|records/s"].ratio == 1.5
    assert rows["1|warm|b|records/s"].medians == (100.0, 150.0)


def test_a_cell_that_nobody_measured_says_so(tmp_path: Path) -> None:
    empty = begun(tmp_path / "matrix.json")
    shown = page(empty, CELLS)
    assert shown.count(NOT_MEASURED) == len(list(rows_of(empty, CELLS))) + 1
    assert missed(empty, CELLS) == []


def test_what_misses_its_aim_is_marked_named_and_explained_or_not(tmp_path: Path) -> None:
    results = begun(tmp_path / "matrix.json")
    results.add(key(1, "synced", BULK, "records/s"), (100.0, 190.0))
    results.add(key(3, "warm", BULK, "records/s"), (100.0, 190.0))
    results.add(key(1, "started", "failover", "s"), (2.0, 1.0))
    shown = page(results, CELLS)
    assert "100 / 190 = **1.90** ✗" in shown
    assert "100 / 190 = 1.90 |" in shown
    assert [line for _, line in missed(results, CELLS)] == [
        "failover, s, started, 1 nodes: 0.50, not <= 0.1",
        f"{BULK}, records/s, synced, 1 nodes: 1.90, not >= 2.0",
    ]
    assert "Without a profile yet: failover, s (started, 1)" in shown
    assert "0 of 1 | 1.90 | >= 3.0" in summary(results, CELLS)
    assert shown in with_figures(PAGE.read_text(), "matrix", shown)
    chart(results, CELLS, tmp_path / "matrix.svg")
    assert BULK in (tmp_path / "matrix.svg").read_text()


def test_every_aim_can_be_missed_and_reached() -> None:
    for cell in CELLS:
        for state in cell.states:
            for figure in cell.figures:
                aim = aim_of(cell.name, figure, state)
                if aim is not None:
                    assert {is_reached(aim, ratio) for ratio in (0.01, 100.0)} == {True, False}
    assert len(STATES) * len(NODES) > 0
