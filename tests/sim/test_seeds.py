"""A short fixed set of runs; `make sim SEEDS=10000` does many."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest

from chronik.sim.scenario import CLUSTER, SCENARIOS, run_seed

SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
@pytest.mark.parametrize("seed", range(6))
def test_seed(scenario: str, seed: int) -> None:
    result = run_seed(seed, SCENARIOS[scenario])
    assert result.failures == []
    assert result.acked > 0
    assert result.read > 0


@pytest.mark.parametrize(("scenario", "seed"), [("members", 10058), ("cluster", 17)])
def test_a_seed_that_found_a_bug(scenario: str, seed: int) -> None:
    """members 10058: a marker ended an open transaction while the coordinator was asked about another one.

    cluster 17: a produce request overtook one of the same transaction that had to wait.
    """
    assert run_seed(seed, SCENARIOS[scenario]).failures == []


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_a_seed_gives_the_same_trace_in_any_process(scenario: str) -> None:
    def trace(hash_seed: str) -> bytes:
        command = [sys.executable, "-m", "chronik.sim", "--scenario", scenario, "--replay", "3"]
        env = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONHASHSEED": hash_seed}
        return subprocess.run(command, env=env, check=True, capture_output=True).stdout

    first = trace("1")
    assert first == trace("2")
    assert len(first.splitlines()) > 500


def test_no_real_clock_decides_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """In seed 4 the WAL learns how long its rounds take, which decides where they are written."""
    usual = run_seed(4, CLUSTER)
    leaps = count(0, 1000)
    clocked = [module for name, module in sys.modules.items() if name.startswith("chronik.")]
    for module in clocked:
        if getattr(module, "clock", None) is time.perf_counter:
            monkeypatch.setattr(module, "clock", lambda: float(next(leaps)))
    other = run_seed(4, CLUSTER)
    assert next(leaps) > 0, "the clock was looked at"
    assert (other.fingerprint, other.steps) == (usual.fingerprint, usual.steps)
