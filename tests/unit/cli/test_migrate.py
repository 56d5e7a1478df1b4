"""What `chronik migrate` decides without a cluster: pairs of records, settings, what MirrorMaker says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.cli.migrate_compare import WINDOW, Comparison, Mark
from chronik.cli.migrate_config import (
    OFFSETS_TOPIC,
    STATUS_TOPIC,
    TOPICS_EXCLUDED,
    Choice,
    Side,
    as_text,
    choice,
    command,
    mirror_properties,
)
from chronik.cli.migrate_progress import MirrorState
from chronik.client.properties import read_properties
from chronik.model import TopicPartition
from chronik.records.reader import Row

TP = TopicPartition("orders", 2)


def rows(numbers: list[int], offsets: list[int]) -> list[Row]:
    """Records that differ from each other, at these offsets."""
    return [
        (offset, 1_000 + number, b"%d" % number, b"v", ())
        for number, offset in zip(numbers, offsets, strict=True)
    ]


def compared(old: list[Row], new: list[Row], *marks: Mark, piece: int = 7) -> Comparison:
    comparison = Comparison(marks=list(marks))
    for at in range(0, max(len(old), len(new)), piece):
        comparison.old(old[at : at + piece])
        comparison.new(new[at : at + piece])
        comparison.settle()
    comparison.finish()
    return comparison


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Row], list[Row], set[int], set[int]]:
    """Both sides of a partition, the numbers missing on the new one and those that only the new one has."""
    count = draw(st.integers(1, 60))
    numbers = list(range(count))
    missing = set(draw(st.lists(st.integers(0, count - 1), max_size=3)))
    kept = [number for number in numbers if number not in missing]
    added = {1_000 + n for n in range(draw(st.integers(0, 2)))} if kept else set()
    for number in added:
        kept.insert(draw(st.integers(0, len(kept) - 1)), number)
    gaps = st.integers(1, 3)
    old_offsets = draw(st.lists(gaps, min_size=count, max_size=count))
    new_offsets = draw(st.lists(gaps, min_size=len(kept), max_size=len(kept)))
    return (
        rows(numbers, [sum(old_offsets[: at + 1]) for at in range(count)]),
        rows(kept, [sum(new_offsets[: at + 1]) for at in range(len(kept))]),
        missing,
        added,
    )


@given(logs(), st.integers(1, 90))
def test_what_is_missing_and_what_is_too_much_is_counted(
    both: tuple[list[Row], list[Row], set[int], set[int]], piece: int
) -> None:
    old, new, missing, added = both
    counts = compared(old, new, piece=piece).counts
    last = max((row[1] for row in new), default=0)
    at_end = {number for number in missing if 1_000 + number > last}
    assert counts.agree == (not missing and not added)
    if not (missing and added):  # together they may look like records that differ
        assert counts.missing + counts.not_yet == len(missing)
        assert counts.not_yet >= len(at_end) or added
        assert counts.extra == len(added)
        assert counts.different == 0
        assert counts.compared == len(old) - len(missing)


@given(logs(), st.integers(0, 200), st.integers(0, 200))
def test_a_mark_is_as_many_pairs_behind_as_its_offsets_say(
    both: tuple[list[Row], list[Row], set[int], set[int]], old_offset: int, new_offset: int
) -> None:
    old, new, missing, added = both
    if missing or added:
        return
    mark = Mark("g", old_offset, new_offset)
    compared(old, new, mark)
    before = sum(row[0] < old_offset for row in old)
    assert mark.read_again == before - sum(row[0] < new_offset for row in new)
    assert mark.expected == (new[before][0] if before < len(new) else None)


def test_a_record_that_was_changed_is_told_with_its_offsets() -> None:
    old = rows(list(range(10)), list(range(10)))
    new: list[Row] = [(row[0] + 5, row[1], row[2], b"w" if row[0] == 4 else row[3], ()) for row in old]
    comparison = compared(old, new)
    assert comparison.shown == ["old offset 4 and new offset 9 differ in value"]
    assert (comparison.counts.compared, comparison.counts.different) == (10, 1)


def test_more_missing_than_the_window_is_still_a_difference() -> None:
    numbers = list(range(3 * WINDOW))
    old = rows(numbers, numbers)
    comparison = compared(old, rows(numbers[2 * WINDOW :], numbers[2 * WINDOW :]), piece=1_000)
    assert not comparison.counts.agree
    assert len(comparison.shown) <= 5


def settings(**old: str) -> dict[str, str]:
    side = Side(bootstrap="kafka:9092", properties=old)
    return mirror_properties(
        side,
        Side(bootstrap="chronik:9092"),
        topics=choice("orders.*, prices", TOPICS_EXCLUDED),
        groups=Choice(patterns=(".*",), excluded=()),
        replication_factor=3,
        partitions=5,
    )


def test_only_committed_records_are_copied_once_under_the_same_names() -> None:
    found = settings()
    assert found["old->new.consumer.isolation.level"] == "read_committed"
    assert found["new.exactly.once.source.support"] == "enabled"
    assert found["replication.policy.class"].endswith("IdentityReplicationPolicy")
    assert found["offset-syncs.topic.location"] == "target"
    assert found["old->new.topics"] == "orders.*,prices"
    assert found["tasks.max"] == "5"


def test_a_password_reaches_mirrormaker_as_it_was_written(tmp_path: Path) -> None:
    """Java's properties have escapes, which `read_properties` does not undo."""
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="b\\\\c";'
    text = as_text(settings(**{"sasl.jaas.config": login}))
    (tmp_path / "mirror.properties").write_text(text)
    read = read_properties(tmp_path / "mirror.properties")["old.sasl.jaas.config"]
    assert read.replace("\\\\", "\\") == login


def test_internal_topics_are_never_chosen() -> None:
    every = choice(".*", TOPICS_EXCLUDED)
    assert every.takes("orders")
    for name in ("_schemas", "__consumer_offsets", "mm2-offsets.old.internal", "old.checkpoints.internal"):
        assert not every.takes(name)
    assert not choice("orders", TOPICS_EXCLUDED).takes("orders2")


@pytest.mark.parametrize("inner", ["libs", ""])
def test_a_distribution_and_a_folder_of_jars_will_do(inner: str, tmp_path: Path) -> None:
    config = tmp_path / "private" / "mirror.properties"
    assert command("java", tmp_path, config, 512) is None
    (tmp_path / inner).mkdir(exist_ok=True)
    (tmp_path / inner / "connect-mirror-4.1.0.jar").touch()
    found = command("java", tmp_path, config, 512)
    assert found is not None
    assert "-Xmx512m" in found
    assert found[found.index("-cp") + 1] == f"{tmp_path / inner if inner else tmp_path}/*"


def test_positions_and_failures_are_read_out_of_mirrormakers_topics() -> None:
    state = MirrorState()
    key = ["MirrorSourceConnector", {"cluster": "old", "partition": 2, "topic": "orders"}]
    state.take(OFFSETS_TOPIC, json.dumps(key).encode(), b'{"offset": 41}')
    assert state.positions == {TP: 42}
    task = b"status-task-MirrorSourceConnector-0"
    trace = "kafka.ConnectException: no\n\tat x\nCaused by: RecordTooLarge: 9 bytes\n\tat y"
    state.take(STATUS_TOPIC, task, json.dumps({"state": "FAILED", "trace": trace}).encode())
    assert state.failed == {"task-MirrorSourceConnector-0": "RecordTooLarge: 9 bytes"}
    state.take(STATUS_TOPIC, task, b'{"state": "RUNNING", "trace": null}')
    assert not state.failed


@given(st.binary(max_size=60) | st.none(), st.binary(max_size=60) | st.none())
def test_nonsense_in_those_topics_says_nothing(key: bytes | None, value: bytes | None) -> None:
    state = MirrorState()
    for topic in (OFFSETS_TOPIC, STATUS_TOPIC):
        state.take(topic, key, value)
    assert not state.positions
