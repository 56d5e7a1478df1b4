"""How many entries a commit round waits for: learned from who comes."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from chronik.storage import wal
from chronik.storage.company import TRIAL_ROUNDS_FIRST, TRIAL_ROUNDS_MAX, TRIAL_ROUNDS_MIN, Company
from chronik.storage.store import StoreOptions
from chronik.storage.wal import PROFILES, WalOptions
from tests.unit.storage.support import append, append_durably, open_orders, opened, read_values

GATHERING = StoreOptions(wal=WalOptions(profile=PROFILES["high"], file_bytes=1 << 20))


def rounds_with(company: Company, population: int, rounds: int) -> int:
    """Rounds with clients of which always so many come; returns how often one waited in vain."""
    in_vain = 0
    for _ in range(rounds):
        if company.expected > population:
            in_vain += 1
            company.stayed_away(population)
        elif company.expected > 1:
            company.came(in_time=True)
        company.round_done()
    return in_vain


def test_it_finds_out_how_many_there_are() -> None:
    company = Company()
    rounds_with(company, 5, TRIAL_ROUNDS_FIRST + 3 * TRIAL_ROUNDS_MIN)
    assert company.expected == 5
    rounds_with(company, 5, 10 * TRIAL_ROUNDS_MAX)
    assert company.expected in (5, 6)


def test_a_client_that_comes_alone_hardly_ever_waits() -> None:
    company = Company()
    rounds = 20 * TRIAL_ROUNDS_MAX
    assert rounds_with(company, 1, rounds) <= rounds / 400


def test_those_that_left_are_not_waited_for() -> None:
    company = Company()
    rounds_with(company, 5, TRIAL_ROUNDS_FIRST + 3 * TRIAL_ROUNDS_MIN)
    assert rounds_with(company, 2, TRIAL_ROUNDS_MIN) <= 3
    assert company.expected == 2


def test_those_that_come_at_their_own_pace_are_not_waited_for() -> None:
    """A message every millisecond: a second one always comes, but long after a sync would have been over."""
    company = Company()
    waits = 0
    for _ in range(20 * TRIAL_ROUNDS_MAX):
        if company.expected > 1:
            waits += 1
            company.came(in_time=False)
        company.round_done()
    assert waits <= 20 * TRIAL_ROUNDS_MAX / 400
    assert company.expected <= 2


def test_one_stall_is_no_reason_to_expect_fewer() -> None:
    company = Company()
    rounds_with(company, 4, TRIAL_ROUNDS_FIRST + 2 * TRIAL_ROUNDS_MIN + 10)
    company.stayed_away(1)
    assert company.expected == 4


def test_a_round_starts_when_all_that_are_expected_have_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal, "COMPANY_SECONDS_MAX", 3600.0)

    async def run() -> None:
        async with opened(tmp_path, GATHERING) as (store, _):
            log = open_orders(store)
            append(log, b"first")
            await store.wal.drained()
            store.wal._company.expected = 3
            before = store.wal.stats.rounds
            for value in (b"a", b"b", b"c"):
                append(log, value)
                for _ in range(20):  # turns in which a round would have started
                    await asyncio.sleep(0)
            await store.wal.drained()
            assert store.wal.stats.rounds == before + 1
            assert log.durable_end_offset == 4

    asyncio.run(run())


def test_a_round_does_not_wait_for_long(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path, GATHERING) as (store, _):
            log = open_orders(store)
            store.wal._company.expected = 3
            append(log, b"alone")
            async with asyncio.timeout(60):
                await store.wal.drained()
            assert await read_values(log) == [(0, b"alone")]

    asyncio.run(run())


def test_rounds_that_cannot_wait_teach_nothing(tmp_path: Path) -> None:
    """In the lane no round waits: whatever was expected there would never be found wrong."""

    async def run() -> None:
        async with opened(tmp_path, GATHERING) as (store, _):
            log = open_orders(store)
            store.wal._company._rounds_to_trial = 1
            store.wal._inline._from = math.inf
            await append_durably(store, log, b"in the lane")
            assert store.wal._company.expected == 1
            store.wal._inline._from = 0.0
            await append_durably(store, log, b"on the loop")
            assert store.wal._company.expected == 2

    asyncio.run(run())


def test_ultra_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "COMPANY_SECONDS_MAX", 3600.0)

    async def run() -> None:
        async with opened(tmp_path) as (store, _):
            log = open_orders(store)
            store.wal._company.expected = 3
            append(log, b"alone")
            async with asyncio.timeout(60):
                await store.wal.drained()

    asyncio.run(run())
