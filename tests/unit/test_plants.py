"""Plants one known bug, another one every day: does the test that guards against it notice it?

`make mutants` plants all of them.
"""

from __future__ import annotations

from datetime import date

import pytest

from tools.plants import PLANTS, BrokenPlantError, judge, unnoticed

QUICK = [one for one in PLANTS if one.is_quick]


def test_a_planted_bug_is_noticed() -> None:
    one = QUICK[date.today().toordinal() % len(QUICK)]
    assert unnoticed(one) == [], f"{one.name}: these pass"


def test_only_a_test_that_ran_has_noticed() -> None:
    assert judge("F\nFAILED tests/a.py::b - assert 1\n", 1)
    assert not judge(".\n", 0)
    for out, code in (("ERROR tests/a.py - ImportError", 1), ("no tests ran", 5), ("ERROR collecting", 2)):
        with pytest.raises(BrokenPlantError):
            judge(out, code)
