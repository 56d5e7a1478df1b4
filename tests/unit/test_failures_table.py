"""The table of failures in docs/TESTING.md: complete; every test, mutant and plant that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.mutants import MUTANTS
from tools.planted_failures import BY_HAND
from tools.plants import PLANTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "TESTING.md").read_text()
ROWS = re.findall(r"^\| (T\d\d) \|.*\| (.*) \|$", PAGE, re.MULTILINE)
QUOTED = re.compile(r'"([^"]+)"').findall
SECTION = PAGE.split("\n## Requirements and what shows that their tests can fail\n")[1].split("\n## ")[0]
PLANTED = re.findall(
    r"^\| ((?:[SKLHPXRNO]\d\d|runbook|guards)(?:, [A-Z]\d\d)*) \| (.*) \| (.*) \|$", SECTION, re.MULTILINE
)


def test_every_failure_has_a_row() -> None:
    assert [name for name, _ in ROWS] == [f"T{number:02}" for number in range(1, 44)]


@pytest.mark.parametrize(("failure", "caught"), ROWS, ids=[name for name, _ in ROWS])
def test_what_the_table_names_exists(failure: str, caught: str) -> None:
    places = re.findall(r"`((?:tests|bench|tools)/[^`]+)`", caught)
    assert places
    for place in places:
        path, _, name = place.partition("::")
        assert (ROOT / path).is_file(), place
        if name:
            assert f"def {name}(" in (ROOT / path).read_text(), place


@pytest.mark.parametrize(("failure", "caught"), ROWS, ids=[name for name, _ in ROWS])
def test_what_should_be_noticed_is_planted(failure: str, caught: str) -> None:
    mutants = {mutant.name for mutant in MUTANTS if mutant.failure == failure}
    plants = {one.name for one in PLANTS if one.failure == failure}
    assert set(QUOTED(caught)) == mutants | plants
    assert bool(mutants) is ("tests/sim/" in caught)
    by_hand = {name for row, _, _ in PLANTED for name in row.split(", ")}
    assert mutants or plants or failure in by_hand, "nobody has seen its tests fail"


SEEDS = "tests/sim/test_seeds.py::test_seed"


def tied(failure: str) -> set[str]:
    """Tests that a mutant or plant of this row makes fail."""
    bugs = [one for one in (*MUTANTS, *PLANTS) if failure in one.failure.split(", ")]
    seeds = {SEEDS} if any(one in MUTANTS for one in bugs) else set()
    return seeds.union(*(one.tests for one in bugs))


def cited(caught: str) -> set[str]:
    return {place for place in re.findall(r"`(tests/[^`]+)`", caught) if "::" in place}


@pytest.mark.parametrize(("failure", "caught"), ROWS, ids=[name for name, _ in ROWS])
def test_every_cited_test_has_been_seen_to_fail(failure: str, caught: str) -> None:
    """One that a row names and that nothing makes fail would only look like a guard."""
    assert cited(caught) - tied(failure) <= BY_HAND.keys()
    assert tied(failure) <= cited(caught)


def test_no_test_is_called_seen_by_hand_without_need() -> None:
    needed = set().union(*(cited(caught) - tied(failure) for failure, caught in ROWS))
    assert needed == BY_HAND.keys()


def test_no_row_of_a_planted_defect_is_passed_over() -> None:
    header, line, *rows = [row for row in SECTION.splitlines() if row.startswith("|")]
    assert (header, line) == ("| id | test | planted defect that it caught |", "|---|---|---|")
    assert len(rows) == len(PLANTED) > 30


@pytest.mark.parametrize(("requirement", "tests", "defect"), PLANTED)
def test_what_guards_a_requirement_exists(requirement: str, tests: str, defect: str) -> None:
    assert defect
    test_what_the_table_names_exists(requirement, tests)
    for name in QUOTED(defect):
        (one,) = (one for one in PLANTS if one.name == name)
        assert one.failure in requirement
        assert all(f"`{test}`" in tests for test in one.tests)


def test_every_requirement_has_a_planted_defect() -> None:
    """Else its tests might all pass without what it asks for."""
    known = re.findall(
        r"^\| ([SLHPXRNO]\d\d) \|", (ROOT / "docs" / "REQUIREMENTS.md").read_text(), re.MULTILINE
    )
    planted = {name for one in PLANTS for name in one.failure.split(", ")}
    assert len(known) > 60
    assert [name for name in known if name not in planted] == []


def test_every_plant_is_in_a_table() -> None:
    told = [
        name for cell in (*(row[-1] for row in ROWS), *(row[-1] for row in PLANTED)) for name in QUOTED(cell)
    ]
    planted = [*(one.name for one in PLANTS), *(mutant.name for mutant in MUTANTS if mutant.failure)]
    assert sorted(told) == sorted(planted)
