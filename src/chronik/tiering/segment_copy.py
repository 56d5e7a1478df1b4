"""Turns a local segment into an object: batch by batch, each checked, with a footer behind them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from chronik.model import StorageError
from chronik.records.batch import HEADER_BYTES, OVERHEAD_BYTES, BatchHeader, check_batch, read_header
from chronik.storage.index import OffsetIndex, TimeIndex
from chronik.storage.producer_state import AbortedTxn
from chronik.tiering.manifest import BATCH_BYTES_MAX, FOOTER_BYTES_MAX, RemoteSegment, SegmentFooter, encode

__all__ = ["BatchTooLarge", "SegmentCopy"]

SIZE_MAX: Final = 2**31


class BatchTooLarge(StorageError):
    """A sound batch that could not be read back from the object store."""


class SegmentCopy:
    """One attempt to copy the batches from `base_offset` up to `end_offset`."""

    def __init__(self, name: str, base_offset: int, end_offset: int, index_interval_bytes: int) -> None:
        self._name = name
        self._base_offset = base_offset
        self._end_offset = end_offset
        self._interval = index_interval_bytes
        self._pieces: list[bytes] = []
        """What was fed and has no whole batch yet."""
        self._missing_bytes = 0
        """The batch that has begun needs so many more: until they are there, nothing is joined."""
        self._offsets = OffsetIndex(base_offset)
        self._times = TimeIndex(base_offset)
        self._since_index = 0
        self.next_offset = -1
        self._max_timestamp_ms = -1
        self._max_timestamp_offset = base_offset
        self.epochs: list[tuple[int, int]] = []
        """(leader epoch, first offset), as the batches say."""
        self.log_bytes = 0
        self._footer = b""

    def feed(self, data: bytes) -> bytes:
        """Blocking work: the whole batches of what was read next. StorageError if one is damaged,
        BatchTooLarge if it is not and cannot go up all the same."""
        self._pieces.append(data)
        self._missing_bytes -= len(data)
        if self._missing_bytes > 0:
            return b""
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        start = position = needed = 0
        while len(data) - position >= HEADER_BYTES:
            header = read_header(data, position)
            size = header.batch_length + OVERHEAD_BYTES
            if not HEADER_BYTES <= size < SIZE_MAX:
                raise StorageError(f"a batch near offset {self.next_offset} is damaged on this disk")
            if size > BATCH_BYTES_MAX and header.last_offset >= self._base_offset:
                raise BatchTooLarge(
                    f"the batch at offset {header.base_offset} has {size} bytes: the object store takes "
                    f"{BATCH_BYTES_MAX} at most, so it and what follows stay on this disk, whatever their "
                    f"retention, until records up to {header.last_offset} are deleted or "
                    "remote.log.copy.disable is set"
                )
            if position + size > len(data):
                needed = position + size
                break
            check_batch(data, position)
            if header.base_offset < self.next_offset or header.last_offset >= self._end_offset:
                raise StorageError(f"offset {header.base_offset} is out of order on this disk")
            position += size
            if header.last_offset < self._base_offset:
                start = position  # the store has it already
            else:
                self._note(header, size)
        rest = data[position:]
        self._pieces = [rest] if rest else []
        self._missing_bytes = max(needed - len(data), 0)
        return data[start:position]

    def _note(self, header: BatchHeader, size: int) -> None:
        last_offset = header.last_offset
        if header.max_timestamp > self._max_timestamp_ms:
            self._max_timestamp_ms, self._max_timestamp_offset = header.max_timestamp, last_offset
        if self._since_index > self._interval:
            self._offsets.add(last_offset, self.log_bytes)
            self._times.add(self._max_timestamp_ms, self._max_timestamp_offset)
            self._since_index = 0
        if not self.epochs or header.leader_epoch > self.epochs[-1][0]:
            self.epochs.append((header.leader_epoch, max(header.base_offset, self._base_offset)))
        self._since_index += size
        self.log_bytes += size
        self.next_offset = last_offset + 1

    def finish(self, aborted: Sequence[AbortedTxn]) -> bytes:
        """Blocking: the footer, once everything was fed."""
        if self._pieces or not self.log_bytes:
            raise StorageError("the segment does not end with a whole batch on this disk")
        if self._max_timestamp_ms >= 0:
            self._times.add(self._max_timestamp_ms, self._max_timestamp_offset)
        self._footer = encode(SegmentFooter(self._offsets.encode(), self._times.encode(), tuple(aborted)))
        if len(self._footer) > FOOTER_BYTES_MAX:
            raise StorageError(f"its index and aborted transactions have more than {FOOTER_BYTES_MAX} bytes")
        return self._footer

    def described(self, written_ms: int) -> RemoteSegment:
        return RemoteSegment(
            name=self._name,
            base_offset=self._base_offset,
            end_offset=self._end_offset,
            log_bytes=self.log_bytes,
            footer_bytes=len(self._footer),
            footer_crc=crc32c(self._footer),
            max_timestamp_ms=self._max_timestamp_ms,
            written_ms=written_ms,
        )
