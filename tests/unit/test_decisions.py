"""Each record in docs/decisions: number, question, choice, figures, what was given up, in this order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

RECORDS = sorted((Path(__file__).parents[2] / "docs" / "decisions").glob("*.md"))
HEADINGS = ("Question", "Choice", "Figures", "Given up")
SAME = {"Seen": "Figures"}
"""Where what was seen is no figure."""


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_a_record_has_its_four_parts(record: Path) -> None:
    text = record.read_text()
    assert text.startswith(f"# {record.stem[:4]}: ")
    found = [SAME.get(name, name) for name in re.findall(r"^\*\*([A-Z][a-z ]+)\.\*\*", text, flags=re.M)]
    assert [name for name in found if name in HEADINGS] == list(HEADINGS)


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_notes_from_the_laboratory_are_below_the_line(record: Path) -> None:
    above, _, _ = record.read_text().partition("\n---\n")
    assert "laboratory" not in above
    for heading in HEADINGS:
        assert f"**{heading}.**" in above or heading == "Figures", heading
