"""Random histories with crashes inside compaction, against a model that keeps everything."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chronik.records.batch import BatchHeader, Buffer, check_batch
from chronik.records.compression import Compression
from chronik.records.reader import Record
from chronik.records.writer import build_batch, build_marker
from chronik.replication.partition import Partition
from chronik.storage.cleanable import load_position
from chronik.storage.disk import RealDisk, RealFile
from chronik.storage.keymap import BYTES_PER_KEY
from chronik.storage.recovery import open_store
from chronik.storage.store import LogStore
from tests.unit.replication.support import Clock, Replicas
from tests.unit.storage.support import OPTIONS
from tests.unit.storage.test_compaction import batches_of, compact, records_in

KEYS = [b"a", b"b", b"c", b"key number four", b"a key of more than sixteen bytes", b"e", b"f", b"g"]
RETENTION_MS = 10_000


class CrashingDisk(RealDisk):
    """Dies inside the nth change once told to; from then on nothing reaches the files.

    Syncs count but are not carried out: a process that dies takes no page cache with it.
    """

    changes_left: int | None = None
    crashed = False

    def change(self) -> None:
        if self.crashed:
            raise OSError("the process is dead")
        if self.changes_left is not None:
            self.changes_left -= 1
            if self.changes_left < 0:
                self.crashed = True
                raise OSError("the process dies here")

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        if create and not path.exists():
            self.change()
        file = super().open(path, create=create)
        return CrashingFile(path, file, self)

    def rename(self, source: Path, target: Path) -> None:
        self.change()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        if path.exists():
            self.change()
        super().remove(path)

    def sync_directory(self, directory: Path) -> None:
        self.change()


class CrashingFile(RealFile):
    __slots__ = ("_disk", "_inner")

    def __init__(self, path: Path, inner: RealFile, disk: CrashingDisk) -> None:
        super().__init__(path, inner._fd)
        self._inner = inner
        self._disk = disk
        inner._fd = -1

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        try:
            self._disk.change()
        except OSError:
            data = b"".join(buffers)
            super().write_at(position, [data[: len(data) // 2]])
            raise
        return super().write_at(position, buffers)

    def sync(self) -> None:
        self._disk.change()


@dataclass
class Model:
    records: list[tuple[int, bytes, bytes | None]] = field(default_factory=list)
    batches: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Base offset to last offset, producer id, base sequence."""
    aborted: set[int] = field(default_factory=set)
    sequences: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[int]] = field(default_factory=dict)
    markers: dict[int, int] = field(default_factory=dict)
    """Base offset of a transactional batch to the offset of its marker."""
    start: int = 0
    end: int = 0

    def check(self, partition: Partition, found: list[tuple[BatchHeader, bytes]], clean_below: int) -> None:
        assert (partition.log_start_offset, partition.log_end_offset) == (self.start, self.end)
        for header, _ in found:
            expected = self.batches[header.base_offset]
            assert (header.last_offset, header.producer_id, header.base_sequence) == expected
        ends = [header.next_offset for header, _ in found]
        assert ends == sorted(ends)
        assert not found or ends[-1] == self.end
        seen = [one for one in records_in(found) if one[0] not in self.aborted and one[0] >= self.start]
        committed = [one for one in self.records if one[0] not in self.aborted]
        assert set(seen) <= set(committed), "a record that nobody wrote"
        assert [one[0] for one in seen] == sorted(one[0] for one in seen)
        for key, (offset, value) in {key: (o, value) for o, key, value in committed}.items():
            mine = [one for one in seen if one[1] == key]
            if offset >= self.start and (value is not None or mine):
                assert mine, f"the last value of {key!r} is lost"
                assert mine[-1] == (offset, key, value)
        last_clean = {key: o for o, key, _ in committed if o < clean_below}
        stale = [one for one in seen if one[0] < clean_below and last_clean[one[1]] != one[0]]
        assert stale == [], "compaction left records that have a younger one"

    def check_transactions(self, found: list[tuple[BatchHeader, bytes]]) -> None:
        there = {header.base_offset for header, _ in found}
        for header, _ in found:
            if header.is_transactional and not header.is_control:
                marker = self.markers.get(header.base_offset)
                assert marker is None or marker in there, "records without the marker that judges them"

    def check_producers(self, partition: Partition, found: list[tuple[BatchHeader, bytes]]) -> None:
        last_offsets = {header.last_offset for header, _ in found}
        for producer_id, next_sequence in self.sequences.items():
            assert partition.log.producers is not None
            entry = partition.log.producers.get(producer_id)
            assert entry is not None
            assert entry.last_sequence == next_sequence - 1
            last = entry.batches[-1].last_offset
            assert last in last_offsets or last < self.start, "a replica could not learn this sequence"


def check_files(partition: Partition) -> None:
    """Batches stand in the files in the order of their offsets, none of them twice."""
    next_offset = -1
    for segment in partition.log.segments:
        assert segment.base_offset >= next_offset
        for _, header in segment.scan(0) if segment.written_bytes else ():
            assert header.base_offset >= max(next_offset, segment.base_offset)
            next_offset = header.next_offset


class History:
    """One random life of a log, over several processes."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.rng = random.Random(seed)
        self.model = Model()
        self.clock = Clock()
        self.configs = {
            "cleanup_policy": "compact",
            "min_cleanable_dirty_ratio": "0",
            "delete_retention_ms": RETENTION_MS,
            "segment_bytes": self.rng.choice([600, 2_000, 1 << 20]),
            "index_interval_bytes": self.rng.choice([0, 200, 4096]),
            "file_delete_delay_ms": 0,
        }
        self.crashes = 0

    async def session(self) -> None:
        disk = CrashingDisk(asyncio.get_running_loop())
        store, report = open_store(disk, self.root, OPTIONS)
        try:
            assert report.damage == []
            replicas = Replicas(store)
            partition = replicas.add("t", **self.configs)
            await self._check(store, partition)
            for _ in range(self.rng.randrange(5, 40)):
                await self._act(disk, store, replicas, partition)
                if disk.crashed:
                    self.crashes += 1
                    return
            await self._check(store, partition)
            if self.rng.random() < 0.5:
                await store.stop()
        finally:
            disk.close()

    async def _check(self, store: LogStore, partition: Partition) -> None:
        position = load_position(store.disk, partition.log.directory)
        found = await batches_of(partition)
        self.model.check(partition, found, position.first_dirty_offset)
        self.model.check_transactions(found)
        self.model.check_producers(partition, found)
        await store.flusher.flushed()
        check_files(partition)

    async def _act(
        self, disk: CrashingDisk, store: LogStore, replicas: Replicas, partition: Partition
    ) -> None:
        rng, model = self.rng, self.model
        match rng.choices(
            ["plain", "transactional", "end", "roll", "settle", "compact", "wait", "cut"],
            [30, 20, 14, 10, 10, 16, 8, 1],
        )[0]:
            case "plain":
                self._append(partition, -1)
            case "transactional":
                self._append(partition, rng.randrange(1, 4))
            case "end" if model.open:
                self._end(partition, rng.choice(list(model.open)), commit=rng.random() < 0.5)
            case "roll" if partition.log.segments[-1].size_bytes:
                partition.log.roll(partition.log.log_end_offset)
            case "settle":
                await store.wal.drained()
                await store.checkpoint()
                await store.checkpoint()
            case "compact":
                await store.wal.drained()
                await store.flusher.flushed()
                disk.changes_left = rng.choice([None, rng.randrange(60)])
                room = rng.choice([3, 100]) * BYTES_PER_KEY
                await compact(replicas, self.clock, map_bytes_max=room, checkpoint_seconds=1e9)
                disk.changes_left = None
                if not disk.crashed:
                    await self._check(store, partition)
            case "wait":
                self.clock.now_ms += rng.choice([1, RETENTION_MS // 2, RETENTION_MS])
            case "cut" if partition.high_watermark > model.start:
                await store.wal.drained()
                model.start = rng.randrange(model.start, partition.high_watermark + 1)
                await partition.delete_records(model.start, self.clock.now_ms)
        await store.wal.drained()

    def _append(self, partition: Partition, producer_id: int) -> None:
        rng, model = self.rng, self.model
        records = [
            (rng.choice(KEYS), None if rng.random() < 0.2 else rng.randbytes(rng.randrange(40)))
            for _ in range(rng.randrange(1, 5))
        ]
        sequence = model.sequences.get(producer_id, 0) if producer_id >= 0 else -1
        batch = build_batch(
            [
                Record(key=key, value=value, timestamp_ms=self.clock.now_ms + rng.randrange(100))
                for key, value in records
            ],
            compression=rng.choice(list(Compression)),
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
            is_transactional=producer_id >= 0,
        )
        self._put(partition, batch, producer_id, sequence, len(records))
        offsets = range(model.end - len(records), model.end)
        model.records += [(offset, *record) for offset, record in zip(offsets, records, strict=True)]
        if producer_id >= 0:
            model.sequences[producer_id] = sequence + len(records)
            model.open.setdefault(producer_id, []).extend(offsets)

    def _end(self, partition: Partition, producer_id: int, *, commit: bool) -> None:
        marker = build_marker(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=self.clock.now_ms,
        )
        offsets = self.model.open.pop(producer_id)
        for offset in offsets:
            self.model.markers[offset] = self.model.end
        self._put(partition, marker, producer_id, -1, 1)
        if not commit:
            self.model.aborted.update(offsets)

    def _put(
        self, partition: Partition, batch: bytearray, producer_id: int, sequence: int, count: int
    ) -> None:
        model = self.model
        header = check_batch(batch)
        assert partition.log.append(memoryview(batch), header, 0, self.clock.now_ms) == model.end
        model.batches[model.end] = (model.end + count - 1, producer_id, sequence)
        model.end += count


@pytest.mark.parametrize("seed", range(30))
def test_random_histories_match_the_model(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    history = History(tmp_path, seed)
    for _ in range(6):
        asyncio.run(history.session())
