"""All logs of a node over one WAL: opening, checkpoints, deletion, stopping."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

from chronik.client_state import ClientState, Share
from chronik.model import METADATA_TOPIC_ID, UNFLUSHED_BYTES_MAX, StorageError, TopicPartition
from chronik.storage import checkpoint as checkpoints
from chronik.storage.checkpoint import Checkpoint, LogState
from chronik.storage.disk import Disk, IoThread
from chronik.storage.flusher import Flusher
from chronik.storage.log import LogConfig, PartitionLog, delete_segments
from chronik.storage.wal import Wal, WalOptions
from chronik.storage.wal_format import WalEntryKind
from chronik.tasks import Tasks

log = logging.getLogger(__name__)

CHECKPOINT_WAL_BYTES: Final = 256 * 1024 * 1024
CHECKPOINT_SECONDS: Final = 60.0
LOW_SPACE_WAL_FILES: Final = 12
CUTS_MAX: Final = 5
"""Attempts at one checkpoint while logs are truncated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    wal: WalOptions = field(default_factory=WalOptions)
    checkpoint_wal_bytes: int = CHECKPOINT_WAL_BYTES
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    producer_share: Share = field(default_factory=lambda: ClientState().producer_ids)
    """Room for what all logs together remember of producers."""
    unflushed_bytes_max: int = UNFLUSHED_BYTES_MAX


LogKey = tuple[bytes, int]
METADATA_KEY: Final[LogKey] = (METADATA_TOPIC_ID.bytes, 0)


def log_directory(root: Path, tp: TopicPartition) -> Path:
    return root / "topics" / f"{tp.topic}-{tp.partition}"


def log_states(at_rest: Mapping[LogKey, LogState], logs: Mapping[LogKey, PartitionLog]) -> list[LogState]:
    """What a checkpoint says of every log, opened or not."""
    states = list(at_rest.values())
    for log_ in logs.values():
        active_base, active_bytes = log_.active_extent()
        states.append(
            LogState(
                topic_id=log_.topic_id_bytes,
                partition=log_.tp.partition,
                topic=log_.tp.topic,
                log_start_offset=log_.log_start_offset,
                log_end_offset=log_.log_end_offset,
                active_base_offset=active_base,
                active_bytes=active_bytes,
                epochs=list(log_.epochs.entries),
                producers=log_.producers.snapshot() if log_.producers is not None else b"",
            )
        )
    return states


def _active(logs: Mapping[LogKey, PartitionLog]) -> list[tuple[PartitionLog, int, int]]:
    return [(log_, log_.active_extent()[0], log_.truncations) for log_ in logs.values()]


def sync_logs(disk: Disk, root: Path, logs: Iterable[PartitionLog]) -> None:
    """Blocking: sync the segments of these logs, so that a checkpoint may rely on them."""
    for log_ in logs:
        if log_.deleted:
            continue
        for segment in log_.segments:
            if segment.is_unsynced:
                segment.sync()
        disk.sync_directory(log_.directory)
    disk.sync_directory(root / "topics")


class LogStore:
    """Built by `recovery.open_store`, which knows what the disk held."""

    def __init__(
        self,
        *,
        disk: Disk,
        root: Path,
        wal: Wal,
        flusher: Flusher,
        options: StoreOptions,
        logs: dict[LogKey, PartitionLog],
        at_rest: dict[LogKey, LogState],
        hard_state: bytes,
        previous_sequence: int,
    ) -> None:
        self.disk = disk
        self.root = root
        self.wal = wal
        self.flusher = flusher
        self._options = options
        self._logs = logs
        self._at_rest = at_rest
        """Logs from the checkpoint that were not opened yet. They have no PartitionLog and no file handle."""
        self._doubt = ""
        """Error of a failed segment sync, else empty. Once set, no checkpoint is written until a restart."""
        self.hard_state = hard_state
        self._checkpoint_lock = asyncio.Lock()
        self._previous_sequence = previous_sequence
        self._tasks = Tasks("store")
        self._wal_bytes_at_checkpoint = 0
        self._checkpoint_time = -math.inf

    # --- logs --------------------------------------------------------------------------------------

    def open_log(self, tp: TopicPartition, topic_id: UUID, config: LogConfig) -> PartitionLog:
        """The log of a partition, new if there is none yet. Touches no file until it is used."""
        key = (topic_id.bytes, tp.partition)
        found = self._logs.get(key)
        if found is not None:
            found.reconfigure(config)
            return found
        state = self._at_rest.pop(key, None)
        created = PartitionLog(
            tp=tp,
            topic_id=topic_id,
            directory=log_directory(self.root, tp),
            disk=self.disk,
            wal=self.wal,
            dirty=self.flusher,
            config=config,
            log_start_offset=state.log_start_offset if state else 0,
            log_end_offset=state.log_end_offset if state else 0,
            extent=(state.active_base_offset, state.active_bytes) if state else (0, 0),
            epochs=state.epochs if state else (),
            producer_bytes=self._options.producer_share.hold(),
            producers=state.producers if state else b"",
            is_new=state is None,
        )
        self._logs[key] = created
        return created

    def __iter__(self) -> Iterator[PartitionLog]:
        return iter(list(self._logs.values()))

    def delete_log(self, tp: TopicPartition, topic_id: UUID) -> asyncio.Future[None]:
        """Forget a partition's log at once; the future is done when its files are gone.

        The partition may come back meanwhile (a replica that moves away and back) and gets a new log. The
        RESET entry of the old log precedes the new log's entries in the WAL. The old files are removed before
        new ones are made: both wait for the WAL, in its order, and then run in the same I/O thread.
        """
        key = (topic_id.bytes, tp.partition)
        gone, is_on_disk = self._take(key)
        directory = log_directory(self.root, tp)
        pending_delete = directory.with_name(f"{directory.name}.{topic_id.hex}-delete")

        def work() -> None:
            if gone is not None:
                gone.close()
            if self.disk.exists(directory):
                self.disk.remove_tree(pending_delete)
                self.disk.rename(directory, pending_delete)
                self.disk.remove_tree(pending_delete)

        deletion = _Deletion(self.disk, work)
        if is_on_disk:
            self.wal.append(WalEntryKind.RESET, topic_id.bytes, tp.partition, 0, b"", deletion, 0)
        else:
            deletion.committed(0)
        return deletion.done

    def forget_missing(self, known: Callable[[bytes, int], bool]) -> None:
        """After metadata is known: drop logs that belong to no partition any more."""
        names = {key: log_.tp for key, log_ in self._logs.items()}
        names |= {key: TopicPartition(state.topic, state.partition) for key, state in self._at_rest.items()}
        logs_of_name = Counter(names.values())
        for key, tp in names.items():
            if known(*key):
                continue
            if logs_of_name[tp] == 1:
                deletion = self.delete_log(tp, UUID(bytes=key[0]))
                deletion.add_done_callback(_say_what_failed)
                continue
            # The topic was deleted and created again: the directory has the newer log's files. Only forget
            # the older log.
            logs_of_name[tp] -= 1
            gone, _ = self._take(key)
            if gone is not None:
                gone.close()

    def _take(self, key: LogKey) -> tuple[PartitionLog | None, bool]:
        """Forget a log. Returns it if it was open, and whether the WAL or a checkpoint has it."""
        gone = self._logs.pop(key, None)
        is_on_disk = self._at_rest.pop(key, None) is not None
        if gone is None:
            return None, is_on_disk
        gone.discard()
        self.flusher.forget(gone)
        return gone, is_on_disk or gone.is_on_disk

    async def save_hard_state(self, data: bytes) -> None:
        """Raft's term and vote, durable when this returns."""
        self.hard_state = data
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wal.append(WalEntryKind.HARD_STATE, METADATA_TOPIC_ID.bytes, 0, 0, data, _FutureSink(future), 0)
        await future

    # --- checkpoints -------------------------------------------------------------------------------

    def start(self) -> None:
        self._tasks.spawn(self._keep_checkpointing(), "writing checkpoints")

    async def _keep_checkpointing(self) -> None:
        idle = 0.0
        while True:
            await asyncio.sleep(0.25)
            idle += 0.25
            written = self.wal.stats.bytes - self._wal_bytes_at_checkpoint
            if written >= self._options.checkpoint_wal_bytes or (
                written
                and (idle >= self._options.checkpoint_seconds or (idle >= 1.0 and self._is_low_on_space()))
            ):
                idle = 0.0
                try:
                    await self.checkpoint()
                except (OSError, StorageError) as error:
                    log.error("no checkpoint could be written; the WAL is kept: %s", error)

    def _is_low_on_space(self) -> bool:
        """Whether there is room for fewer than `LOW_SPACE_WAL_FILES` WAL files. WAL files have to be removed
        then, while segments can still be written."""
        try:
            free_bytes = self.disk.usage(self.root)[1]
        except OSError:
            return False  # what the next write says is worth more
        return free_bytes < LOW_SPACE_WAL_FILES * self._options.wal.file_bytes

    async def checkpoint(self, *, clean: bool = False) -> None:
        async with self._checkpoint_lock:
            await self._checkpoint(clean)

    async def _checkpoint(self, clean: bool) -> None:
        if self._doubt:
            raise StorageError(
                f"segments are in doubt ({self._doubt}); a restart writes them again from the WAL"
            )
        self._wal_bytes_at_checkpoint = self.wal.stats.bytes
        saved, active = await self._cut_and_flush(clean)
        unsynced = self.flusher.take_unsynced()

        def work() -> None:
            self._save(unsynced, saved)

        try:
            await self.disk.run(IoThread.BACKGROUND, work)
        except (OSError, StorageError):
            self.flusher.give_back_unsynced(unsynced)
            raise
        for log_, base_offset, truncations in active:
            log_.retirement.note_checkpoint(base_offset if log_.truncations == truncations else 0)
        # The former checkpoint stays usable too, should this file be damaged: keep the WAL it needs.
        removable = self.wal.removable(self._previous_sequence)
        self._previous_sequence = saved.sequence
        if removable:
            await self.wal.release(removable, is_room=not self._is_low_on_space())
        self._checkpoint_time = asyncio.get_running_loop().time()
        await self.sweep()

    def checkpoint_age(self) -> float:
        """Seconds since the last checkpoint of this process."""
        return asyncio.get_running_loop().time() - self._checkpoint_time

    async def sweep(self) -> None:
        """Delete the files of segments that left their log long enough ago."""
        now = asyncio.get_running_loop().time()
        for log_ in self:
            gone = log_.retirement.take_due(now)
            if gone and not log_.deleted:
                await self.disk.run(IoThread.BACKGROUND, partial(delete_segments, gone))

    def waits_for_checkpoint(self) -> bool:
        """Whether files of segments could be deleted now, were there a newer checkpoint."""
        now = asyncio.get_running_loop().time()
        return any(log_.retirement.waits_for_checkpoint(now) for log_ in self)

    def save_recovered(self) -> None:
        """Blocking, before the node serves: write a checkpoint of what recovery found.

        It must not depend on the WAL: if the last process was killed, or its sync failed, the WAL has entries
        that can be read but were never synced.
        """
        states = log_states(self._at_rest, self._logs)
        saved = checkpoints.make(
            sequence=self.wal.next_sequence, clean=False, hard_state=self.hard_state, logs=states
        )
        self._save(self.flusher.take_unsynced(), saved)
        self._previous_sequence = saved.sequence

    def _save(self, unsynced: Iterable[PartitionLog], checkpoint: Checkpoint) -> None:
        """Blocking: sync these logs, then write the checkpoint."""
        try:
            sync_logs(self.disk, self.root, unsynced)
        except OSError as error:
            # The kernel drops pages that it could not write: a later sync may succeed without them.
            self._doubt = str(error)
            raise
        checkpoints.save(self.disk, self.root, checkpoint)

    async def _cut_and_flush(self, clean: bool) -> tuple[Checkpoint, list[tuple[PartitionLog, int, int]]]:
        """Like `_cut`, once segment files have all that the checkpoint speaks of. A log that is truncated
        meanwhile may have less."""
        for _ in range(CUTS_MAX):
            saved, active = await self._cut(clean)
            await self.flusher.flushed()
            ends = {(state.topic_id, state.partition): state.log_end_offset for state in saved.logs}
            if all(
                log_.deleted or log_.flushed_offset >= ends[log_.topic_id_bytes, log_.tp.partition]
                for log_, _, _ in active
            ):
                return saved, active
        raise StorageError("segments lack records that are about to be checkpointed")

    async def _cut(self, clean: bool) -> tuple[Checkpoint, list[tuple[PartitionLog, int, int]]]:
        """A checkpoint of what the WAL holds before one sequence number, once that is on disk. Also returns
        for each log the base offset of its active segment and its truncations at that time.

        Metadata overtakes data in the WAL. So data is looked at now, and metadata when the last of this data
        goes to the disk: entries added later come behind the cut, of either kind.
        """
        data = {key: log_ for key, log_ in self._logs.items() if key != METADATA_KEY}
        at_rest = {key: state for key, state in self._at_rest.items() if key != METADATA_KEY}
        states, active = log_states(at_rest, data), _active(data)
        cuts: list[Checkpoint] = []

        def found(sequence: int) -> None:
            metadata = {key: log_ for key, log_ in self._logs.items() if key == METADATA_KEY}
            at_rest = {key: state for key, state in self._at_rest.items() if key == METADATA_KEY}
            active.extend(_active(metadata))
            logs = states + log_states(at_rest, metadata)
            cuts.append(
                checkpoints.make(sequence=sequence, clean=clean, hard_state=self.hard_state, logs=logs)
            )

        await self.wal.cut(found)
        return cuts[0], active

    async def stop(self) -> None:
        """Everything durable, everything in segments, one last checkpoint: the next start replays nothing."""
        await self._tasks.close()
        await self.wal.drained()
        try:
            await self.checkpoint(clean=True)
        except (OSError, StorageError) as error:
            log.error("no final checkpoint could be written; the next start replays the WAL: %s", error)
        await self.wal.close()
        self.flusher.close()
        for log_ in self._logs.values():
            log_.close()


class _Deletion:
    """WAL sink of a RESET entry. Removes the log's files once the entry is durable."""

    def __init__(self, disk: Disk, work: Callable[[], None]) -> None:
        self._disk = disk
        self._work = work
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def committed(self, token: int) -> None:
        self._disk.submit(IoThread.BACKGROUND, self._work, self._worked)

    def rejected(self, token: int, error: StorageError) -> None:
        self._worked(None, error)

    def _worked(self, _result: None, error: BaseException | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


def _say_what_failed(deletion: asyncio.Future[None]) -> None:
    if not deletion.cancelled() and (error := deletion.exception()) is not None:
        log.error("could not delete a log that is no longer assigned to this node: %s", error)


class _FutureSink:
    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future

    def committed(self, token: int) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def rejected(self, token: int, error: StorageError) -> None:
        if not self._future.done():
            self._future.set_exception(error)
