"""Opens a data directory: the last checkpoint, then the WAL on top of it.

Costs what the WAL holds beyond the checkpoint, not what the segments hold. Reads the WAL entry by entry, in
bounded memory. Cuts off an unfinished last round, which was never acknowledged. Reports everything that the
disk itself lost.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

from chronik.model import METADATA_TOPIC, TopicPartition
from chronik.storage import checkpoint as checkpoints
from chronik.storage.checkpoint import Checkpoint, LogState
from chronik.storage.cleanable import FILE_NAME as CLEANER_POSITION
from chronik.storage.disk import Disk
from chronik.storage.flusher import Flusher
from chronik.storage.log import LogConfig, PartitionLog
from chronik.storage.lost_checkpoint import refusal, wal_names, what_is_lost
from chronik.storage.spares import left_over
from chronik.storage.store import (
    LOW_SPACE_WAL_FILES,
    METADATA_KEY,
    LogKey,
    LogStore,
    StoreOptions,
    log_directory,
    log_states,
    sync_logs,
)
from chronik.storage.unsaved_end import save_end
from chronik.storage.wal import Wal
from chronik.storage.wal_format import ANY_ROUND, Damage, WalEntry, WalEntryKind, WalScanner, first_round
from chronik.storage.wal_queue import RESTART_GAP
from chronik.storage.wal_writer import WalFile

log = logging.getLogger(__name__)

_FLUSH_EVERY_BYTES: Final = 8 * 1024 * 1024


@dataclass(slots=True)
class RecoveryReport:
    entries: int = 0
    bytes: int = 0
    seconds: float = 0.0
    torn: list[str] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)


class _Recovery:
    def __init__(self, disk: Disk, root: Path, options: StoreOptions) -> None:
        self.disk = disk
        self.root = root
        self.options = options
        self.flusher = Flusher(disk, unflushed_bytes_max=options.unflushed_bytes_max)
        self.logs: dict[LogKey, PartitionLog] = {}
        self.at_rest: dict[LogKey, LogState] = {}
        self.hard_state = b""
        self.report = RecoveryReport()
        self.spares: list[Path] = []
        self._names: dict[LogKey, str] = {METADATA_KEY: METADATA_TOPIC}
        """Topics by log, from OPEN entries; the metadata log needs none."""
        self._unflushed = 0
        self._producer_share = options.producer_share

    def run(self) -> tuple[Checkpoint, list[WalFile], int, int]:
        """Returns the checkpoint, the WAL files found, and the last sequence and round seen."""
        missing = [parent for parent in self.root.parents if not self.disk.exists(parent)]
        for name in ("wal", "topics"):
            self.disk.make_directory(self.root / name)
        # A name is durable only once its directory is synced. An earlier start may have died before that.
        for directory in (self.root, self.root.parent, *(parent.parent for parent in missing)):
            self.disk.sync_directory(directory)
        checkpoint = self._load_checkpoint()
        self.spares = left_over(
            self.disk, self.root / "wal", self.options.wal.file_bytes, keep=not self._is_low_on_space()
        )
        self.hard_state = checkpoint.hard_state
        for state in checkpoint.logs:
            self.at_rest[state.topic_id, state.partition] = state
        files, sequence, round_ = self._replay(checkpoint.sequence)
        for log_ in self.logs.values():
            self.flusher.flush_now(log_)
        return checkpoint, files, max(sequence, checkpoint.sequence), round_

    def _load_checkpoint(self) -> Checkpoint:
        checkpoint = checkpoints.load(self.disk, self.root)
        if checkpoint is checkpoints.EMPTY:
            if lost := what_is_lost(self.disk, self.root):
                raise refusal(self.root, lost)
            self._forget_compactions()
        checkpoints.drop_damaged(self.disk, self.root)
        return checkpoint

    def _forget_compactions(self) -> None:
        """The WAL is about to bring back what compaction had removed."""
        topics = self.root / "topics"
        for folder in self.disk.list(topics):
            if self.disk.exists(topics / folder / CLEANER_POSITION):
                self.disk.remove(topics / folder / CLEANER_POSITION)

    def _replay(self, from_sequence: int) -> tuple[list[WalFile], int, int]:
        directory = self.root / "wal"
        paths = [directory / name for name in wal_names(self.disk, self.root)]
        files: list[WalFile] = []
        sequence = round_ = -1
        for place, path in enumerate(paths):
            file = self.disk.open(path)
            try:
                # A process that was killed leaves entries that are not synced. They are applied to segments
                # now, so they must survive a power loss before the next checkpoint.
                file.sync()
                next_round = partial(first_round, self.disk, paths[place + 1 :])
                scanner = WalScanner(
                    path.name,
                    file.read_at,
                    file.size(),
                    sequence,
                    is_last_file=place == len(paths) - 1,
                    next_round=next_round,
                )
                saved_round: int | None = None
                first = -1
                for entry in scanner.entries(lambda header: header.sequence >= from_sequence):
                    if first < 0:
                        first = entry.header.sequence
                    if entry.header.sequence >= from_sequence:
                        if saved_round is None:
                            saved_round = next_round(entry.header.sequence)
                        if entry.header.round >= saved_round:
                            save_end(file, sequence)
                            saved_round = ANY_ROUND
                        self._apply(entry)
                if scanner.torn_at is not None:
                    # Remove the torn round for good: its sequence numbers are used again. Once another file
                    # follows this one, the torn entries would look like acknowledged ones.
                    file.truncate(scanner.torn_at)
                    file.sync()
            finally:
                file.close()
            sequence = max(sequence, scanner.last_sequence)
            round_ = max(round_, scanner.last_round)
            files.append(WalFile(path, int(path.stem), first if first >= 0 else sequence + 1))
            self.report.damage += scanner.damage
            if scanner.torn_at is not None:
                self.report.torn.append(f"{path.name} at byte {scanner.torn_at}")
            elif place < len(paths) - 1 and self._make_room(path, sequence):
                files.pop()
        return files, sequence, round_

    def _make_room(self, path: Path, sequence: int) -> bool:
        """On a disk that is nearly full, remove a WAL file as soon as its entries are in segments."""
        if not self._is_low_on_space():
            return False
        if self._names.keys() - self.logs.keys() - self.at_rest.keys() - {METADATA_KEY}:
            return False  # this file has a log's OPEN entry, the next one its first batches
        for log_ in self.logs.values():
            self.flusher.flush_now(log_)
        sync_logs(self.disk, self.root, self.flusher.take_unsynced())
        states = log_states(self.at_rest, self.logs)
        saved = checkpoints.make(sequence=sequence + 1, clean=False, hard_state=self.hard_state, logs=states)
        for _ in ("newest", "former"):  # so that neither checkpoint needs the removed file
            checkpoints.save(self.disk, self.root, saved)
        self.disk.remove(path)
        return True

    def _is_low_on_space(self) -> bool:
        return self.disk.usage(self.root)[1] < LOW_SPACE_WAL_FILES * self.options.wal.file_bytes

    def _apply(self, entry: WalEntry) -> None:
        header = entry.header
        self.report.entries += 1
        self.report.bytes += len(entry.payload)
        if header.kind == WalEntryKind.HARD_STATE:
            self.hard_state = entry.payload
            return
        key = (header.topic_id, header.partition)
        if header.kind == WalEntryKind.OPEN:
            self._names[key] = entry.payload.decode()
            return
        log_ = self._log(key)
        if log_ is None:
            self.report.gaps.append(f"an entry of unknown topic {UUID(bytes=header.topic_id)} is left out")
            return
        match header.kind:
            case WalEntryKind.APPEND:
                self._apply_append(log_, header.offset, entry.payload)
            case WalEntryKind.TRUNCATE:
                self.flusher.flush_now(log_)
                log_.cut(header.offset)
            case WalEntryKind.LOG_START:
                self.flusher.flush_now(log_)
                for segment in log_.apply_start(header.offset):
                    segment.delete()
            case WalEntryKind.RESET:
                for segment in log_.reset(header.offset):
                    segment.delete()

    def _apply_append(self, log_: PartitionLog, offset: int, payload: bytes) -> None:
        if offset < log_.log_end_offset:
            # The earlier append was in a round that failed; its offsets were assigned again.
            self.flusher.flush_now(log_)
            log_.cut(offset)
        elif offset > log_.log_end_offset:
            self.report.gaps.append(f"{log_.tp}: offsets {log_.log_end_offset} to {offset - 1}")
        log_.restore(payload, -1)
        self._unflushed += len(payload)
        if self._unflushed >= _FLUSH_EVERY_BYTES:
            for each in self.logs.values():
                self.flusher.flush_now(each)
            self._unflushed = 0

    def _log(self, key: LogKey) -> PartitionLog | None:
        found = self.logs.get(key)
        if found is not None:
            return found
        state = self.at_rest.pop(key, None)
        topic = state.topic if state is not None else self._names.get(key)
        if topic is None:
            return None
        tp = TopicPartition(topic, key[1])
        for other, former in list(self.logs.items()):
            if former.tp == tp:  # topic was deleted and created again: the directory is the newer log's
                former.deleted = True
                former.forget_producers()
                former.close()
                del self.logs[other]
                self.disk.remove_tree(former.directory)
        created = PartitionLog(
            tp=tp,
            topic_id=UUID(bytes=key[0]),
            directory=log_directory(self.root, tp),
            disk=self.disk,
            wal=None,
            dirty=self.flusher,
            config=LogConfig(),
            log_start_offset=state.log_start_offset if state else 0,
            log_end_offset=state.log_end_offset if state else 0,
            extent=(state.active_base_offset, state.active_bytes) if state else (0, 0),
            epochs=state.epochs if state else (),
            producer_bytes=self._producer_share.hold(),
            producers=state.producers if state else b"",
            is_new=False,
        )
        self.logs[key] = created
        return created


def open_store(
    disk: Disk,
    root: Path,
    options: StoreOptions,
) -> tuple[LogStore, RecoveryReport]:
    """Blocking, once per start: bring a data directory back to everything that was acknowledged."""
    clock = asyncio.get_running_loop().time
    started = clock()
    recovery = _Recovery(disk, root, options)
    checkpoint, files, sequence, round_ = recovery.run()
    wal = Wal(
        disk=disk,
        directory=root / "wal",
        options=options.wal,
        next_sequence=sequence + 1 + RESTART_GAP,
        next_round=round_ + 1,
        files=files,
        spares=recovery.spares,
    )
    for log_ in recovery.logs.values():
        log_.attach(wal)
    store = LogStore(
        disk=disk,
        root=root,
        wal=wal,
        flusher=recovery.flusher,
        options=options,
        logs=recovery.logs,
        at_rest=recovery.at_rest,
        hard_state=recovery.hard_state,
        previous_sequence=checkpoint.sequence,
    )
    report = recovery.report
    if report.entries:
        store.save_recovered()
    report.seconds = clock() - started
    _tell(report)
    return store, report


def _tell(report: RecoveryReport) -> None:
    if report.entries:
        log.info(
            "recovered %d WAL entries (%.1f MB) in %.0f ms",
            report.entries,
            report.bytes / 1e6,
            report.seconds * 1e3,
        )
    for place in report.torn:
        line = "cut off an unfinished write in WAL %s: only topics with %s can have acknowledged it"
        log.warning(line, place, "flush.ms or flush.messages")
    for damage in report.damage:
        what = "entries"
        if damage.header is not None:
            what = f"topic {UUID(bytes=damage.header.topic_id)} partition {damage.header.partition}"
            what += f" from offset {damage.header.offset}"
        log.error(
            "WAL %s is damaged at byte %d (%d bytes, %s): the disk lost acknowledged data, the rest stays",
            damage.file_name,
            damage.position,
            damage.bytes_skipped,
            what,
        )
    for gap in report.gaps:
        log.error("missing after recovery: %s", gap)
