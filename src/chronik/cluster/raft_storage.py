"""Where Raft keeps its log: the metadata topic's partition, on the same WAL as all data.

The entry with index i is the record at offset i - 1 of `__chronik_metadata`-0; its batch carries the term as
leader epoch, its key the kind. Term and vote are entries of the WAL's own. Snapshots are files of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from crc32c import crc32c

from chronik.model import METADATA_TOPIC_ID, StorageError
from chronik.raft import Entry, EntryKind, HardState, Snapshot
from chronik.records.batch import headers, stamp
from chronik.records.reader import Record, read_records
from chronik.records.writer import build_batch
from chronik.storage import reading
from chronik.storage.disk import IoThread, read_whole, write_atomically
from chronik.storage.log import PartitionLog
from chronik.storage.lost_checkpoint import SNAPSHOT_PREFIX
from chronik.storage.store import LogStore
from chronik.storage.wal_format import WalEntryKind

log = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 20


class _Done:
    """Hears of the last WAL entry of a write. The WAL is FIFO, so all earlier entries are durable then
    too."""

    def __init__(self, done: Callable[[StorageError | None], None]) -> None:
        self._done = done

    def committed(self, token: int) -> None:
        self._done(None)

    def rejected(self, token: int, error: StorageError) -> None:
        self._done(error)


class RaftStorage:
    def __init__(self, store: LogStore, log_: PartitionLog, root: Path) -> None:
        self._store = store
        self._log = log_
        self._root = root
        self.snapshot: Snapshot | None = None
        """The newest durable snapshot, with its data."""

    # --- loading -----------------------------------------------------------------------------------

    def hard_state(self) -> HardState | None:
        data = self._store.hard_state
        return msgspec.msgpack.decode(data, type=HardState) if data else None

    async def load_entries(self) -> list[Entry]:
        entries: list[Entry] = []
        offset = self._log.log_start_offset
        while offset < self._log.log_end_offset:
            found = await reading.read(self._log, offset, _READ_BYTES, self._log.log_end_offset)
            if not found.size_bytes:
                raise StorageError(f"the metadata log cannot be read at offset {offset}")
            for buffer in found.buffers:
                for position, header in headers(buffer):
                    entries += [
                        entry
                        for entry in _entries_of(buffer, position, header.leader_epoch)
                        if entry.index > offset
                    ]
                    offset = header.next_offset
        return entries

    def load_snapshot(self) -> None:
        """Blocking: the newest snapshot file that can be read."""
        disk = self._store.disk
        for name in reversed(disk.list(self._root)):
            if not name.startswith(SNAPSHOT_PREFIX) or name.endswith(".new"):
                continue
            data = read_whole(disk, self._root / name) or b""
            if len(data) > 4 and crc32c(data[4:]) == int.from_bytes(data[:4], "big"):
                self.snapshot = msgspec.msgpack.decode(data[4:], type=Snapshot)
                return
            log.error("metadata snapshot %s is damaged and left out", name)

    # --- writing -----------------------------------------------------------------------------------

    def write(
        self,
        hard_state: HardState | None,
        truncate_from: int | None,
        entries: tuple[Entry, ...],
        done: Callable[[StorageError | None], None],
    ) -> None:
        """Queue a Ready's writes in order; `done` is called when all of them are on disk."""
        if truncate_from is not None:
            self._log.truncate(truncate_from - 1)
        if entries:
            batches = _batches_of(entries)
            self._log.append_replicated(batches, headers(batches), 0)
        state = hard_state or self.hard_state() or HardState(term=0, vote=None, commit=0)
        former, self._store.hard_state = self._store.hard_state, msgspec.msgpack.encode(state)

        def settled(error: StorageError | None) -> None:
            if error is not None:
                self._store.hard_state = former
            done(error)

        self._store.wal.append(
            WalEntryKind.HARD_STATE,
            METADATA_TOPIC_ID.bytes,
            0,
            0,
            self._store.hard_state,
            _Done(settled),
            0,
        )

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        """Make a snapshot durable; older ones go."""
        body = msgspec.msgpack.encode(snapshot)
        disk = self._store.disk
        name = f"{SNAPSHOT_PREFIX}{snapshot.index:020d}"

        def work() -> None:
            write_atomically(disk, self._root / name, crc32c(body).to_bytes(4, "big") + body)
            for other in disk.list(self._root):
                if other.startswith(SNAPSHOT_PREFIX) and other < name:
                    disk.remove(self._root / other)

        await disk.run(IoThread.BACKGROUND, work)
        self.snapshot = snapshot

    def reset_to(self, snapshot: Snapshot) -> None:
        """A snapshot came from the leader and is durable: the stored log is void."""
        self._log.restart_at(snapshot.index)

    async def forget_before(self, index: int) -> None:
        """Entries up to `index` are covered by a durable snapshot."""
        await self._log.advance_start(min(index, self._log.log_end_offset))


def _batches_of(entries: tuple[Entry, ...]) -> bytes:
    out = bytearray()
    for entry in entries:
        record = Record(key=bytes([entry.kind]), value=entry.data, timestamp_ms=0)
        batch = build_batch([record])
        stamp(batch, 0, entry.index - 1, entry.term)
        out += batch
    return bytes(out)


def _entries_of(buffer: object, position: int, term: int) -> list[Entry]:
    return [
        Entry(
            term=term,
            index=record.offset + 1,
            kind=EntryKind(record.key[0] if record.key else 0),
            data=record.value or b"",
        )
        for record in read_records(buffer, position)  # type: ignore[arg-type]
    ]
