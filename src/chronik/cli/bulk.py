"""Records made up for a load: batches are built once and sent over and over with a new time."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from chronik.cli.client import progress
from chronik.model import TopicPartition
from chronik.records.batch import MAX_TIMESTAMP_OFFSET, reseal
from chronik.records.reader import Record
from chronik.records.writer import build_batch

if TYPE_CHECKING:
    from chronik.client import Producer

_BATCH_BYTES: Final = 256 * 1024
_BATCH_RECORDS_MAX: Final = 10_000
_TIMESTAMPS: Final = struct.Struct(">qq")
_WORDS: Final = b"the quick brown fox jumps over a lazy dog and runs on through the log "


class BatchMaker:
    def __init__(self, size: int, headers: Sequence[tuple[str, bytes]], compression: int) -> None:
        self._size = size
        self._headers = tuple(headers)
        self._compression = compression
        self._batches: dict[int, bytearray] = {}
        overhead = 12 + sum(len(name) + len(value) + 4 for name, value in self._headers)
        self.records_per_batch = max(1, min(_BATCH_RECORDS_MAX, _BATCH_BYTES // (size + overhead)))

    def batch(self, count: int, now_ms: int) -> bytes:
        """A batch of `count` records that all happened now."""
        batch = self._batches.get(count)
        if batch is None:
            batch = self._batches[count] = self._build(count)
        _TIMESTAMPS.pack_into(batch, MAX_TIMESTAMP_OFFSET - 8, now_ms, now_ms)
        reseal(batch, 0, len(batch))
        return bytes(batch)

    def _build(self, count: int) -> bytearray:
        text = _WORDS * (self._size // len(_WORDS) + 2)
        records = []
        for index in range(count):
            start = index % len(_WORDS)
            value = text[start : start + self._size]
            records.append(Record(key=None, value=value, headers=self._headers, timestamp_ms=0))
        return build_batch(records, compression=self._compression)

    async def send(
        self, producer: Producer, partitions: Sequence[TopicPartition], count: int
    ) -> tuple[int, int]:
        """Send `count` records, the partitions taking turns; returns records and bytes of values."""
        sent = turn = 0
        with progress(f"to {partitions[0].topic}", count) as show:
            while sent < count:
                records = min(self.records_per_batch, count - sent)
                batch = self.batch(records, int(time.time() * 1000))
                await producer.send_batch(partitions[turn % len(partitions)], batch)
                sent += records
                turn += 1
                show(sent)
            await producer.flush()
        return sent, sent * self._size
