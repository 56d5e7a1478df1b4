"""Metadata overtakes data in the WAL (S16): checkpoints and recovery must find both, whatever happens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.model import METADATA_TOPIC, METADATA_TOPIC_ID, StorageError, TopicPartition
from chronik.storage import wal_queue
from chronik.storage.log import LogConfig, PartitionLog
from chronik.storage.store import LogStore, StoreOptions
from chronik.storage.wal import PROFILES, WalOptions
from chronik.storage.wal_format import WalEntryKind, WalScanner
from tests.unit.storage.support import append, open_orders, opened, read_values
from tests.unit.storage.test_power_loss import Machine

OPTIONS = StoreOptions(wal=WalOptions(profile=PROFILES["ultra"], file_bytes=4096))
STEPS = st.lists(
    st.sampled_from(["data", "data", "data", "metadata", "truncate", "vote", "checkpoint", "turn", "wait"]),
    min_size=5,
    max_size=60,
)


def open_metadata(store: LogStore) -> PartitionLog:
    return store.open_log(TopicPartition(METADATA_TOPIC, 0), METADATA_TOPIC_ID, LogConfig())


class Life:
    """What one process was asked to keep, and what it said is kept."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.metadata: list[bytes] = []
        self.votes = [b""]
        self.data_kept = self.metadata_kept = self.votes_kept = 0
        self.checkpoints = 0

    async def live(self, store: LogStore, steps: list[str]) -> None:
        self.store = store
        self.orders, self.log = open_orders(store), open_metadata(store)
        tasks = []
        for number, step in enumerate(steps):
            match step:
                case "data":
                    self.data.append(b"%d" % number + bytes(150))
                    append(self.orders, self.data[-1])
                case "metadata":
                    self.metadata.append(b"%d" % number)
                    append(self.log, self.metadata[-1], epoch=number)
                case "truncate" if len(self.metadata) > self.log.durable_end_offset:
                    self.metadata.pop()
                    self.log.truncate(len(self.metadata))
                case "vote":
                    self.votes.append(b"%d" % number)
                    tasks.append(asyncio.create_task(self._vote(len(self.votes) - 1)))
                case "checkpoint":
                    tasks.append(asyncio.create_task(self._checkpoint()))
                case "turn":
                    await asyncio.sleep(0)
                case "wait":
                    await store.wal.drained()
            self.note()
        await asyncio.gather(*tasks)
        self.note()

    def note(self) -> None:
        self.data_kept, self.metadata_kept = self.orders.durable_end_offset, self.log.durable_end_offset

    async def _vote(self, place: int) -> None:
        await self.store.save_hard_state(self.votes[place])
        self.votes_kept = max(self.votes_kept, place)

    async def _checkpoint(self) -> None:
        await self.store.checkpoint()
        self.checkpoints += 1


async def found(store: LogStore) -> tuple[list[bytes], list[bytes], bytes]:
    data = [value for _, value in await read_values(open_orders(store))]
    return data, [value for _, value in await read_values(open_metadata(store))], store.hard_state


@settings(max_examples=60)
@given(st.integers(0, 1 << 16), STEPS, st.one_of(st.none(), st.integers(1, 80)), st.booleans())
def test_what_is_durable_is_found_again(
    seed: int, steps: list[str], crash_in: int | None, power_fails: bool
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(wal_queue, "ROUND_BYTES_MAX", 600)
        patched.setattr(wal_queue, "SHARED_BYTES_MAX", 200)
        machine = Machine(seed, OPTIONS)
        life = Life()
        machine.run(lambda store: life.live(store, steps), crash_in=crash_in)
        if power_fails:
            machine.disk.lose_power()
        data, metadata, vote = machine.run(found)
        assert data == life.data[: len(data)]
        assert len(data) >= life.data_kept
        assert metadata[: life.metadata_kept] == life.metadata[: life.metadata_kept]
        assert vote in life.votes[life.votes_kept :]
        assert machine.run(found) == (data, metadata, vote)


async def test_metadata_is_written_before_data_that_waited_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much data waits: the file shows that metadata came first."""
    monkeypatch.setattr(wal_queue, "ROUND_BYTES_MAX", 64 * 1024)
    async with opened(tmp_path, crash=True) as (store, _):
        orders, metadata = open_orders(store), open_metadata(store)
        for _ in range(20):
            append(orders, bytes(60_000))
        append(metadata, b"topic created")
        await store.wal.drained()
        entries = []
        for file in store.wal.files:
            content = file.path.read_bytes()
            scanner = WalScanner(
                file.path.name,
                lambda at, size, content=content: content[at : at + size],
                len(content),
                -1,
                is_last_file=True,
            )
            entries += [entry.header for entry in scanner.entries()]
        appends = [entry for entry in entries if entry.kind == WalEntryKind.APPEND]
        place = [entry.topic_id == METADATA_TOPIC_ID.bytes for entry in appends].index(True)
        assert (place, len(appends)) == (0, 21)


async def test_a_checkpoint_is_written_while_appends_never_stop(tmp_path: Path) -> None:
    """It waits for what was there when it began, not until nothing waits: under load that never comes."""
    async with opened(tmp_path, crash=True) as (store, _):
        orders = open_orders(store)

        class Again:
            """Appends as soon as the last append is durable: the queue is never empty."""

            def on_durable(self, end_offset: int) -> None:
                append(orders, b"next")
                append(orders, b"and another")

            def on_rejected(self, end_offset: int, error: StorageError) -> None: ...

            def on_damaged(self, damage: object) -> bool:
                return False

        listener = Again()
        orders.subscribe(listener)
        append(orders, b"first")
        await asyncio.wait_for(store.checkpoint(), 10)
        orders.unsubscribe(listener)
        await store.wal.drained()
        kept = orders.log_end_offset
    async with opened(tmp_path) as (store, _):
        assert len(await read_values(open_orders(store))) == kept


async def test_a_flush_ends_although_every_pass_leaves_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, crash=True) as (store, _):
        orders, flusher = open_orders(store), store.flusher
        passes = 0
        start = flusher._start_pass

        def start_and_leave_more() -> None:
            nonlocal passes
            start()
            passes += 1
            if passes < 10:
                append(orders, b"more")
                orders.durable_end_offset = orders.log_end_offset
                flusher.mark(orders)

        append(orders, b"first")
        await store.wal.drained()
        monkeypatch.setattr(flusher, "_start_pass", start_and_leave_more)
        await flusher.flushed()
        assert orders.flushed_offset >= 1
        assert passes == 1


async def test_a_torn_round_that_comes_back_hides_nothing(tmp_path: Path) -> None:
    """Recovery cuts it off. A disk whose sync fails may lose that cut, and succeed in the next sync."""
    async with opened(tmp_path, crash=True) as (store, _):
        orders = open_orders(store)
        append(orders, b"first")
        await store.wal.drained()
        append(orders, b"torn")
        await store.wal.drained()
        path = store.wal.files[-1].path
    content = bytearray(path.read_bytes())
    content[content.rindex(b"torn")] ^= 1
    path.write_bytes(content)
    async with opened(tmp_path, crash=True) as (store, report):
        assert len(report.torn) == 1
        for number in range(3):
            append(open_metadata(store), b"%d" % number)
            append(open_orders(store), b"%d" % number)
            await store.wal.drained()
    path.write_bytes(content)
    async with opened(tmp_path) as (store, _):
        assert await found(store) == ([b"first", b"0", b"1", b"2"], [b"0", b"1", b"2"], b"")
