"""WAL profiles and their override (S20), on a virtual clock and a disk that takes 0.2 ms for a sync."""

from __future__ import annotations

import asyncio

import pytest

from chronik.assembly import store_options
from chronik.client_state import ClientState
from chronik.config_sources import load_settings
from chronik.model import StorageError
from chronik.sim import disk as sim_disk
from chronik.storage.store import LogStore
from tests.unit.storage.support import append, open_orders
from tests.unit.storage.test_power_loss import Machine

SECONDS = 0.06
STEP_SECONDS = 0.0001
APPENDS_PER_STEP = 20
"""More than 32 gather during a sync: from there on `high` waits too."""

OVERRIDE = "CHRONIK_FSYNC_BATCH_TIMEOUT_MS"
ROUNDS_PER_SECOND = {
    ("ultra", None): (1_500, 5_000),
    ("high", None): (600, 1_300),
    ("medium", None): (150, 220),
    ("low", None): (80, 120),
    ("ultra", "20"): (30, 70),
    ("low", "0"): (1_500, 5_000),
    ("high", "2"): (350, 520),
}
"""How many commit rounds a steady load gets, at least and at most."""
ALONE_MS_MAX = {
    ("ultra", None): 1,
    ("high", None): 1,
    ("medium", None): 6,
    ("low", None): 11,
    ("ultra", "20"): 21,
    ("low", "0"): 1,
    ("high", "2"): 3,
}
"""How long a single append may wait that comes right behind a round."""


class Listener:
    def __init__(self) -> None:
        self.moved = asyncio.Event()

    def on_durable(self, end_offset: int) -> None:
        self.moved.set()

    def on_rejected(self, end_offset: int, error: StorageError) -> None: ...

    def on_damaged(self, damage: object) -> bool:
        return False


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Machine:
    profile, override = request.param
    monkeypatch.setattr(sim_disk, "_LONG_SYNC_PROBABILITY", 0.0)
    env = {"CHRONIK_WAL_PROFILE": profile} | ({OVERRIDE: override} if override is not None else {})
    machine = Machine(1, store_options(load_settings({}, env, None).settings, ClientState().producer_ids))
    machine.disk.is_local = False
    return machine


def name(case: object) -> str:
    return "-".join(map(str, case)) if isinstance(case, tuple) else str(case)


@pytest.mark.parametrize(("machine", "bounds"), ROUNDS_PER_SECOND.items(), indirect=["machine"], ids=name)
def test_rounds_are_as_far_apart_as_the_profile_says(machine: Machine, bounds: tuple[int, int]) -> None:
    async def load(store: LogStore) -> int:
        log, loop = open_orders(store), asyncio.get_running_loop()
        end = loop.time() + SECONDS
        while loop.time() < end:
            for _ in range(APPENDS_PER_STEP):
                append(log, b"value")
            await asyncio.sleep(STEP_SECONDS)
        return store.wal.stats.rounds

    assert bounds[0] <= machine.run(load) / SECONDS <= bounds[1]


@pytest.mark.parametrize(("machine", "wait_ms_max"), ALONE_MS_MAX.items(), indirect=["machine"], ids=name)
def test_a_single_append_waits_no_longer_than_the_profile_says(machine: Machine, wait_ms_max: int) -> None:
    async def waits(store: LogStore) -> list[float]:
        log, loop = open_orders(store), asyncio.get_running_loop()
        listener = Listener()
        log.subscribe(listener)
        took = []
        for _ in range(10):
            began = loop.time()
            listener.moved.clear()
            append(log, b"value")
            await listener.moved.wait()
            took.append((loop.time() - began) * 1000)
        return took

    took = machine.run(waits)
    assert max(took) < wait_ms_max
    assert max(took) > (wait_ms_max - 1) * 0.8, "it did not gather at all"
