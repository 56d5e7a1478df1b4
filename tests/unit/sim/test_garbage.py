"""A run that is over leaves nothing behind: thousands follow it in the same process."""

from __future__ import annotations

import gc

from chronik.sim.scenario import CLUSTER, run_seed
from chronik.sim.world import World


def worlds() -> int:
    gc.collect()
    return sum(isinstance(found, World) for found in gc.get_objects())


def test_a_run_leaves_nothing_behind() -> None:
    before = worlds()
    assert run_seed(0, CLUSTER).acked > 0, "records were in memory when it ended"
    assert worlds() == before
