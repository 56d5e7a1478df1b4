"""Plants one known bug, another one every day: does the test that guards against it notice it?

`make mutants` plants all of them.
"""

from __future__ import annotations

from datetime import date

import pytest

from tools.plants import PLANTS, BrokenPlantError, Plant, judge, source_of, unnoticed

QUICK = [one for one in PLANTS if one.is_quick]


@pytest.mark.parametrize("one", PLANTS, ids=lambda one: one.name)
def test_a_plant_changes_one_place(one: Plant) -> None:
    text = source_of(one).read_text()
    assert text.count(one.text) == 1
    if one.file.endswith(".py"):
        compile(text.replace(one.text, one.replacement), one.file, "exec")


def test_every_plant_has_a_name_of_its_own_and_quick_ones_have_a_unit_test() -> None:
    assert len({one.name for one in PLANTS}) == len(PLANTS)
    assert all(unit_tests(one) for one in QUICK)


def unit_tests(one: Plant) -> tuple[str, ...]:
    return tuple(test for test in one.tests if test.startswith("tests/unit/"))


def test_a_planted_bug_is_noticed() -> None:
    one = QUICK[date.today().toordinal() % len(QUICK)]
    assert unnoticed(one._replace(tests=unit_tests(one))) == [], f"{one.name}: these pass"


def test_only_a_test_that_ran_has_noticed() -> None:
    assert judge("F\nFAILED tests/a.py::b - assert 1\n", 1)
    assert not judge(".\n", 0)
    for out, code in (("ERROR tests/a.py - ImportError", 1), ("no tests ran", 5), ("ERROR collecting", 2)):
        with pytest.raises(BrokenPlantError):
            judge(out, code)
