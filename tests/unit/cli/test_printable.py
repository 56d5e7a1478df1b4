"""What somebody else named does nothing to the terminal of whoever looks."""

from __future__ import annotations

import json
import sys
import unicodedata
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import chronik.cli
from chronik.cli import schema
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


def test_the_name_of_a_row_can_be_copied(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup's id was folded on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    name = "20261120T003133.499Z"
    headings = ("backup", "created", "cluster", "#topics", "#offsets", "#bytes", "#groups")
    print_table(headings, [(name, "2026-11-20T00:33:54+00:00", "c" * 32, 3, 240004, 3502301, 0)])
    assert name in capsys.readouterr().out
    wide = "t" * 200
    print_table(("topic", "#partitions"), [(wide, 1)])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert out.count("t") > 200, "a name that is too wide is folded, not cut"


def test_schemas_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(
        [
            {"schema": EVIL, "schemaType": "PROTOBUF"},
            {"schema": json.dumps(EVIL), "schemaType": "JSON"},
            {"is_compatible": False, "messages": [EVIL]},
            {"schema": EVIL, "schemaType": "PROTOBUF"},
        ]
    )
    monkeypatch.setattr(schema, "with_http", lambda *_asked: next(answers))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    schema.get("orders-value")
    schema.get("orders-value")
    file = tmp_path / "order.avsc"
    file.write_text('"int"')
    with pytest.raises(typer.Exit):
        schema.check("orders-value", str(file))
    shown = capsys.readouterr().out
    assert not {"\x1b", "\x9b", "\u202e", "\r"} & {*shown}
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    schema.get("orders-value")
    assert capsys.readouterr().out == EVIL + "\n"
