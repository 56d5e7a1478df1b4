"""Loads come from what is there anyway: how far segments have grown, and what Fetch has read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from chronik.cluster.load import BUSIEST_MAX, LoadMeter
from chronik.model import TopicPartition
from chronik.replication.partitions import Partitions

INTERVAL_SECONDS = 1.0


class _Log:
    def __init__(self) -> None:
        self.segments = [SimpleNamespace(base_offset=0, size_bytes=0)]
        self.is_loaded = True
        self.topic_id_bytes = b""

    def active_extent(self) -> tuple[int, int]:
        return self.segments[-1].base_offset, self.segments[-1].size_bytes

    def write(self, size: int) -> None:
        self.segments[-1].size_bytes += size

    def roll(self, base_offset: int) -> None:
        self.segments.append(SimpleNamespace(base_offset=base_offset, size_bytes=0))


class _Node:
    def __init__(self, partitions: int, *, is_leader: bool = True, is_internal: bool = False) -> None:
        self.now = 50.0
        self.logs = [_Log() for _ in range(partitions)]
        self.partitions = Partitions()
        self.each: list[Any] = []
        for number, log in enumerate(self.logs):
            one = _Partition(TopicPartition("t", number), log, is_leader, is_internal)
            self.each.append(one)
            self.partitions.by_tp[one.tp] = cast(Any, one)
        self.meter = LoadMeter(self.partitions, lambda: self.now, INTERVAL_SECONDS)


class _Partition:
    def __init__(self, tp: TopicPartition, log: _Log, is_leader: bool, is_internal: bool) -> None:
        self.tp, self.log, self.is_leader, self.is_internal = tp, log, is_leader, is_internal
        self.read_bytes = 0


def test_the_first_report_has_nothing_to_compare_with() -> None:
    node = _Node(1)
    node.now += 10
    assert node.meter.report() is None


def test_bytes_a_second_since_the_last_report() -> None:
    node = _Node(2)
    node.logs[0].write(7_000)
    node.meter.report()
    node.now += 10
    node.logs[0].write(40_000)
    node.each[1].read_bytes += 20_000
    report = node.meter.report()
    assert report is not None
    assert (report.taken, report.given) == (4_000, 2_000)
    assert [(one.partition, one.taken, one.given) for one in report.busiest] == [(0, 4_000, 0), (1, 0, 2_000)]
    node.now += 10
    quiet = node.meter.report()
    assert quiet is not None
    assert (quiet.taken, quiet.given, quiet.busiest) == (0, 0, ())


def test_what_went_into_segments_that_were_closed_meanwhile_counts() -> None:
    node = _Node(1)
    node.logs[0].write(7_000)
    node.meter.report()
    node.logs[0].write(1_000)
    for base_offset in (10, 20):
        node.logs[0].roll(base_offset)
        node.logs[0].write(2_000)
    node.now += 1
    report = node.meter.report()
    assert report is not None
    assert report.taken == 5_000


def test_a_log_that_was_cut_took_nothing() -> None:
    node = _Node(1)
    node.logs[0].write(7_000)
    node.meter.report()
    node.logs[0].segments[0].size_bytes = 1_000
    node.now += 1
    report = node.meter.report()
    assert report is not None
    assert report.taken == 0


def test_whoever_else_asks_does_not_shorten_the_time_that_the_controller_judges_by() -> None:
    """A burst of a moment would look like ten times as much."""
    node = _Node(1)
    node.meter.report()
    reports = []
    for turn in range(30):
        node.now += INTERVAL_SECONDS / 10
        if turn == 12:
            node.logs[0].write(10_000)
        reports.append(node.meter.report())
    taken = {report.taken for report in reports if report is not None}
    assert 0 < max(taken) <= 10_000 / (0.75 * INTERVAL_SECONDS)


def test_only_the_busiest_are_named_and_all_are_counted() -> None:
    node = _Node(BUSIEST_MAX + 10)
    node.meter.report()
    node.now += 1
    for number, log in enumerate(node.logs, 1):
        log.write(number)
    report = node.meter.report()
    assert report is not None
    assert report.taken == sum(range(1, BUSIEST_MAX + 11))
    assert [one.taken for one in report.busiest] == list(range(BUSIEST_MAX + 10, 10, -1))


def test_followers_and_internal_topics_are_left_out() -> None:
    """A node that leads nothing says so: it is the one to give something to."""
    for node in (_Node(1, is_leader=False), _Node(1, is_internal=True), _Node(0)):
        node.meter.report()
        node.now += 1
        for log in node.logs:
            log.write(1_000)
        report = node.meter.report()
        assert report is not None
        assert (report.taken, report.given) == (0, 0)
