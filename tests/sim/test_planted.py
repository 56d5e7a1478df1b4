"""Plants two known bugs, other ones every day: does the simulator still notice? `make mutants` plants all."""

from __future__ import annotations

from datetime import date

import pytest

from tools.mutants import MUTANTS, is_caught

QUICK = [mutant for mutant in MUTANTS if mutant.is_quick]
"""Those that a few seeds notice."""
SEEDS = 96
"""Several times as many as are needed, since every change of the code shuffles them."""


@pytest.mark.parametrize("place", range(2))
def test_a_planted_bug_is_noticed(place: int) -> None:
    mutant = QUICK[(2 * date.today().toordinal() + place) % len(QUICK)]
    assert is_caught(mutant, SEEDS) is not None, f"{mutant.name}: {SEEDS} seeds are clean"
