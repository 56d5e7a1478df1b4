"""The planted bugs of `make mutants`: each has its place in the source as it is now."""

from __future__ import annotations

import pytest

from tools.mutants import MUTANTS, SOURCE, BrokenMutantError, Mutant, judge


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place(mutant: Mutant) -> None:
    text = (SOURCE / "chronik" / mutant.file).read_text()
    assert text.count(mutant.text) == 1
    compile(text.replace(mutant.text, mutant.replacement), mutant.file, "exec")


def test_there_are_enough_of_them() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20


def test_a_simulator_that_breaks_by_itself_has_caught_nothing() -> None:
    line = "seed 7 failed: an acknowledged record is missing"
    assert judge(f"seed 6 clean\n{line}\n", "", 1) == line
    assert judge("seeds 6, clean 6, failed 0\n", "", 0) is None
    with pytest.raises(BrokenMutantError, match="NameError"):
        judge("", "Traceback\nNameError: name 'x' is not defined\n", 1)
