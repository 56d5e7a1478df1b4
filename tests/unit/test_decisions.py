"""The records of decisions under docs/decisions: what each must tell, in one order, and where notes go."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

RECORDS = sorted((Path(__file__).parents[2] / "docs" / "decisions").glob("*.md"))
PARTS = ("Question", "Choice", "Figures", "Given up")
NOTES = "\n---\n"


def test_there_are_records() -> None:
    assert len(RECORDS) > 30


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_a_record_says_question_choice_figures_and_what_was_given_up(path: Path) -> None:
    record = path.read_text().partition(NOTES)[0]
    found = re.findall(r"^\*\*([A-Z][a-z ]+)\.\*\*", record, re.MULTILINE)
    assert tuple(part for part in found if part in PARTS) == PARTS
    assert record.startswith(f"# {path.name[:4]}: ")


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_the_figures_are_one_table_and_notes_stand_below_the_line(path: Path) -> None:
    record, _, notes = path.read_text().partition(NOTES)
    figures = record.partition("**Figures.**")[2]
    assert len(re.findall(r"^\|[-| :]*---[-| :]*\|$", figures, re.MULTILINE)) <= 1
    assert "## " not in record
    assert not notes or notes.lstrip().startswith("## Appendix")
