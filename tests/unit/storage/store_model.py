"""Random lives of one store on a disk that fails, against a model that remembers what was promised.

Three logs, two relaxed and one strict, share a WAL. One process after the other opens the store, appends,
cuts, writes checkpoints and waits, while syncs fail, the disk is full or slow, and in the end the process is
killed or the power goes: inside a change of the disk, or between two. The next one must find

- every record that was promised, in its place: what is durable after a kill, what is synced after a power
  loss or if a log is in doubt;
- behind them nothing but records that were once appended at that offset; no gap, and no refusal to start.

A seed decides everything. `python -m tests.unit.storage.store_model --seeds 5000` runs many.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import UUID

import pytest

from chronik.model import StorageError, TopicPartition
from chronik.storage import unsynced, wal_queue
from chronik.storage.log import LogConfig, PartitionLog
from chronik.storage.store import LogStore, StoreOptions
from chronik.storage.wal import PROFILES, WalOptions
from tests.unit.storage.support import append, read_values
from tests.unit.storage.test_power_loss import Machine

CALL_SECONDS_MAX = 100.0
"""Virtual time that a call may take on a slow disk."""
SETTLE_SECONDS = 3.0
"""Virtual time after which a disk that works again has everything."""


class LogModel:
    """What one log has in this process, and what the next one must find."""

    def __init__(self, name: str, config: LogConfig) -> None:
        self.tp = TopicPartition(name, 0)
        self.topic_id = UUID(int=100 + ord(name))
        self.config = config
        self.records: list[bytes] = []
        self.ever: list[set[bytes]] = []
        """By offset, everything that was ever appended there."""
        self.kept_by_kill = 0
        """Records from the start that are still there after the process was killed."""
        self.kept_by_power_loss = 0

    @property
    def is_strict(self) -> bool:
        return not self.config.sync_within_seconds

    def append(self, log: PartitionLog, value: bytes, epoch: int) -> None:
        offset = append(log, value, epoch=epoch)
        del self.records[offset:]  # a failed round took them back
        assert len(self.records) == offset
        self.records.append(value)
        if offset == len(self.ever):
            self.ever.append(set())
        self.ever[offset].add(value)

    def cut(self, log: PartitionLog, offset: int) -> None:
        log.truncate(offset)
        del self.records[offset:]

    def check_ends(self, log: PartitionLog) -> None:
        assert log.flushed_offset <= log.synced_end_offset <= log.durable_end_offset <= log.log_end_offset
        assert not self.is_strict or log.synced_end_offset == log.durable_end_offset
        unsynced = log.durable_end_offset - log.synced_end_offset
        assert unsynced < self.config.sync_records, f"{self.tp}: {unsynced} records are not synced"

    def note_end(self, log: PartitionLog) -> None:
        """The process is over."""
        self.kept_by_power_loss = log.synced_end_offset
        is_in_doubt = log.relaxed.is_in_doubt(log)
        self.kept_by_kill = log.synced_end_offset if is_in_doubt else log.durable_end_offset

    async def check_found(self, log: PartitionLog) -> None:
        await log.load()
        found = [value for _, value in await read_values(log)]
        kept = self.kept_by_kill
        assert len(found) == log.log_end_offset, f"{self.tp}: records are missing inside the log"
        assert len(found) >= kept, f"{self.tp}: {kept} records were promised, {len(found)} are there"
        assert found[:kept] == self.records[:kept], f"{self.tp}: another record stands in the place of one"
        for offset in range(kept, len(found)):
            assert found[offset] in self.ever[offset], f"{self.tp}: a record that offset {offset} never had"
        self.records = found


class StoreModel:
    """The lives of one store."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        wal = WalOptions(
            profile=rng.choice(list(PROFILES.values())), file_bytes=rng.choice([4096, 16384, 1 << 20])
        )
        self.machine = Machine(seed, StoreOptions(wal=wal, checkpoint_wal_bytes=rng.choice([3000, 1 << 28])))
        segment_bytes = rng.choice([2000, 1 << 30])
        by_time = LogConfig(sync_within_seconds=rng.choice([0.02, 0.2, 1.0]), segment_bytes=segment_bytes)
        by_count = LogConfig(sync_within_seconds=0.5, sync_records=rng.choice([2, 5, 10**9]))
        strict = LogConfig(segment_bytes=segment_bytes)
        self.models = [LogModel("a", by_time), LogModel("b", by_count), LogModel("s", strict)]
        self.logs: list[PartitionLog] = []
        """Of this process, in the order of `models`; empty before it has opened the store."""
        self.lives = 0
        self.appended = 0

    def run(self) -> None:
        with pytest.MonkeyPatch.context() as patched:
            # Bounds that are megabytes long, so that few records reach them.
            patched.setattr(unsynced, "UNSYNCED_BYTES_MAX", self.rng.choice([2000, 20_000, 4 << 20]))
            patched.setattr(wal_queue, "GROUP_BYTES_MAX", self.rng.choice([3000, 20_000, 16 << 20]))
            patched.setattr(wal_queue, "ROUND_BYTES_MAX", self.rng.choice([600, 1 << 20]))
            for _ in range(self.rng.randint(2, 6)):
                self._run_process()

    def _run_process(self) -> None:
        self._mend_disk()
        self.logs = []
        crash_at_start = self.rng.choice([None, self.rng.randint(1, 30)]) if self.lives else None
        self.machine.run(self._live, crash_at_start=crash_at_start)
        self.lives += 1
        for model, log in zip(self.models, self.logs, strict=False):
            model.note_end(log)
        if self.rng.random() < 0.5:
            self.machine.disk.lose_power(self.machine.loop.now)
            for model in self.models:
                model.kept_by_kill = min(model.kept_by_kill, model.kept_by_power_loss)
        else:
            self.machine.disk.finish(self.machine.loop.now)

    async def _live(self, store: LogStore) -> None:
        rng = self.rng
        logs = [store.open_log(model.tp, model.topic_id, model.config) for model in self.models]
        for model, log in zip(self.models, logs, strict=True):
            await model.check_found(log)
        self.logs = logs
        if rng.random() < 0.6:
            self.machine.view.crash_in = rng.randint(1, 60)
        if rng.random() < 0.5:
            store.start()
        shares = [rng.random() for _ in logs]
        steps: list[tuple[int, Callable[[LogStore], Awaitable[None]]]] = [
            (55, lambda _: self._append(shares)),
            (20, self._pause),
            (12, self._disturb_disk),
            (4, self._checkpoint),
            (6, self._cut),
            (3, self._sync),
            (1, lambda store: store.wal.drained()),
        ]
        weights, calls = zip(*steps, strict=True)
        for _ in range(rng.randint(5, 60)):
            (step,) = rng.choices(calls, weights)
            await step(store)
            for model, log in zip(self.models, logs, strict=True):
                model.check_ends(log)
        if rng.random() < 0.3:
            await self._settle(store)
        if rng.random() < 0.2:
            self._mend_disk()
            await asyncio.wait_for(store.stop(), CALL_SECONDS_MAX)

    # --- steps -------------------------------------------------------------------------------------

    async def _append(self, shares: list[float]) -> None:
        for _ in range(self.rng.choice([1, 1, 3, 10])):
            (place,) = self.rng.choices(range(len(shares)), shares)
            self.appended += 1
            value = b"%d " % self.appended + bytes(self.rng.choice([0, 100, 1500]))
            self.models[place].append(self.logs[place], value, epoch=self.lives)

    async def _pause(self, _store: LogStore) -> None:
        await asyncio.sleep(self.rng.choice([0, 0.0001, 0.001, 0.01, 0.3]))

    async def _disturb_disk(self, _store: LogStore) -> None:
        rng, disk = self.rng, self.machine.disk
        match rng.choice(["syncs", "syncs", "syncs", "speed", "room"]):
            case "syncs":
                disk.sync_failures = rng.choice([0, 1, 1, 2])
            case "speed":
                disk.slowness = rng.choice([1.0, 1.0, 100.0, 1000.0])
            case "room":
                disk.free_bytes = rng.choice([None, 0, 3000, 100_000])

    async def _checkpoint(self, store: LogStore) -> None:
        with suppress(StorageError, OSError):
            await asyncio.wait_for(store.checkpoint(), CALL_SECONDS_MAX)

    async def _cut(self, _store: LogStore) -> None:
        place = self.rng.randrange(len(self.logs))
        end = self.logs[place].log_end_offset
        if end:
            self.models[place].cut(self.logs[place], self.rng.randint(max(0, end - 8), end))

    async def _sync(self, store: LogStore) -> None:
        with suppress(StorageError):
            await asyncio.wait_for(store.wal.synced(), CALL_SECONDS_MAX)

    async def _settle(self, store: LogStore) -> None:
        """The disk works again: after a while everything is synced."""
        self._mend_disk()
        await asyncio.sleep(SETTLE_SECONDS)
        for log in self.logs:
            assert log.synced_end_offset == log.log_end_offset, f"{log.tp}: something is never synced"

    def _mend_disk(self) -> None:
        disk = self.machine.disk
        disk.sync_failures, disk.free_bytes, disk.slowness = 0, None, 1.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.unit.storage.store_model")
    parser.add_argument("--seeds", type=int, default=1000, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--failures", type=int, default=5, help="how many to show before it ends")
    args = parser.parse_args()
    if args.seeds > 1:
        logging.disable(logging.CRITICAL)
    failed = ran = 0
    for seed in range(args.first, args.first + args.seeds):
        ran += 1
        try:
            StoreModel(seed).run()
        except Exception as error:
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
            if args.seeds == 1:
                traceback.print_exc()
            if failed >= args.failures:
                break
    print(f"{ran} seeds, {failed} failed")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
