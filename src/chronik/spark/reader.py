"""Batch and stream readers: offsets in, tasks out, Arrow batches inside the tasks."""

from __future__ import annotations

import gc
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
    Filter,
    InputPartition,
)

from chronik.client.fetching import FetchOptions
from chronik.client.groups import Groups
from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.spark.fetching import RangeFetcher
from chronik.spark.options import OptionError, ReadOptions
from chronik.spark.planning import (
    Bounds,
    DataLoss,
    ask,
    first_offsets_since,
    place,
    present,
    survey,
)
from chronik.spark.ranges import EXACT_COLUMNS, Narrowed, OffsetRange, cap, split

IDS: Final = "@ids"
"""Key in a stream's offsets that no topic can have; holds the topics' ids."""


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


def read_range(
    options: ReadOptions, columns: Sequence[str], narrowed: Narrowed, work: RangePartition
) -> Iterator[pa.RecordBatch]:
    """What a task does. Imports the compiled scanner here: the driver does not need it."""
    from chronik.spark.scanner import Scanner, Window

    tp = TopicPartition(work.topic, work.partition)
    scanner = Scanner(columns, tp.topic, tp.partition)
    window = Window(
        first_offset=work.start,
        last_offset=work.end - 1,
        first_timestamp_ms=narrowed.timestamp_ms_min,
        last_timestamp_ms=narrowed.timestamp_ms_max,
    )
    fetch = FetchOptions(
        read_committed=options.read_committed,
        partition_max_bytes=options.fetch_bytes,
        max_bytes=options.fetch_bytes,
    )
    wanted = OffsetRange(tp, work.start, work.end)
    spare_the_worker()
    while wanted.size:
        try:
            for chunk in RangeFetcher(options.connect, wanted, fetch):
                yield from scanner.scan(chunk.data, window, chunk.aborted)
                wanted = replace(wanted, start=chunk.next_offset)
            return
        except RequestError as error:
            if error.code != ErrorCode.offset_out_of_range:
                raise
            wanted = _what_is_left(options, wanted, error)


def spare_the_worker() -> None:
    """Take two costs off each further task of this process, which together exceed that of a short range.

    Spark's worker forgets its import caches before each task and then reads the directory of pyspark.zip
    anew, once for each package that was loaded from it; an importer that is not in the cache is made again
    from what zipimport remembers. After each task it collects all garbage; modules are none.
    """
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            del sys.path_importer_cache[path]
    if not gc.get_freeze_count():
        gc.freeze()


def _what_is_left(options: ReadOptions, wanted: OffsetRange, error: RequestError) -> OffsetRange:
    """Retention may overtake a task: what is gone is an error or is left out, as the user wants."""
    if options.fail_on_data_loss:
        raise DataLoss(str(error)) from error
    bounds = survey(options, missing_ok=True)
    left = present([wanted], bounds, fail_on_data_loss=False)
    if not left or left[0].start <= wanted.start:
        return replace(wanted, end=wanted.start)
    return left[0]


class ChronikReader(DataSourceReader):
    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._narrowed = Narrowed()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        left = []
        for each in filters:
            column = ".".join(getattr(each, "attribute", ()))
            kind = type(each).__name__
            narrowed = self._narrowed.with_filter(kind, column, getattr(each, "value", None))
            if narrowed is not None:
                self._narrowed = narrowed
            if narrowed is None or not (column in EXACT_COLUMNS or kind == "IsNotNull"):
                left.append(each)
        return left

    def partitions(self) -> list[RangePartition]:
        options = self._options
        bounds = survey(options)
        starts = place(options, options.starting, bounds, is_end=False)
        ends = place(options, options.ending, bounds, is_end=True)
        ranges = [
            OffsetRange(tp, starts[tp], max(starts[tp], ends[tp]))
            for tp in sorted(starts)
            if self._narrowed.admits(tp)
        ]
        ranges = present(ranges, bounds, fail_on_data_loss=options.fail_on_data_loss)
        ranges = [self._narrowed.clip(each) for each in ranges]
        if self._narrowed.timestamp_ms_min > 0 and ranges:
            ranges = first_offsets_since(options, ranges, self._narrowed.timestamp_ms_min)
        return tasks(ranges, options.min_partitions) or [RangePartition("", 0, 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_range(self._options, self._columns, self._narrowed, partition)


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
            raise DataLoss(f"topic {changed[0]} was deleted and created anew since the last batch")
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
        return read_range(self._options, self._columns, Narrowed(), partition)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.commit_group is not None:
            self._note(self._options.commit_group, end)

    def _note(self, group: str, offsets: dict[str, Any]) -> None:
        ask(self._options.connect, lambda cluster: Groups(cluster).commit(group, from_json(offsets)))

    def _planned_before(self, bounds: Bounds) -> dict[str, Any] | None:
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


def starting_at(reached: Mapping[str, Any], bounds: Bounds) -> dict[TopicPartition, int]:
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
