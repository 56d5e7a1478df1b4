"""Reads the closed segments of a node that runs, and tells what is not as it was written. Changes nothing.

Only segments that were closed at the newest checkpoint are read: they are synced and get no more batches. One
run at a time, in a thread of its own that rests three times as long as it works. A fault counts once it was
found twice, the second time in the file that readers use, with the segment still in its log: retention,
compaction and cuts go on meanwhile.

What `chronik verify` compares besides (WAL, checkpoints, metadata, what is missing) only stands still in the
directory of a node that is stopped.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from chronik.records.batch import BatchHeader
from chronik.storage import checkpoint as checkpoints
from chronik.storage.disk import File, IoThread, read_whole
from chronik.storage.index import OffsetIndex, TimeIndex
from chronik.storage.log import PartitionLog
from chronik.storage.segment import Segment
from chronik.storage.soundness import find_fault
from chronik.tasks import Tasks

if TYPE_CHECKING:
    from chronik.storage.store import LogStore

__all__ = ["SegmentCheck", "SegmentFinding", "Verifier"]

FINDINGS_KEPT_MAX: Final = 200
"""More are counted."""
RESTS_PER_WORK: Final = 3.0
BYTES_PER_SECOND_MAX: Final = 64 * 1024 * 1024
REST_SECONDS_MAX: Final = 5.0
READ_BYTES_MAX: Final = 128 * 1024 * 1024
"""At once. No batch is longer than a request may be; a damaged header can say anything."""


class SegmentFinding(msgspec.Struct, frozen=True, kw_only=True):
    file: str
    """Relative to the data directory."""
    position: int
    """Byte of the file; -1 where it concerns the whole of it."""
    kind: str
    """damaged segment, damaged index or unreadable file."""
    what: str
    topic: str
    partition: int
    offset: int | None = None
    """First offset that cannot be read there."""


class SegmentCheck(msgspec.Struct, kw_only=True):
    """How far the last run has come."""

    state: str = "never"
    """never, running, done, cancelled or failed."""
    started_ms: int | None = None
    ended_ms: int | None = None
    problem: str | None = None
    """Why it failed."""
    partitions: int = 0
    partitions_done: int = 0
    segments_done: int = 0
    bytes_done: int = 0
    file: str | None = None
    """The segment that is being read."""
    changed_meanwhile: int = 0
    """Segments that were replaced, cut or deleted while they were read: nothing is said of them."""
    finding_count: int = 0
    findings: list[SegmentFinding] = []
    """The first of them."""


class _Stopped(Exception):
    """The run was cancelled."""


class _Fault(NamedTuple):
    suffix: str
    position: int
    kind: str
    what: str
    offset: int | None = None


class Verifier:
    def __init__(self, store: LogStore, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._tasks = Tasks("verification")
        self._stop = threading.Event()
        self.report = SegmentCheck()

    @property
    def is_running(self) -> bool:
        return self.report.state == "running"

    def start(self) -> bool:
        """Begin a run; False if one is under way."""
        if self.is_running:
            return False
        self._stop = threading.Event()
        self.report = SegmentCheck(state="running", started_ms=self._now_ms())
        self._tasks.spawn(self._run(self.report, _Pace(self._stop)), "a verification")
        return True

    def cancel(self) -> bool:
        """End the run within moments; False if none is under way."""
        self._stop.set()
        return self.is_running

    async def close(self) -> None:
        self._stop.set()
        await self._tasks.finished()

    async def _run(self, report: SegmentCheck, pace: _Pace) -> None:
        try:
            bases = await self._closed_below()
            logs = [one for one in self._store if one.topic_id_bytes + _number(one) in bases]
            report.partitions = len(logs)
            for log_ in logs:
                pace.go_on()
                await self._look_at_log(report, pace, log_, bases[log_.topic_id_bytes + _number(log_)])
                report.partitions_done += 1
            report.state = "done"
        except _Stopped:
            report.state = "cancelled"
        except BaseException as error:
            report.state, report.problem = "failed", str(error) or type(error).__name__
            raise
        finally:
            report.file, report.ended_ms = None, self._now_ms()

    async def _closed_below(self) -> dict[bytes, int]:
        """For each log where its active segment began at the newest checkpoint."""
        disk, root = self._store.disk, self._store.root
        saved = await disk.run(IoThread.BACKGROUND, partial(checkpoints.load, disk, root))
        return {one.topic_id + one.partition.to_bytes(4): one.active_base_offset for one in saved.logs}

    async def _look_at_log(
        self, report: SegmentCheck, pace: _Pace, log_: PartitionLog, closed_below: int
    ) -> None:
        if log_.deleted:
            return
        await log_.load()
        cuts = log_.truncations
        for segment, following in pairwise(list(log_.segments)):
            if segment.base_offset >= closed_below:
                break
            if not _holds(log_, segment, cuts):
                continue
            report.file = str(segment.path.relative_to(self._store.root))
            look = partial(self._look, segment, following.base_offset, pace)
            faults = await asyncio.to_thread(look, is_second=False)
            report.bytes_done += segment.written_bytes
            if faults and _holds(log_, segment, cuts):
                faults = await asyncio.to_thread(look, is_second=True)
            if faults and not _holds(log_, segment, cuts):
                report.changed_meanwhile += 1
                continue
            report.segments_done += 1
            for fault in faults:
                self._note(report, log_, segment, fault)

    def _note(self, report: SegmentCheck, log_: PartitionLog, segment: Segment, fault: _Fault) -> None:
        report.finding_count += 1
        if len(report.findings) < FINDINGS_KEPT_MAX:
            path = segment.path.with_suffix(fault.suffix)
            found = SegmentFinding(
                file=str(path.relative_to(self._store.root)),
                position=fault.position,
                kind=fault.kind,
                what=fault.what,
                topic=log_.tp.topic,
                partition=log_.tp.partition,
                offset=fault.offset,
            )
            report.findings = [*report.findings, found]

    def _look(self, segment: Segment, end_offset: int, pace: _Pace, *, is_second: bool) -> list[_Fault]:
        """Blocking. The first time in a file of its own, so that readers keep those that they have open."""
        opened: File | None = None
        try:
            if not self._store.disk.exists(segment.path):
                return [
                    _Fault(".log", -1, "unreadable file", "it is not there; readers may still have it open")
                ]
            if not is_second:
                opened = self._store.disk.open(segment.path)
            file = segment.file if opened is None else opened
            offsets, times, faults = self._indexes(segment)
            walk = _IndexWalk(offsets, times)
            read_at = pace.reading(file)
            fault = find_fault(
                read_at, segment.readable_bytes, segment.base_offset, end_offset, walk.on_batch
            )
        except OSError as error:
            return [_Fault(".log", -1, "unreadable file", error.strerror or str(error))]
        finally:
            if opened is not None:
                opened.close()
        if fault is not None:
            return [*faults, _Fault(".log", fault.position, "damaged segment", fault.why, fault.offset)]
        return [*faults, *walk.faults()]

    def _indexes(self, segment: Segment) -> tuple[OffsetIndex | None, TimeIndex | None, list[_Fault]]:
        base, disk, path = segment.base_offset, self._store.disk, segment.path
        data = {suffix: read_whole(disk, path.with_suffix(suffix)) for suffix in (".index", ".timeindex")}
        offsets = OffsetIndex.decode(base, data[".index"] or b"", segment.written_bytes)
        times = TimeIndex.decode(base, data[".timeindex"] or b"")
        faults = [
            _Fault(suffix, -1, "damaged index", "its entries make no sense")
            for suffix, index in ((".index", offsets), (".timeindex", times))
            if index is None
        ]
        faults += [
            _Fault(suffix, -1, "damaged index", "it is missing")
            for suffix, one in data.items()
            if one is None
        ]
        return offsets, times, faults


class _Pace:
    """Reads for the thread, which rests before each read."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._since = time.monotonic()

    def go_on(self) -> None:
        """Raises _Stopped after a cancel."""
        if self._stop.is_set():
            raise _Stopped

    def reading(self, file: File) -> Callable[[int, int], bytes]:
        def read_at(position: int, size: int) -> bytes:
            worked = time.monotonic() - self._since
            rest = max(worked * RESTS_PER_WORK, size / BYTES_PER_SECOND_MAX)
            if self._stop.wait(min(rest, REST_SECONDS_MAX)):
                raise _Stopped
            self._since = time.monotonic()
            return file.read_at(position, min(size, READ_BYTES_MAX))

        self._since = time.monotonic()
        return read_at


class _IndexWalk:
    """Compares both indexes with the batches as they are walked, entry by entry."""

    def __init__(self, offsets: OffsetIndex | None, times: TimeIndex | None) -> None:
        self._offsets: Iterator[tuple[int, int]] = iter(()) if offsets is None else offsets.entries()
        self._times: Iterator[tuple[int, int]] = iter(()) if times is None else times.entries()
        self._offset = next(self._offsets, None)
        self._time = next(self._times, None)
        self._wrong_offsets = self._wrong_times = 0

    def on_batch(self, position: int, header: BatchHeader) -> None:
        last_offset = header.last_offset
        while self._offset is not None and self._offset[1] <= position:
            self._wrong_offsets += self._offset != (last_offset, position)
            self._offset = next(self._offsets, None)
        while self._time is not None and self._time[1] <= last_offset:
            self._wrong_times += self._time != (header.max_timestamp, last_offset)
            self._time = next(self._times, None)

    def faults(self) -> list[_Fault]:
        """Once every batch was seen."""
        self._wrong_offsets += (self._offset is not None) + sum(1 for _ in self._offsets)
        self._wrong_times += (self._time is not None) + sum(1 for _ in self._times)
        found = []
        if self._wrong_offsets:
            what = f"{self._wrong_offsets} entries do not point to their batch"
            found.append(_Fault(".index", -1, "damaged index", what))
        if self._wrong_times:
            what = f"{self._wrong_times} entries do not tell a batch's timestamp"
            found.append(_Fault(".timeindex", -1, "damaged index", what))
        return found


def _number(log_: PartitionLog) -> bytes:
    return log_.tp.partition.to_bytes(4)


def _holds(log_: PartitionLog, segment: Segment, cuts: int) -> bool:
    """Whether the segment is still what it was."""
    return not log_.deleted and log_.truncations == cuts and any(one is segment for one in log_.segments)
