"""What somebody else named does nothing to the terminal of whoever looks."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

import chronik.cli
from chronik.cli.client import CommandFailed, end, print_table
from chronik.cli.printable import complain, printable, say
from chronik.cli.sql import _cell

EVIL = "\x1b]0;title\x07\x1b[2J\x9b1m\u202erotide\r"
SHOWN = r"\x1b]0;title\x07\x1b[2J\x9b1m\u202erotide\r"


def test_text_that_people_write_stays() -> None:
    for text in ("orders", "Grüße, мир, 世界 👍", "a\tb\nc", r"back\slash", ""):
        assert printable(text) == text


@given(st.text())
def test_nothing_is_left_that_a_terminal_obeys(text: str) -> None:
    shown = printable(text)
    assert not [one for one in shown if unicodedata.category(one)[0] == "C" and one not in "\n\t"]


def test_names_in_tables_lines_and_errors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_table(("group", "members"), [(EVIL, [EVIL])])
    say(EVIL)
    complain(EVIL)
    with pytest.raises(CommandFailed):
        end([EVIL, EVIL], done=0)

    def failing(_argument: object) -> object:
        raise CommandFailed(EVIL)

    monkeypatch.setattr(chronik.cli, "build", failing)
    monkeypatch.setattr(sys, "argv", ["chronik"])
    with pytest.raises(SystemExit):
        chronik.cli.run_command()
    out, err = capsys.readouterr()
    assert (out.count(SHOWN), err.count(SHOWN)) == (3, 3)
    assert not {"\x1b", "\x9b", "\u202e", "\r"} & {*out, *err}
    assert SHOWN in _cell(EVIL).replace("\\[", "[")
