"""The table of failures in docs/TESTING.md: complete, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| (T\d\d) \|.*\| (.*) \|$", (ROOT / "docs" / "TESTING.md").read_text(), re.MULTILINE)


def test_every_failure_has_a_row() -> None:
    assert [name for name, _ in ROWS] == [f"T{number:02}" for number in range(1, 36)]


@pytest.mark.parametrize(("failure", "caught"), ROWS, ids=[name for name, _ in ROWS])
def test_what_the_table_names_exists(failure: str, caught: str) -> None:
    for place in re.findall(r"`((?:tests|bench|tools)/[^`]+)`", caught):
        path, _, name = place.partition("::")
        assert (ROOT / path).is_file(), place
        if name:
            assert f"def {name}(" in (ROOT / path).read_text(), place
