"""How WAL entries look on disk (docs/FORMATS.md has the picture).

An entry is a fixed header and a payload. The header carries its own CRC and the CRC of the payload, and a
sequence number that only grows: where it does not, the bytes are left over from before and the log ends.

It also carries the number of its commit round. A round with a higher number starts only after all with lower
ones were synced, so an unreadable entry with a higher number behind it had been synced (the disk lost it:
damage), while one of the last number may not have been (a torn write: the log ends there). Rounds that are
reported before they are synced share a number with what follows them until a sync (`wal_queue`).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from chronik.model import refuse_newer
from chronik.records.batch import Buffer
from chronik.storage.disk import Disk

MAGIC: Final = 0x43_57_41_4C  # "CWAL"
_BODY: Final = struct.Struct(">IIQQ16siqB3x")
VERSION: Final = 0
"""Version of the entry's form, in the byte after its kind: 0, as padding was in release 0.1."""
_HEAD: Final = struct.Struct(">II")
ENTRY_HEADER_BYTES: Final = _HEAD.size + _BODY.size
PAYLOAD_BYTES_MAX: Final = 512 * 1024 * 1024
_SEQUENCE_AT: Final = 16
_VERSION_AT: Final = ENTRY_HEADER_BYTES - 3
_READ_CHUNK_BYTES: Final = 1024 * 1024


class WalEntryKind(enum.IntEnum):
    APPEND = 1
    """Record batches, the first of which starts at `offset`."""
    TRUNCATE = 2
    """The log ends at `offset`; what stood behind it is gone."""
    LOG_START = 3
    """The log starts at `offset`; what stood before it may be deleted."""
    HARD_STATE = 4
    """Raft term and vote; belongs to no offset."""
    RESET = 5
    """The log is empty and starts at `offset` (a deleted log, or a follower behind the leader's start)."""
    OPEN = 6
    """The log is new; the payload is its topic's name. Stands before the first append."""


class EntryHeader(NamedTuple):
    payload_bytes: int
    payload_crc: int
    sequence: int
    round: int
    topic_id: bytes
    partition: int
    offset: int
    kind: int


class WalEntry(NamedTuple):
    header: EntryHeader
    payload: bytes
    file_position: int


@dataclass(slots=True)
class Damage:
    """A place in a WAL file that cannot be read although later entries can: the disk lost it."""

    file_name: str
    position: int
    bytes_skipped: int
    header: EntryHeader | None


def encode_header(
    kind: int, sequence: int, round_: int, topic_id: bytes, partition: int, offset: int, payload: Buffer
) -> bytes:
    body = _BODY.pack(len(payload), crc32c(payload), sequence, round_, topic_id, partition, offset, kind)
    return _HEAD.pack(MAGIC, crc32c(body)) + body


def with_position(header: bytes, sequence: int, round_: int) -> bytes:
    """The same header, for another place in the WAL."""
    values = EntryHeader._make(_BODY.unpack_from(header, _HEAD.size))
    body = _BODY.pack(*values._replace(sequence=sequence, round=round_))
    return _HEAD.pack(MAGIC, crc32c(body)) + body


def decode_header(data: bytes, position: int = 0) -> EntryHeader | None:
    """The header at `position`, or None if there is no sound one. Raises TooNew."""
    magic, crc = _HEAD.unpack_from(data, position)
    if magic != MAGIC:
        return None
    body = data[position + _HEAD.size : position + ENTRY_HEADER_BYTES]
    if crc32c(body) != crc:
        return None
    refuse_newer("an entry of the write-ahead log", data[position + _VERSION_AT], VERSION)
    header = tuple.__new__(EntryHeader, _BODY.unpack(body))
    return header if header.payload_bytes <= PAYLOAD_BYTES_MAX else None


ReadAt = Callable[[int, int], bytes]
_NO_ROUND: Final = -1
ANY_ROUND: Final = 1 << 64
"""Higher than the number of any round."""


def _any_round(_after_sequence: int) -> int:
    return ANY_ROUND


def first_round(disk: Disk, paths: Iterable[Path], after_sequence: int) -> int:
    """Number of the first round in these files that is newer than this sequence number; -1 if there is none.

    A file whose first write failed has none: the next one tells then.
    """
    for path in paths:
        file = disk.open(path)
        try:
            scanner = WalScanner("", file.read_at, file.size(), after_sequence, is_last_file=True)
            position = scanner.find_sound_entry(0, after_sequence)
            header = scanner.header_at(position) if position is not None else None
        finally:
            file.close()
        if header is not None:
            return header.round
    return _NO_ROUND


class WalScanner:
    """Walks one WAL file entry by entry, in bounded memory, past damage where a later round follows it."""

    def __init__(
        self,
        file_name: str,
        read_at: ReadAt,
        size: int,
        after_sequence: int,
        *,
        is_last_file: bool,
        next_round: Callable[[int], int] = _any_round,
    ) -> None:
        """`next_round` tells the number of the first round behind a sequence number in the files that follow.

        Where that is not higher than this file's last one, a sync of this file may have failed, and its end
        was written again.
        """
        self._file_name = file_name
        self._read_at = read_at
        self._size = size
        self._is_last_file = is_last_file
        self._next_round = next_round
        self.last_sequence = after_sequence
        self.last_round = -1
        self.end_position = 0
        """Where the last sound entry ends."""
        self.torn_at: int | None = None
        """Where an unfinished round was cut off, if it was."""
        self.damage: list[Damage] = []

    def entries(self, wanted: Callable[[EntryHeader], bool] = lambda _: True) -> Iterator[WalEntry]:
        """Sound entries in order; the payload is read (and checked) only for those that are `wanted`."""
        position = 0
        while True:
            header = self.header_at(position)
            if header is None or header.sequence <= self.last_sequence:
                following = self.find_sound_entry(position + 1, self.last_sequence)
                if following is None:
                    return
                if not self._later_round_from(following):
                    self.torn_at = position
                    return
                self.damage.append(Damage(self._file_name, position, following - position, None))
                position = following
                continue
            end = position + ENTRY_HEADER_BYTES + header.payload_bytes
            payload = b""
            if wanted(header):
                payload = self._read_at(position + ENTRY_HEADER_BYTES, header.payload_bytes)
                if len(payload) < header.payload_bytes or crc32c(payload) != header.payload_crc:
                    if not self._round_after(end, header.sequence, header.round):
                        self.torn_at = position
                        return
                    self.damage.append(Damage(self._file_name, position, end - position, header))
                    self.last_sequence = header.sequence
                    position = end
                    continue
            self.last_sequence = header.sequence
            self.last_round = header.round
            self.end_position = end
            yield WalEntry(header, payload, position)
            position = end

    def header_at(self, position: int) -> EntryHeader | None:
        if position + ENTRY_HEADER_BYTES > self._size:
            return None
        data = self._read_at(position, ENTRY_HEADER_BYTES)
        return decode_header(data) if len(data) == ENTRY_HEADER_BYTES else None

    def _later_round_from(self, position: int) -> bool:
        header = self.header_at(position)
        if header is None:
            return False
        end = position + ENTRY_HEADER_BYTES + header.payload_bytes
        return self._round_after(end, header.sequence, header.round)

    def _round_after(self, position: int, sequence: int, round_: int) -> bool:
        """Whether an entry of a later round than `round_` stands at `position` or behind it."""
        if not self._is_last_file and self._next_round(sequence) > round_:
            return True
        found = self.find_sound_entry(position, sequence)
        while found is not None:
            header = self.header_at(found)
            if header is None:
                return False
            if header.round > round_:
                return True
            sequence = header.sequence
            found = self.find_sound_entry(found + ENTRY_HEADER_BYTES + header.payload_bytes, sequence)
        return False

    def find_sound_entry(self, position: int, after_sequence: int) -> int | None:
        """The next place at or behind `position` with a sound header of a higher sequence."""
        header = self.header_at(position)
        if header is not None and header.sequence > after_sequence:
            return position  # as mostly: whoever walks from entry to entry reads no chunk for each of them
        needle = MAGIC.to_bytes(4, "big")
        while position + ENTRY_HEADER_BYTES <= self._size:
            chunk = self._read_at(position, _READ_CHUNK_BYTES)
            found = chunk.find(needle)
            while found >= 0:
                sequence = int.from_bytes(chunk[found + _SEQUENCE_AT : found + _SEQUENCE_AT + 8], "big")
                # A file that is used again is full of old ones: a quick look is enough for them.
                if sequence > after_sequence or found + ENTRY_HEADER_BYTES > len(chunk):
                    header = self.header_at(position + found)
                    if header is not None and header.sequence > after_sequence:
                        return position + found
                found = chunk.find(needle, found + 1)
            if len(chunk) < _READ_CHUNK_BYTES:
                return None
            position += len(chunk) - 3
        return None
