"""Commit rounds of the WAL, as its files show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronik.storage import wal_queue
from chronik.storage.wal_format import WalScanner
from tests.unit.storage.support import append, open_orders, opened


async def test_each_round_has_its_own_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that one queue of appends is cut into: recovery tells damage from a torn end by it."""
    monkeypatch.setattr(wal_queue, "ROUND_BYTES_MAX", 1000)

    async with opened(tmp_path, crash=True) as (store, _):
        log = open_orders(store)
        for number in range(12):
            append(log, bytes([number]) * 200)
        await store.wal.drained()
        assert log.durable_end_offset == 12
        path = store.wal.files[-1].path
        data = path.read_bytes()
        scanner = WalScanner(
            path.name, lambda at, size: data[at : at + size], len(data), -1, is_last_file=True
        )
        numbers = [entry.header.round for entry in scanner.entries()]
        assert (scanner.torn_at, scanner.damage) == (None, [])
        assert numbers == sorted(numbers)
        assert len(set(numbers)) == store.wal.stats.rounds > 3
