"""The commit log of a job over one topic: which offsets are done, and which files they became.

Under `_chronik/<topic>/` of the result lies one JSON file per step, `<version>.json`, made by an exclusive
rename. Its making is the moment the step counts. Files are made in `_chronik/staging/` before and moved to
their places after; a run that finds files of the last step still in staging moves them first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from chronik.model import ChronikError, TopicPartition
from chronik.published.steps import META, PublishedStep, step_path
from chronik.spark.jobs.files import AlreadyThere, Folder
from chronik.spark.options import Connect, Position, ReadOptions, TopicSelection
from chronik.spark.planning import DataLoss, OffsetBounds, survey
from chronik.spark.ranges import OffsetRange, cap

logger = logging.getLogger("chronik.spark")

OVERTAKEN_MAX: Final = 5
"""How often in a row a step is planned anew because records went before its tasks had read them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The next step's work."""

    topic: str
    topic_id: str
    ranges: tuple[OffsetRange, ...]
    left: int
    """Offsets that are left to do, this step's included."""
    lost: tuple[OffsetRange, ...]
    """Offsets behind those that are done, which were deleted before this job read them."""
    fail_on_data_loss: bool

    @property
    def size(self) -> int:
        return sum(each.size for each in self.ranges)

    def options(self, bootstrap: str, extra: Mapping[str, str]) -> dict[str, str]:
        """Options with which the data source reads exactly these ranges, or what is left of them."""
        starts = {str(each.tp.partition): each.start for each in self.ranges}
        ends = {str(each.tp.partition): each.end for each in self.ranges}
        assigned = [each.tp.partition for each in self.ranges]
        return {
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            **extra,
            "kafka.bootstrap.servers": bootstrap,
            "assign": msgspec.json.encode({self.topic: assigned}).decode(),
            "startingOffsets": msgspec.json.encode({self.topic: starts}).decode(),
            "endingOffsets": msgspec.json.encode({self.topic: ends}).decode(),
        }


@dataclass(slots=True)
class StepLog:
    """The steps of one topic in one result folder."""

    folder: Folder
    topic: str
    last: PublishedStep | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.last = self._read_last()
        if self.last is not None:
            self._publish(self.last)
        self.folder.remove(self.staging)

    @property
    def staging(self) -> str:
        return f"{META}/staging/{self.topic}"

    @property
    def version(self) -> int:
        """Version of the next step."""
        return self.last.version + 1 if self.last is not None else 0

    def _path(self, version: int) -> str:
        return step_path(self.topic, version)

    def _read_last(self) -> PublishedStep | None:
        names = [name for name in self.folder.names(f"{META}/{self.topic}") if name.endswith(".json")]
        if not names:
            return None
        return msgspec.convert(self.folder.read_json(f"{META}/{self.topic}/{max(names)}"), PublishedStep)

    def commit(self, step: PublishedStep) -> None:
        """Publish the step. It counts once its file exists."""
        try:
            self.folder.write_json(self._path(step.version), msgspec.to_builtins(step), replace=False)
        except AlreadyThere:
            raise ChronikError(
                f"another run is writing {self.folder.uri()} (topic {self.topic}): let only one run at a time"
            ) from None
        self.last = step
        self._publish(step)

    def _publish(self, step: PublishedStep) -> None:
        """Bring a step's files to their places; doing it again changes nothing."""
        for source, target in step.moves.items():
            self.folder.move(source, target)
        for path in step.removes:
            self.folder.remove(path)

    def steps(self) -> list[PublishedStep]:
        names = [name for name in self.folder.names(f"{META}/{self.topic}") if name.endswith(".json")]
        return [
            msgspec.convert(self.folder.read_json(f"{META}/{self.topic}/{n}"), PublishedStep) for n in names
        ]


def plan(
    log_offsets: Mapping[str, int] | None,
    log_topic_id: str,
    topic: str,
    bounds: OffsetBounds,
    *,
    limit: int | None,
    fail_on_data_loss: bool,
    ends: Mapping[str, int] | None = None,
    begun_records: int | None = None,
) -> Plan:
    """What is new since the offsets that are done; all of it for a topic not seen before.

    `ends` are those of a step that was begun before and must be repeated, by partition. `begun_records` is
    how many such a step had, where its ends are not known: those that were deleted since were among them.
    """
    known = dict(log_offsets or {})
    topic_id = bounds.topic_ids.get(topic, "")
    if known and log_topic_id and topic_id != log_topic_id:
        if fail_on_data_loss:
            raise DataLoss(f"topic {topic} was deleted and created again since the last run")
        known = {}
    starts: dict[TopicPartition, int] = {}
    lost: list[OffsetRange] = []
    for tp, earliest in bounds.earliest.items():
        start = known.get(str(tp.partition), earliest)
        if start < earliest:
            lost.append(OffsetRange(tp, start, earliest))
        if start > bounds.latest[tp] and fail_on_data_loss:
            raise DataLoss(f"{tp} ends at offset {bounds.latest[tp]}, but {start} was read already")
        starts[tp] = min(max(start, earliest), bounds.latest[tp])
    if begun_records is not None:
        limit = max(begun_records - sum(each.size for each in lost), 0)
    if ends is None:
        upto = cap(starts, bounds.latest, limit)
    else:
        upto = {
            tp: min(max(ends.get(str(tp.partition), start), start), bounds.latest[tp])
            for tp, start in starts.items()
        }
    ranges = tuple(OffsetRange(tp, starts[tp], upto[tp]) for tp in sorted(upto))
    left = sum(bounds.latest[tp] - starts[tp] for tp in starts)
    for each in lost:
        logger.warning("%s", _deleted(each))
    return Plan(topic, topic_id, ranges, left, tuple(lost), fail_on_data_loss)


def is_overtaken(work: Plan, bounds: OffsetBounds) -> bool:
    """Whether records of this step were deleted since it was planned: it is planned anew then."""
    gone = [
        OffsetRange(each.tp, each.start, bounds.earliest[each.tp])
        for each in work.ranges
        if each.size and each.start < bounds.earliest.get(each.tp, 0)
    ]
    for each in gone:
        logger.warning("%s", _deleted(each))
    return bool(gone)


def lost_ranges(lost: Iterable[OffsetRange]) -> dict[str, tuple[int, int]]:
    return {str(each.tp.partition): (each.start, each.end) for each in lost}


def deleted_unread(lost: Sequence[OffsetRange]) -> DataLoss:
    """What a run ends with that has done all there was to do."""
    return DataLoss(
        ", ".join(_deleted(each) for each in lost),
        "what is there was read, and the next run goes on behind it",
    )


def _deleted(gone: OffsetRange) -> str:
    return f"{gone.tp}: offsets {gone.start} to {gone.end - 1} were deleted before they were read"


def look(connect: Connect, topics: Sequence[str]) -> OffsetBounds:
    """Partitions and committed offsets of these topics."""
    return survey(
        ReadOptions(
            connect=connect,
            subscription=TopicSelection(topics=tuple(topics)),
            starting=Position(default=-2),
            ending=Position(default=-1),
            no_match="error",
            fail_on_data_loss=True,
            read_committed=True,
            max_offsets_per_trigger=None,
            min_partitions=None,
            include_headers=False,
            columns=None,
            commit_group=None,
            fetch_bytes=1,
        )
    )
