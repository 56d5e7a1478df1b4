"""The scrape: only names of the table, figures that follow what happened."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from chronik.admin.scrape import SAMPLES_AT_ONCE
from chronik.cluster import raft_driver
from chronik.metadata.events import TopicCreated
from chronik.metrics import METRICS, SECONDS, Histogram
from chronik.model import Limits
from chronik.node import Node
from tests.unit.admin.support import Http, with_node


async def scrape(http: Http) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families((await http.get("/metrics")).body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_the_scrape_has_the_names_of_the_table_and_no_others(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await http.post("/admin/create-topic", {"name": "orders"})
        await http.post("/admin/topics/orders/messages", {"value": "x"})
        text = (await http.get("/metrics")).body.decode()
        described = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE chronik_")}
        assert described == set(METRICS)
        known = {name for metric in METRICS.values() for name in metric.samples()}
        assert {name for name in await scrape(http) if name.startswith("chronik_")} <= known

    with_node(tmp_path, work)


def test_the_size_of_the_metadata_stands_beside_its_limit(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        before = await scrape(http)
        await http.post("/admin/create-topic", {"name": "orders", "partitions": 3})
        after = await scrape(http)
        assert after["chronik_metadata_bytes"][()] == node.parts.metadata.state.size_bytes
        assert after["chronik_metadata_bytes"][()] > before["chronik_metadata_bytes"][()]
        assert after["chronik_metadata_bytes_max"][()] == node.settings.metadata_bytes_max
        assert after["chronik_metadata_refused_total"][()] == 0
        assert after["chronik_cluster_partitions"][()] - before["chronik_cluster_partitions"][()] == 3
        assert (
            after["chronik_cluster_partitions_max"][()] == node.parts.services.limits.cluster_partitions_max
        )

    with_node(tmp_path, work)


def test_figures_follow_what_happened(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await http.post("/admin/create-topic", {"name": "orders", "partitions": 2})
        before = await scrape(http)
        for _ in range(7):
            await http.post("/admin/topics/orders/messages", {"value": "x" * 100, "partition": 1})
        after = await scrape(http)
        assert after["chronik_topics_created_total"][()] == 1
        assert after["chronik_cluster_partitions"][()] == 2
        assert after["chronik_cluster_partitions_max"][()] == Limits().cluster_partitions_max
        key = (("partition", "1"), ("topic", "orders"))
        assert after["chronik_partition_high_watermark"][key] == 7
        assert after["chronik_partition_watermark_lag_records"][key] == 0
        assert after["chronik_request_seconds_count"][(("api", "produce"),)] == 7
        assert after["chronik_request_seconds_sum"][(("api", "produce"),)] > 0
        grown = after["chronik_received_bytes_total"][()] - before["chronik_received_bytes_total"][()]
        assert grown > 700
        assert after["chronik_wal_round_seconds_count"][()] > before["chronik_wal_round_seconds_count"][()]
        assert after["chronik_metadata_write_seconds_count"][(("stage", "applied"),)] >= 3
        written = after["chronik_metadata_command_seconds_count"]
        assert written[(("command", "create_topic"),)] == 1
        assert written[(("command", "register_broker"),)] == 1

    with_node(tmp_path, work)


def test_a_scrape_of_many_partitions_lets_others_have_their_turn(tmp_path: Path) -> None:
    """And comes out as one text, each family described once."""

    async def work(node: Node, http: Http) -> None:
        count = 3 * SAMPLES_AT_ONCE + 1
        await http.post("/admin/create-topic", {"name": "orders", "partitions": count})
        turns = 0

        async def take_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        others = asyncio.create_task(take_turns())
        text = (await http.get("/metrics")).body.decode()
        others.cancel()
        lines = text.splitlines()
        for name in ("chronik_partition_high_watermark", "chronik_partition_size_bytes"):
            assert sum(line.startswith(f"# TYPE {name} ") for line in lines) == 1
            assert sum(line.startswith(f'{name}{{partition="') for line in lines) == count
        assert turns > len(METRICS) + 3 * 5, "a turn for each family, and for each further piece of five"
        assert len(list(text_string_to_metric_families(text))) > len(METRICS)

    with_node(tmp_path, work)


@given(st.lists(st.floats(min_value=0, max_value=100)))
def test_histograms_count_like_a_sorted_list(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    assert histogram.count == len(values)
    seen = 0
    for bound, count in zip(SECONDS, histogram.counts, strict=False):
        seen += count
        assert seen == sum(value <= bound for value in values)
    median = histogram.quantile(0.5)
    assert (median is None) == (not values)
    if median is not None and sorted(values)[(len(values) - 1) // 2] <= SECONDS[-1]:
        assert median >= sorted(values)[(len(values) - 1) // 2]


def test_the_metadata_log_tells_what_waits(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        await http.post("/admin/create-topic", {"name": "orders"})
        status = (await http.get("/admin/raft-status")).json
        assert status["write_ms"]["create_topic"]["count"] == 1
        assert status["write_ms"]["create_topic"]["p99"] > 0
        assert (status["last_snapshot_index"], status["apply_queue_depth"]) == (0, 0)
        depth = status["event_bus_depth"]
        with node.parts.metadata.bus.subscribe(TopicCreated):
            for name in ("a", "b", "c"):
                await http.post("/admin/create-topic", {"name": name})
            assert (await http.get("/admin/raft-status")).json["event_bus_depth"] == 3
            assert (await scrape(http))["chronik_event_bus_depth"][()] == 3
        assert (await http.get("/admin/raft-status")).json["event_bus_depth"] == depth == 0

    with_node(tmp_path, work)


def test_the_newest_snapshot_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raft_driver, "SNAPSHOT_ENTRIES", 10)

    async def work(node: Node, http: Http) -> None:
        for number in range(12):
            await http.post("/admin/create-topic", {"name": f"t{number}"})
        async with asyncio.timeout(20):
            found = 0.0
            while not found:
                found = (await scrape(http))["chronik_raft_snapshot_index"][()]
        status = (await http.get("/admin/raft-status")).json
        assert 10 <= found <= status["last_snapshot_index"] <= status["last_applied_index"]

    with_node(tmp_path, work)


def test_entries_that_wait_to_be_applied_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H01: the depth is what is committed and not applied yet, in the status and as a metric."""

    async def work(node: Node, http: Http) -> None:
        told = node.parts.raft.status()
        behind = replace(told, commit=told.applied + 3)
        with monkeypatch.context() as patched:
            patched.setattr(node.parts.raft, "status", lambda: behind)
            assert (await http.get("/admin/raft-status")).json["apply_queue_depth"] == 3
            assert b"chronik_metadata_apply_queue_depth 3.0" in (await http.get("/metrics")).body

    with_node(tmp_path, work)
