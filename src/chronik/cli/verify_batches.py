"""What `chronik verify` compares with the batches of a log as it walks them: its indexes, its producers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from chronik.records.batch import BatchHeader
from chronik.storage.checkpoint import LogState
from chronik.storage.index import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex
from chronik.storage.producer_state import ProducerStates

NO_END: Final = 1 << 62
_POSITION_MAX: Final = 1 << 31
_ENTRY_BYTES: Final = {".index": OFFSET_ENTRY.size, ".timeindex": TIME_ENTRY.size}


class ProducerCheck:
    """Compares what the checkpoint remembers of producers with the headers of the log's batches."""

    def __init__(self, state: LogState) -> None:
        """Raises ValueError or DecodeError."""
        restored = ProducerStates.restore(state.producers)
        self._end = state.log_end_offset
        self._next_offset = restored.next_offset
        self._entries = {entry.producer_id: entry for entry in restored}
        self._spans = {
            span.base_offset: (entry.producer_id, entry.producer_epoch, span.base_sequence, span.last_offset)
            for entry in restored
            for span in entry.batches
        }
        self._seen: set[int] = set()
        """Base offsets of the remembered batches that were found in the log."""
        self._newest: dict[int, tuple[int, int]] = {}
        self._wrong: dict[int, str] = {}

    def on_batch(self, header: BatchHeader) -> None:
        if header.base_offset >= self._end:
            return
        span = self._spans.get(header.base_offset)
        if span is not None:
            self._seen.add(header.base_offset)
        found = (header.producer_id, header.producer_epoch, header.base_sequence, header.last_offset)
        if span not in (None, found):
            self._wrong[header.base_offset] = "the batch is of another producer, epoch or sequence"
        if header.producer_id >= 0 and not header.is_control:
            self._newest[header.producer_id] = (header.producer_epoch, header.last_offset)

    def wrong(self, known_from: int) -> list[tuple[str, int]]:
        """What is wrong and the offset; `known_from`: from there on every batch was seen."""
        found = [(f"at offset {offset} {why}", offset) for offset, why in self._wrong.items()]
        if self._next_offset > self._end:
            found.append((f"it ends at {self._next_offset}, the log at {self._end}", self._end))
        for offset, (producer, *_) in self._spans.items():
            if offset >= known_from and offset not in self._seen:
                found.append(
                    (f"the batch of producer {producer} at offset {offset} is not in the log", offset)
                )
        for producer, (epoch, last_offset) in self._newest.items():
            entry = self._entries.get(producer)
            if entry is None or not entry.batches or epoch < entry.producer_epoch:
                continue  # forgotten, or fenced since
            if epoch > entry.producer_epoch or last_offset > entry.batches[-1].last_offset:
                found.append((f"it lacks the batch of producer {producer} up to {last_offset}", last_offset))
        return found


class IndexCheck:
    """Compares the entries of both indexes with the batches as they are walked."""

    def __init__(self, path: Path, *, is_done: bool) -> None:
        """Unless it `is_done`, it may be ahead of its log: entries for what is not there do not count."""
        self._path = path
        self._is_done = is_done
        self.next_offset = int(path.stem)
        self._positions: dict[int, int] = {}
        self._times: set[tuple[int, int]] = set()
        self._broken: list[str] = []
        size = path.stat().st_size
        self._size = size
        for suffix in (".index", ".timeindex"):
            index = path.with_suffix(suffix)
            data = index.read_bytes() if index.exists() else b""
            if not is_done:
                data = data[: len(data) - len(data) % _ENTRY_BYTES[suffix]]
            limit = size if is_done else _POSITION_MAX
            offsets = OffsetIndex.decode(self.next_offset, data, limit) if suffix == ".index" else None
            times = TimeIndex.decode(self.next_offset, data) if suffix == ".timeindex" else None
            if offsets is None and times is None:
                self._broken.append(suffix)
            if offsets is not None:
                entries = offsets.before(NO_END)
                self._positions = {position: last for last, position in entries if position < size}
            if times is not None:
                self._times = set(times.before(NO_END))

    def on_batch(self, position: int, header: BatchHeader) -> None:
        self.next_offset = header.next_offset
        if self._positions.get(position) == header.last_offset:
            del self._positions[position]
        self._times.discard((header.max_timestamp, header.last_offset))

    def wrong(self, *, is_sealed: bool, is_whole: bool) -> list[tuple[str, str]]:
        """Suffix and reason of each index that does not say what the log holds."""
        found = [(suffix, "its entries make no sense") for suffix in self._broken]
        if not self._is_done:
            self._times = {one for one in self._times if one[1] < self.next_offset}
        if is_whole and self._positions:
            found.append((".index", f"{len(self._positions)} entries do not point to their batch"))
        if is_whole and self._times:
            found.append((".timeindex", f"{len(self._times)} entries do not tell a batch's timestamp"))
        if is_sealed and self._size:
            for suffix in (".index", ".timeindex"):
                if not self._path.with_suffix(suffix).exists():
                    found.append((suffix, "it is missing"))
        return found
