"""Batch and stream readers: offsets in, tasks out, Arrow batches inside the tasks."""

from __future__ import annotations

import gc
import logging
import os
import sys
import zipimport
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from chronik.client.fetching import FetchOptions
from chronik.client.groups import Groups
from chronik.client.visibility import AbortedTransaction
from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.records.batch import Buffer
from chronik.records.reader import Unreadable
from chronik.spark.fetching import RangeFetcher
from chronik.spark.options import OptionError, ReadOptions
from chronik.spark.planning import (
    DataLoss,
    OffsetBounds,
    ask,
    place,
    present,
    survey,
)
from chronik.spark.ranges import OffsetRange, cap, split

logger = logging.getLogger("chronik.spark")

UNREADABLE: Final = "unreadable"
"""Name of an optional column that says why a batch cannot be read. Without it such batches are left out."""
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_NO_HEADERS: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
IDS: Final = "@ids"
"""Key for the topic ids in a stream's offsets. No topic can have this name."""


class RangePartition(InputPartition):
    """One task's work."""

    def __init__(self, topic: str, partition: int, start: int, end: int) -> None:
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}:{self.start}-{self.end}"


def tasks(ranges: Iterable[OffsetRange], min_partitions: int | None) -> list[RangePartition]:
    """The ranges as tasks: as many as asked for, or enough for the cores of this machine."""
    if min_partitions is not None:
        pieces = split(ranges, min_partitions, smallest=1)
    else:
        pieces = split(ranges, 3 * (os.cpu_count() or 1))
    return [RangePartition(each.tp.topic, each.tp.partition, each.start, each.end) for each in pieces]


class RangeRows:
    """Turns the batches of a task's range into rows. Every job reads its records through this.

    Imports the compiled scanner here: the driver does not need it.
    """

    def __init__(self, columns: Sequence[str], work: RangePartition) -> None:
        from chronik.columns.scanner import RecordWindow, Scanner

        self._columns = columns
        self._work = work
        self._tp = TopicPartition(work.topic, work.partition)
        names = [name for name in columns if name != UNREADABLE]
        self._scanner = Scanner(names, self._tp.topic, self._tp.partition)
        self._window = RecordWindow(first_offset=work.start, last_offset=work.end - 1)
        self._is_logged = False

    def of(self, data: Buffer, aborted: Sequence[AbortedTransaction]) -> Iterator[pa.RecordBatch]:
        """Rows of what was fetched; `data` may be overwritten once they are through."""
        unreadable: list[Unreadable] = []
        for batch in self._scanner.scan(data, self._window, aborted, unreadable.append):
            yield with_reasons(batch, self._columns)
        # Each is reported by one task: the one whose range has its last offset.
        ours = [each for each in unreadable if self._work.start <= each.last_offset < self._work.end]
        if ours and UNREADABLE in self._columns:
            yield stand_ins(ours, self._columns, self._tp)
        elif ours and not self._is_logged:
            self._is_logged = True
            logger.warning("%s: batches are left out, the first: %s", self._tp, ours[0])


def read_range(
    options: ReadOptions, columns: Sequence[str], work: RangePartition
) -> Iterator[pa.RecordBatch]:
    """What a task does."""
    rows = RangeRows(columns, work)
    fetch = FetchOptions(
        read_committed=options.read_committed,
        partition_max_bytes=options.fetch_bytes,
        max_bytes=options.fetch_bytes,
    )
    wanted = OffsetRange(TopicPartition(work.topic, work.partition), work.start, work.end)
    spare_the_worker()
    while wanted.size:
        try:
            for chunk in RangeFetcher(options.connect, wanted, fetch):
                yield from rows.of(chunk.data, chunk.aborted)
                wanted = replace(wanted, start=chunk.next_offset)
            return
        except RequestError as error:
            if error.code != ErrorCode.offset_out_of_range:
                raise
            wanted = _what_is_left(options, wanted, error)


def with_reasons(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Rows of records that could be read: the column that says why not is null."""
    if UNREADABLE not in columns:
        return batch
    return batch.add_column(columns.index(UNREADABLE), UNREADABLE, pa.nulls(batch.num_rows, pa.string()))


def stand_ins(unreadable: Sequence[Unreadable], columns: Sequence[str], tp: TopicPartition) -> pa.RecordBatch:
    """A row for each batch that cannot be read, at its last offset: no key, no value, but the reason."""
    times = [_micros(each.timestamp_ms) for each in unreadable]
    known: dict[str, pa.Array] = {
        "topic": pa.array([tp.topic] * len(unreadable), pa.string()),
        "partition": pa.array([tp.partition] * len(unreadable), pa.int32()),
        "offset": pa.array([each.last_offset for each in unreadable], pa.int64()),
        "timestamp": pa.array(times, pa.int64()).cast(_TIMESTAMP),
        "timestampType": pa.array([0] * len(unreadable), pa.int32()),
        UNREADABLE: pa.array([str(each) for each in unreadable], pa.string()),
    }
    empty = {"headers": _NO_HEADERS}
    arrays = [
        known[name] if name in known else pa.nulls(len(unreadable), empty.get(name, pa.binary()))
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _micros(timestamp_ms: int) -> int:
    from chronik.columns.kernels import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN

    return min(max(timestamp_ms, TIMESTAMP_MS_MIN), TIMESTAMP_MS_MAX) * 1000


def spare_the_worker() -> None:
    """Avoid two costs of each further task of this process, which together exceed the cost of a short range.

    Spark's worker forgets its import caches before each task and then reads the directory of pyspark.zip
    again, once for each package that was loaded from it; an importer that is not in the cache is made again
    from what zipimport remembers. After each task it collects all garbage; modules are none.
    """
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            del sys.path_importer_cache[path]
    if not gc.get_freeze_count():
        gc.freeze()


def _what_is_left(options: ReadOptions, wanted: OffsetRange, error: RequestError) -> OffsetRange:
    """Retention may delete records before a task reads them: an error, or ignored (`failOnDataLoss`)."""
    if options.fail_on_data_loss:
        raise DataLoss(str(error)) from error
    bounds = survey(options, missing_ok=True)
    left = present([wanted], bounds, fail_on_data_loss=False)
    if not left or left[0].start <= wanted.start:
        return replace(wanted, end=wanted.start)
    return left[0]


class ChronikReader(DataSourceReader):
    """Takes no filters (docs/decisions/0037): Spark would apply those of one query to the next."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> list[RangePartition]:
        options = self._options
        bounds = survey(options)
        starts = place(options, options.starting, bounds, is_end=False)
        ends = place(options, options.ending, bounds, is_end=True)
        ranges = [OffsetRange(tp, starts[tp], max(starts[tp], ends[tp])) for tp in sorted(starts)]
        ranges = present(ranges, bounds, fail_on_data_loss=options.fail_on_data_loss)
        return tasks(ranges, options.min_partitions) or [RangePartition("", 0, 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_range(self._options, self._columns, partition)


class ChronikStreamReader(DataSourceStreamReader):
    """Offsets are `{"topic": {"0": 5}}`, as the official connector's, with the topics' ids beside them."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._reached: dict[str, Any] | None = None
        """How far the batches planned so far go; a trigger's limit counts from there."""

    def initialOffset(self) -> dict[str, Any]:
        bounds = survey(self._options)
        starts = place(self._options, self._options.starting, bounds, is_end=False)
        self._reached = to_json(starts, bounds.topic_ids)
        return self._reached

    def latestOffset(self) -> dict[str, Any]:
        options = self._options
        bounds = survey(options, missing_ok=not options.fail_on_data_loss)
        ends: Mapping[TopicPartition, int] = bounds.latest
        if options.max_offsets_per_trigger is not None:
            reached = self._reached or self._planned_before(bounds)
            if reached is not None:
                ends = cap(starting_at(reached, bounds), ends, options.max_offsets_per_trigger)
        latest = to_json(ends, bounds.topic_ids)
        for topic, partitions in (self._reached or {}).items():
            latest.setdefault(topic, partitions)  # a topic that is gone stays where it was
        return latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        options = self._options
        self._reached = end
        bounds = survey(options, missing_ok=not options.fail_on_data_loss)
        changed = [topic for topic, each in start.get(IDS, {}).items() if end[IDS].get(topic, each) != each]
        if changed and options.fail_on_data_loss:
            raise DataLoss(f"topic {changed[0]} was deleted and created again since the last batch")
        if options.commit_group is not None and options.max_offsets_per_trigger is not None:
            self._note(_planned(options.commit_group), end)
        ends = from_json(end)
        starts = {
            **bounds.earliest,
            **{tp: n for tp, n in from_json(start).items() if tp.topic not in changed},
        }
        ranges = [
            OffsetRange(tp, starts.get(tp, ends[tp]), max(starts.get(tp, ends[tp]), ends[tp]))
            for tp in sorted(ends)
        ]
        if options.fail_on_data_loss:
            for each in ranges:
                if ends[each.tp] < each.start:
                    raise DataLoss(
                        f"{each.tp} ends at {ends[each.tp]}, before offset {each.start} that was read"
                    )
        ranges = present(ranges, bounds, fail_on_data_loss=options.fail_on_data_loss)
        return tasks(ranges, options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_range(self._options, self._columns, partition)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.commit_group is not None:
            self._note(self._options.commit_group, end)

    def _note(self, group: str, offsets: dict[str, Any]) -> None:
        ask(self._options.connect, lambda cluster: Groups(cluster).commit(group, from_json(offsets)))

    def _planned_before(self, bounds: OffsetBounds) -> dict[str, Any] | None:
        """Where the next batch begins, which Spark 4.1 does not tell before it asks how far it may go.

        A group remembers the end of the last batch that was planned. Without one, the first batch after a
        start has no limit: a guess too low would let the stream read everything in between again.
        """
        group = self._options.commit_group
        if group is None:
            return None
        found = ask(self._options.connect, lambda cluster: Groups(cluster).offsets(_planned(group)))
        offsets = {tp: at.offset for tp, at in found.items() if at.offset >= 0}
        offsets = offsets or place(self._options, self._options.starting, bounds, is_end=False)
        return to_json(offsets, bounds.topic_ids)


def _planned(group: str) -> str:
    return f"{group}-planned"


def to_json(offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for tp in sorted(offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    found[IDS] = {topic: topic_ids[topic] for topic in found if topic in topic_ids}
    return found


def from_json(offsets: Mapping[str, Any]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in offsets.items()
        if topic != IDS
        for partition, offset in partitions.items()
    }


def starting_at(reached: Mapping[str, Any], bounds: OffsetBounds) -> dict[TopicPartition, int]:
    """Where the next batch begins: behind the last, or at the beginning of what is new."""
    ids = reached.get(IDS, {})
    known = {
        tp: offset
        for tp, offset in from_json(reached).items()
        if ids.get(tp.topic) == bounds.topic_ids.get(tp.topic)
    }
    return {tp: known.get(tp, bounds.earliest[tp]) for tp in bounds.latest}


def check_columns(columns: Sequence[str], known: Iterable[str]) -> None:
    names = list(known)
    for name in columns:
        if name not in names:
            raise OptionError(f"there is no column {name!r}; there are {', '.join(names)}")
