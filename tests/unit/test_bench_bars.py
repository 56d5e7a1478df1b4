"""The benchmarks can fail: a figure that misses its bar is red, and no samples are no figure."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from rich.console import Console

from bench import compaction, compare, curves, history, partitions, profiles, query, shards, soak, tls
from bench.bars import end, unmeasured, verdict
from bench.chart import draw, draw_curves, draw_soak
from bench.cluster_inside import quantile
from bench.cluster_table import AIMS, below_aim, page, table, unjudged
from bench.pages import with_figures
from bench.windows import percentile
from bench.workloads import Workload
from chronik.storage.wal import PROFILES

ROOT = Path(__file__).parents[2]


def test_no_samples_are_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 0.99)
    with pytest.raises(ValueError, match="no samples"):
        quantile({0.1: 0, math.inf: 0}, 0.99)
    assert quantile({0.1: 10, math.inf: 10}, 0.5) == pytest.approx(0.05)


@pytest.mark.parametrize("figure", AIMS)
def test_every_bar_can_be_missed_and_reached(figure: str) -> None:
    bar = AIMS[figure].bar
    found = {verdict(bar, value, value) for value in (-1.0, 0.0, 0.5, 1.0, 100.0, 1e9)}
    assert found == {True, False}


def test_what_misses_its_bar_is_named() -> None:
    slow, quick = "one message acks=all, p99 ms", "long poll answered after the commit, p50 ms"
    _, missed = table({slow: {"kafka": [10.0], "chronik": [21.0]}, quick: {"chronik": [0.2]}, "other": {}})
    assert missed == [slow]


def test_what_misses_its_aim_alone_is_named_apart_from_what_misses_its_bar() -> None:
    """S03 has a floor and, beyond it, an aim."""
    rate = "128 sends by librdkafka acks=all, msg/s"
    for own, is_missed, is_below in (
        (14_000.0, True, True),
        (17_000.0, False, True),
        (21_000.0, False, False),
    ):
        figures = {rate: {"chronik": [own]}}
        assert table(figures)[1] == [rate] * is_missed
        assert [line.split(" >=")[0] for line in below_aim(figures)] == [rate] * is_below
    assert below_aim({}) == []


def test_a_bar_for_a_ratio_is_named_where_apache_kafka_was_not_measured() -> None:
    rate, own = "bulk 256 B acks=1, msg/s", "128 threads acks=all, msg/s"
    alone = {rate: {"chronik": [300_000.0]}, own: {"chronik": [1_000.0]}}
    assert table(alone)[1] == []
    assert unjudged(alone) == [f"{rate} >= 1.2x: Apache Kafka was not measured"]
    assert unjudged({rate: {"chronik": [3.0], "kafka": [2.0]}}) == []
    assert unjudged({rate: {"kafka": [2.0]}}) == []


def test_topics_made_at_once_have_an_aim_beyond_their_bar() -> None:
    """S14."""
    figures = {"100 topics at once, named by every node, s": {"chronik": [1.5]}}
    assert (table(figures)[1], len(below_aim(figures))) == ([], 1)


UNMEASURED = "\nNot measured on a quiet machine yet.\n\n"


def page_and_block(bench: str) -> tuple[str, str]:
    """docs/PERFORMANCE.md, and what stands there between the marks of a bench."""
    text = (ROOT / "docs" / "PERFORMANCE.md").read_text()
    return text, text.split(f"<!-- {bench}: begin -->\n")[1].split(f"<!-- {bench}: end -->")[0]


def figures_in(block: str) -> list[str]:
    """The first column of its tables."""
    lines = [line.split(" | ")[0].removeprefix("| ") for line in block.splitlines() if line.startswith("| ")]
    return [line for line in lines if line != "---"]


def test_the_page_has_every_figure_of_three_nodes() -> None:
    text, block = page_and_block("cluster")
    found = {figure: {"kafka": [2.0], "chronik": [3.0]} for figure in AIMS}
    made = page({**found, "start to first acks=all, s": {"chronik": [1.0]}}, 3)
    told = figures_in(made)
    assert told[0] == "figure"
    assert [line.partition(" (S")[0] for line in told[1:-1]] == list(AIMS)
    assert f"| {told[-1]} |  | 1.00 |  |  |  |" in made
    assert "| bulk 256 B acks=1, msg/s | 2.00 | 3.00 | 1.50 | >= 1.2x |  |" in made
    assert "| 128 sends by librdkafka acks=all, msg/s (S03) | 2.00 | **3.00** ✗ | 1.50 | >= 15000 |" in made
    assert with_figures(with_figures(text, "cluster", made), "cluster", block) == text
    if block != UNMEASURED:
        assert {line.partition(" (S")[0] for line in figures_in(block)} >= set(AIMS)


def test_the_page_has_the_figures_of_tls_and_of_shards() -> None:
    """X01, X03, N01."""
    ratios = {(state, "produce 256 B"): [aim - 0.5, aim, aim + 0.5] for state, aim in tls.AIMS.items()}
    idle = {after: (100.0, float(kib_max)) for after, kib_max in tls.IDLE_KIB_MAX.items()}
    assert tls.judge(ratios, idle) == []
    slow = {key: [0.1] for key in ratios}
    large = {after: (theirs, ours + 1) for after, (theirs, ours) in idle.items()}
    assert len(tls.judge(slow, large)) == len(slow) + len(large)
    of_tls = tls.page(slow, large, 3)
    assert of_tls.count("✗ |") == len(slow) + len(large)
    best = {
        name: {
            count: {"records/s": 100.0 * count, "brokers' CPU, s": 1.0, "generator's CPU, s": 1.0}
            for count in (1, shards.SHARDS)
        }
        for name in shards.LOADS
    }
    assert shards.judge(best) == []
    of_shards = shards.page(best, 3)
    assert "| bulk | 2 | 200 | 2.00 | 1.0 | 1.0 |" in of_shards
    best["bulk"][2]["records/s"] = 159.0
    assert shards.judge(best) == ["bulk: 2 shards give 1.59 times what one gives, not 1.6"]
    for bench, made in (("tls", of_tls), ("shards", of_shards)):
        text, block = page_and_block(bench)
        assert with_figures(with_figures(text, bench, made), bench, block) == text
        if block != UNMEASURED:
            kinds, wanted = ({line.split(": ")[0] for line in figures_in(one)} for one in (block, made))
            assert kinds == wanted


def test_the_table_names_the_benches_of_figures_that_it_does_not_have() -> None:
    caption = str(table({})[0].caption)
    targets = re.findall(r"make (bench-[a-z]+)", caption)
    made = set(re.findall(r"^(bench-[a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    assert {"S05", "S20"} <= set(re.findall(r"[SLT]\d\d", caption))
    assert targets
    assert set(targets) <= made


def test_a_bar_that_nobody_measured_is_missed() -> None:
    assert unmeasured(["a", "b"], {"a": 1.0}) == ["b: no load measured it"]
    assert (end(Console(quiet=True), []), end(Console(quiet=True), ["b"])) == (0, 1)


def test_query_figures_and_compaction_can_miss_their_bars() -> None:
    assert query.is_missed("search, p50 ms", 21.0)
    assert not query.is_missed("search, p50 ms", 19.0)
    quiet, hurt = [[1.0] * 10] * 3, [[10.0] * 10] * 3

    def windows(latencies: list[list[float]]) -> list[compaction.Window]:
        return [compaction.Window(one, 1.0, 1.0, 0.1, 0.1) for one in latencies]

    assert compaction.report(windows(quiet), windows(quiet)) == []
    assert len(compaction.report(windows(quiet), windows(hurt))) == len(compaction.RATIOS_MAX)


def test_readers_of_history_that_hurt_are_named() -> None:
    quiet, hurt = [[1.0] * 10] * 3, [[10.0] * 10] * 3
    assert history.report(quiet, quiet, 1e6) == []
    assert len(history.report(quiet, hurt, 1e6)) == len(history.RATIOS_MAX)
    assert history.report(quiet, quiet, 0.0) == ["no history was read"]


IDLE = partitions.Idle(0, 0.0, 0.5, 48.0, 1.0)
QUIET = partitions.Idle(10_000, 5.0, 0.7, 89.0, 1.1)


def test_idle_partitions_that_cost_nothing_much_miss_no_bar() -> None:
    assert partitions.kb_each(IDLE, QUIET) == pytest.approx(4.1)
    assert partitions.judge_idle(IDLE, QUIET) == []


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"memory_mb": 48.0 + 10_000 * partitions.IDLE_KB_MAX / 1000 + 1}, "an idle partition takes"),
        ({"record_ms": partitions.IDLE_LATENCY_RATIO_MAX + 0.01}, "a record takes"),
        ({"start_s": 0.5 * partitions.IDLE_START_RATIO_MAX + 0.01}, "the start takes"),
    ],
)
def test_idle_partitions_that_cost_too_much_are_named(changed: dict[str, float], named: str) -> None:
    """L05, T33."""
    [miss] = partitions.judge_idle(IDLE, QUIET._replace(**changed))
    assert miss.startswith(named)


def test_a_round_with_a_sync_for_each_partition_is_named() -> None:
    assert partitions.judge_rounds({1: 1.0, 100: 1.0}) == []
    assert partitions.judge_rounds({1: 1.0, 100: 2.0}) == ["100 dirty partitions: 2.0 syncs a round, not 1"]


def test_the_page_has_the_figures_of_every_profile() -> None:
    """S20: those of the last run, between marks that the next run finds again."""
    page = profiles.PAGE.read_text()
    block = page.split(f"<!-- {profiles.BENCH}: begin -->\n")[1].split(f"<!-- {profiles.BENCH}: end -->")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in block.strip().splitlines()]
    assert rows == ["profile", "---", *PROFILES]
    found = {profile: {profiles.ONE_RECORD: 1.25, "records/s": 1234.5} for profile in PROFILES}
    again = with_figures(page, profiles.BENCH, profiles.figures(found))
    assert again.count("| ultra | 1.25 | 1,234 |") == 1
    assert with_figures(again, profiles.BENCH, block) == page


def test_the_comparison_shows_each_state_and_marks_what_misses_its_aim(tmp_path: Path) -> None:
    load = Workload("produce 1 KB", "t", lambda broker, number: 1.0, target=1.1)
    states = {
        "warm": {load.name: {"kafka": [100.0, 100.0, 100.0], "chronik": [120.0, 130.0, 110.0]}},
        "synced": {load.name: {"kafka": [100.0], "chronik": [150.0]}},
    }
    shown = compare.page(states, [load], "kafka", 3)
    assert "| produce 1 KB, records/s | 100 | 120 | 1.20 | 1.10 to 1.30 | >= 1.1 |" in shown
    assert "| **1.50** ✗ |  | >= 2.0 |" in shown
    assert compare.missed(states, [load], "kafka") == [
        "produce 1 KB, on warm brokers, Apache Kafka syncs each write too: 1.50, not 2.0"
    ]
    put_there = with_figures((compare.DOCS / "PERFORMANCE.md").read_text(), "bench", shown)
    assert shown in put_there
    draw(states, tmp_path / "bench.svg")
    assert "1.20×" in (tmp_path / "bench.svg").read_text()


def test_a_profile_that_is_too_slow_is_named() -> None:
    assert set(profiles.BARS_MS) == set(PROFILES)
    found = {profiles.ONE_RECORD: 1.0, profiles.TOPIC_CREATION: 7.0}
    assert profiles.missed("high", found) == []
    assert profiles.missed("ultra", found) == ["ultra: topic creation p50, ms 7.00, not below 5"]


def costs(*values: float) -> curves.Costs:
    sizes = [10**number for number in range(len(values))]
    own = {size: [value] for size, value in zip(sizes, values, strict=True)}
    return {"start, s": {"kafka": {1: [9.0], 10: [900.0]}, "chronik": own}}


def test_what_grows_faster_than_in_proportion_is_named() -> None:
    """N04. A fixed part does not hide the growth behind it, and what is next to nothing is no growth."""
    assert curves.steep("nodes", costs(1.0, 10.0, 100.0)) == []
    assert curves.steep("nodes", costs(5.0, 6.0, 15.0)) == []
    assert curves.steep("nodes", costs(0.0001, 0.01, 0.1)) == []
    assert [line.split(":")[0] for line in curves.steep("nodes", costs(5.0, 6.0, 600.0))] == [
        "start, s, by nodes"
    ]
    assert "no curve" in curves.steep("nodes", costs(1.0))[0]
    assert curves.rows(costs(1.0, 1.0, 100.0))[1][-1] == "[red]2.00[/]"


def test_curves_are_drawn_with_a_panel_for_each_figure(tmp_path: Path) -> None:
    draw_curves({"nodes": costs(1.0, 2.0)}, tmp_path / "curves.svg")
    assert "start, s" in (tmp_path / "curves.svg").read_text()
    assert "**2.00** ✗" in curves.page({curves.CURVES[0].name: costs(1.0, 1.0, 100.0)}, 1)


def test_a_size_that_one_broker_was_not_measured_at_keeps_its_column() -> None:
    kafka, own = curves.rows(costs(1.0, 2.0, 4.0))
    assert curves.headings(costs(1.0, 2.0, 4.0))[2:] == ["1", "10", "100", "growth"]
    assert kafka[2:] == ["9.00", "900", "–", "2.00"]
    assert own[2:-1] == ["1.00", "2.00", "4.00"]
    assert curves.rows({"start, s": {"chronik": {10: [3.0]}}}) == [["start, s", "chronik", "3.00", "–"]]


def test_the_page_has_a_place_for_every_curve_and_says_which_were_not_measured() -> None:
    first, *others = (curve.name for curve in curves.CURVES)
    part = curves.page({first: costs(1.0, 2.0)}, 1)
    assert part.count("Not measured yet") == len(others)
    assert "![Cost by size](curves.svg)" in part
    none = curves.page({}, 1)
    assert "curves.svg" not in none
    assert none.count("Not measured yet") == len(others) + 1
    written = (compare.DOCS / "PERFORMANCE.md").read_text()
    for name in (first, *others):
        assert f"**By {name}**" in written, "bench.curves --write puts every curve into the page"


def windows(*p99s: float, memory: float = 100.0, descriptors: int = 40) -> list[soak.Window]:
    return [soak.Window(p99, memory, descriptors) for p99 in p99s]


def test_a_part_of_the_curves_is_measured_beside_what_is_there(tmp_path: Path) -> None:
    results = tmp_path / "curves.json"
    first, second = curves.CURVES[0].name, curves.CURVES[1].name
    results.write_text(json.dumps({first: costs(1.0, 2.0), second: costs(3.0, 4.0)}))
    found = curves.merged(results, {second: costs(5.0, 6.0)})
    assert found == {first: costs(1.0, 2.0), second: costs(5.0, 6.0)}
    assert curves.merged(tmp_path / "none.json", {}) == {}


def test_a_soak_is_told_by_thirds_and_drawn(tmp_path: Path) -> None:
    found = soak.page(windows(*[9.0] * 3, *[2.0] * 3, *[8.0] * 3), "told", 0, 0)
    assert "| second third | 2.0 | 100 | 40 |" in found
    assert "Verdict: p99 of a record grew 4.00 times" in found
    assert found in with_figures((compare.DOCS / "PERFORMANCE.md").read_text(), "soak", found)
    draw_soak(windows(1.0, 2.0), tmp_path / "soak.svg")
    assert "descriptors" in (tmp_path / "soak.svg").read_text()


def test_a_soak_that_is_not_flat_is_named() -> None:
    calm = windows(90.0, 80.0, *[5.0] * 10)
    assert soak.flat(calm, 0, 0) == []
    for harm, word in (
        (windows(*[5.0] * 8, *[50.0] * 4), "p99"),
        (calm[:8] + windows(*[5.0] * 4, memory=150.0), "memory"),
        (calm[:8] + windows(*[5.0] * 4, descriptors=60), "descriptors"),
    ):
        assert [word in line for line in soak.flat(harm, 0, 0)] == [True]
    assert len(soak.flat(calm, 1, 1)) == 2
    assert soak.flat(calm[:5], 0, 0) == ["5 windows are too few to tell"]
