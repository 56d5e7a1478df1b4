"""Where a batch stands in the WAL."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronik.storage import locating
from chronik.storage.locating import TooManyEntries, WalPlace, locate_in_wal
from chronik.storage.store import LogStore, StoreOptions
from chronik.storage.wal import PROFILES, WalOptions
from chronik.storage.wal_format import ENTRY_HEADER_BYTES, decode_header
from tests.unit.storage.support import append_durably, open_orders, opened

SMALL = StoreOptions(wal=WalOptions(profile=PROFILES["ultra"], file_bytes=4_096))


def located(store: LogStore, offset: int) -> WalPlace | None:
    return locate_in_wal(store.disk, list(store.wal.files), open_orders(store), offset)


async def test_the_newest_entry_with_a_batch_is_found_until_its_file_is_given_up(tmp_path: Path) -> None:
    async with opened(tmp_path, SMALL) as (store, _):
        log = open_orders(store)
        for _ in range(20):
            await append_durably(store, log, b"v" * 900)
        for offset in range(20):
            place = located(store, offset)
            assert place is not None
            data = (tmp_path / "wal" / place.file_name).read_bytes()
            entry = decode_header(data[place.position : place.position + ENTRY_HEADER_BYTES])
            assert entry is not None
            assert (entry.offset, entry.round) == (offset, place.round)

        former = located(store, 12)
        log.truncate(12)
        await append_durably(store, log, b"another", epoch=1)
        again = located(store, 12)
        assert former is not None
        assert again is not None
        assert (again.file_name, again.position) != (former.file_name, former.position)

        for _ in range(3):
            await store.checkpoint()
            await append_durably(store, log, b"w" * 3_000)
        assert located(store, 0) is None
        assert located(store, 15) is not None


async def test_the_search_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locating, "WAL_ENTRIES_READ_MAX", 5)

    async with opened(tmp_path, SMALL) as (store, _):
        log = open_orders(store)
        for _ in range(20):
            await append_durably(store, log, b"v" * 900)
        assert located(store, 19) is not None
        with pytest.raises(TooManyEntries):
            located(store, 0)
