"""`chronik verify` of the write-ahead log: its damage, what a start would replay, what it still holds.

Recovery replays the entries from the checkpoint's sequence on. Entries before that are kept for a while in
files that are not needed any more: a batch that a segment lost may still stand there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from chronik.cli.verify_findings import NOT_NOTICED, FileFinding, Inspection, Place
from chronik.model import METADATA_TOPIC, METADATA_TOPIC_ID
from chronik.records.batch import headers
from chronik.storage.checkpoint import Checkpoint
from chronik.storage.wal_format import (
    ENTRY_HEADER_BYTES,
    EntryHeader,
    WalEntry,
    WalEntryKind,
    WalScanner,
    decode_header,
    first_round,
)

_UNFINISHED: Final = (
    "the last write cannot be read: either it was not finished, and nobody was told that it succeeded but "
    "those who write to topics with flush.ms or flush.messages, or the disk lost it afterwards"
)

Advance = Callable[[int], None]
SegmentBytes = Callable[[Place, int], "bytes | None"]
"""Reads that many bytes of batches from the place on, out of segments."""


@dataclasses.dataclass(slots=True)
class Replay:
    """What a start would do with one log, by the entries behind the checkpoint."""

    start: int = 0
    """Log start that was set."""
    end_max: int = 0
    """Highest end of its appends."""
    cut_at: int | None = None
    """Lowest offset at which the log was truncated."""
    is_reset: bool = False
    """The log was emptied: what the checkpoint says of it is void."""


class _WalAppend(NamedTuple):
    """An append that the WAL holds."""

    offset: int
    next_offset: int
    path: Path
    position: int
    """Where the payload begins in the file."""
    payload_bytes: int


class _Unreadable(NamedTuple):
    finding: FileFinding
    path: Path
    position: int
    header: EntryHeader | None
    after_sequence: int
    """Last sequence number of the files before."""
    is_last: bool


class WalCheck:
    def __init__(self, inspection: Inspection, checkpoint: Checkpoint | None, advance: Advance) -> None:
        """Without a checkpoint that can be read all entries count as replayed."""
        self._inspection = inspection
        self._checkpoint = checkpoint
        self._advance = advance
        self._from_sequence = checkpoint.sequence if checkpoint is not None else 0
        self._topics = {METADATA_TOPIC_ID.bytes: METADATA_TOPIC}
        if checkpoint is not None:
            self._topics |= {state.topic_id: state.topic for state in checkpoint.logs}
        self.replays: dict[tuple[str, int], Replay] = {}
        self._held: dict[tuple[str, int], list[_WalAppend]] = {}
        self._unreadable: list[_Unreadable] = []

    def run(self, paths: list[Path], *, is_cut_back: bool) -> None:
        """`is_cut_back`: both checkpoints are of one time, as recovery leaves them on a full disk; it may
        have removed files behind them then, whose entries are in segments."""
        sequence, number = -1, -1
        for place, path in enumerate(paths):
            scanner, first = self._scan(path, sequence, paths[place + 1 :])
            self._look_for_holes(path, number, first, is_cut_back=is_cut_back)
            sequence, number = max(sequence, scanner.last_sequence), int(path.stem)
            self._advance(path.stat().st_size)

    def _scan(self, path: Path, after_sequence: int, behind: list[Path]) -> tuple[WalScanner, int | None]:
        """Scan one file. Returns the scanner and the sequence number of the first entry. `behind` are the
        files that follow."""
        file = self._inspection.disk.open(path)
        first: int | None = None
        try:
            scanner = WalScanner(
                path.name,
                file.read_at,
                path.stat().st_size,
                after_sequence,
                is_last_file=not behind,
                next_round=partial(first_round, self._inspection.disk, behind),
            )
            for entry in scanner.entries():
                first = entry.header.sequence if first is None else first
                self._note(path, entry)
            torn = None
            if scanner.torn_at is not None:
                torn = decode_header(
                    file.read_at(scanner.torn_at, ENTRY_HEADER_BYTES).ljust(ENTRY_HEADER_BYTES)
                )
                if torn is not None and torn.sequence <= scanner.last_sequence:
                    torn = None  # of an earlier use of the file
        finally:
            file.close()
        for damage in scanner.damage:
            what = f"{damage.bytes_skipped} bytes of entries that had been synced cannot be read"
            finding = self._inspection.find(path, damage.position, "damaged WAL entry", what)
            self._tell(_Unreadable(finding, path, damage.position, damage.header, after_sequence, False))
        if scanner.torn_at is not None:
            finding = self._inspection.find(path, scanner.torn_at, "torn WAL tail", _UNFINISHED)
            self._tell(_Unreadable(finding, path, scanner.torn_at, torn, after_sequence, True))
        return scanner, first

    def _tell(self, one: _Unreadable) -> None:
        """Say which records it concerns, as far as that is known."""
        finding, header = one.finding, one.header
        if header is not None and header.kind == WalEntryKind.APPEND:
            finding.topic, finding.partition, finding.offset = place = self._place(header)
            finding.what += f"; it is of {place}"
        if header is not None and self._checkpoint is not None and header.sequence < self._from_sequence:
            finding.what += "; the checkpoint says that segments have it: nothing is lost"
        elif not one.is_last:
            finding.what += f"; {NOT_NOTICED}"
        self._unreadable.append(one)

    def _place(self, header: EntryHeader) -> Place:
        topic = self._topics.get(header.topic_id) or str(UUID(bytes=header.topic_id))
        return Place(topic, header.partition, header.offset)

    def _note(self, path: Path, entry: WalEntry) -> None:
        header = entry.header
        if header.kind == WalEntryKind.HARD_STATE:
            return
        if header.kind == WalEntryKind.OPEN:
            self._topics[header.topic_id] = entry.payload.decode()
        place = self._place(header)
        key = place[:2]
        end = header.offset
        held = self._held.setdefault(key, [])
        if header.kind == WalEntryKind.APPEND:
            for _, batch in headers(entry.payload):
                end = batch.next_offset
        if header.kind in (WalEntryKind.APPEND, WalEntryKind.TRUNCATE):
            while held and held[-1].next_offset > header.offset:
                cut = held.pop()  # off, or taken back and assigned again
                if cut.offset < header.offset:
                    held += self._before(cut, header.offset)
        elif header.kind == WalEntryKind.RESET:
            held.clear()
        if header.kind == WalEntryKind.APPEND:
            start = entry.file_position + ENTRY_HEADER_BYTES
            held.append(_WalAppend(header.offset, end, path, start, header.payload_bytes))
        if header.sequence >= self._from_sequence:
            self._replay(self.replays.setdefault(key, Replay()), header, end)

    def _before(self, one: _WalAppend, offset: int) -> list[_WalAppend]:
        """What is left of an append of several batches that was cut at this offset."""
        size, end = 0, one.offset
        for position, batch in headers(self._inspection.read(one.path, one.position, one.payload_bytes)):
            if batch.next_offset > offset:
                break
            size, end = position + batch.size_bytes, batch.next_offset
        return [one._replace(next_offset=end, payload_bytes=size)] if size else []

    @staticmethod
    def _replay(replay: Replay, header: EntryHeader, end: int) -> None:
        match header.kind:
            case WalEntryKind.APPEND:
                replay.end_max = max(replay.end_max, end)
            case WalEntryKind.TRUNCATE:
                replay.cut_at = header.offset if replay.cut_at is None else min(replay.cut_at, header.offset)
            case WalEntryKind.LOG_START:
                replay.start = max(replay.start, header.offset)
            case WalEntryKind.RESET:
                replay.start, replay.is_reset = header.offset, True
                replay.end_max = max(replay.end_max, header.offset)

    def _look_for_holes(self, path: Path, number: int, first: int | None, *, is_cut_back: bool) -> None:
        """`number` is the number of the file before, or -1; `first` is the first sequence number in this
        file."""
        follows = int(path.stem)
        missing = path.with_name(f"{follows - 1:012d}.wal")
        what = ""
        if number >= 0 and follows != number + 1:
            count = follows - number - 1
            what = f"{count} files are missing between {number:012d}.wal and {path.name}"
        elif number < 0 < follows and self._is_behind_checkpoint(first) and not is_cut_back:
            # A file goes only once a checkpoint is not older than the first entry of the file behind it.
            what = f"the checkpoint needs entries before the first one in {path.name}"
        if not what:
            return
        if self._checkpoint is not None and first is not None and first <= self._from_sequence:
            what += "; all of their entries precede the checkpoint: nothing is lost while it can be read"
        else:
            what += f"; what only they held is lost on this disk. {NOT_NOTICED}"
        self._inspection.find(missing, -1, "missing WAL file", what)

    def _is_behind_checkpoint(self, first: int | None) -> bool:
        return self._checkpoint is not None and first is not None and first > self._from_sequence

    # --- what else has to be known for a repair ----------------------------------------------------

    def batch_at(self, place: Place) -> tuple[bytes, str] | None:
        """The batch that begins at an offset, if the WAL still holds it; also the file's name."""
        for held in reversed(self._held.get(place[:2], ())):
            if place.offset is not None and held.offset <= place.offset < held.next_offset:
                payload = self._inspection.read(held.path, held.position, held.payload_bytes)
                for position, header in headers(payload):
                    if header.base_offset == place.offset:
                        return payload[position : position + header.size_bytes], held.path.name
        return None

    def appends(self, key: tuple[str, int]) -> list[bytes]:
        """All that the WAL holds of a log, oldest first, without what was cut off again."""
        held = self._held.get(key, ())
        return [self._inspection.read(one.path, one.position, one.payload_bytes) for one in held]

    def settle(self, segment_bytes: SegmentBytes) -> None:
        """After the logs: write entries again whose records a segment has, and cut a torn tail."""
        if not self._inspection.is_repairing:
            return
        for one in self._unreadable:
            payload = self._payload_in_segments(one.header, segment_bytes)
            if payload is not None:
                start = one.position + ENTRY_HEADER_BYTES
                self._inspection.overwrite(one.finding, one.path, start, payload, "a segment")
                self._inspection.settled("records behind the WAL", one.finding, "the WAL has them again")
        for one in self._unreadable:
            if one.is_last:
                self._settle_tail(one)

    def _settle_tail(self, one: _Unreadable) -> None:
        file = self._inspection.disk.open(one.path)
        try:
            size = one.path.stat().st_size
            scanner = WalScanner(one.path.name, file.read_at, size, one.after_sequence, is_last_file=True)
            for _ in scanner.entries():
                pass
        finally:
            file.close()
        if scanner.torn_at is None:
            return  # with the entry that was written again, those behind it can be read too
        if self._checkpoint is None:
            one.finding.what += "; not cut, since no checkpoint can be read"
        else:
            self._inspection.cut(one.finding, one.path, scanner.torn_at)

    def _payload_in_segments(self, header: EntryHeader | None, segment_bytes: SegmentBytes) -> bytes | None:
        if header is None or header.kind != WalEntryKind.APPEND:
            return None
        payload = segment_bytes(self._place(header), header.payload_bytes)
        return payload if payload is not None and crc32c(payload) == header.payload_crc else None
