"""The page on formats is made from the structs: no table of it may be empty, left out or forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import format_docs

PAGE = (Path(__file__).parents[2] / "docs" / "FORMATS.md").read_text()


def test_every_table_has_rows() -> None:
    for name in format_docs.TABLES:
        made = PAGE.partition(f"<!-- made: {name} -->")[2].partition("<!-- end -->")[0]
        assert made.count("\n| ") > 1, f"the table {name!r} of docs/FORMATS.md is empty"


def test_every_type_of_frame_has_a_meaning() -> None:
    for name in ("replication frames", "quorum frames"):
        file, classes = format_docs.TABLES[name]
        (frame_types,) = format_docs.structs(format_docs.SOURCE / file, classes)
        assert [one.name for one in frame_types.fields if not one.meaning] == []


def test_a_place_without_a_table_is_refused() -> None:
    with pytest.raises(SystemExit, match="no, such table"):
        format_docs.formats_page(PAGE + "<!-- made: no, such table -->\n<!-- end -->\n")


def test_a_table_without_a_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    added = {**format_docs.TABLES, "more": ("raft/messages.py", ("_Message",))}
    monkeypatch.setattr(format_docs, "TABLES", added)
    with pytest.raises(SystemExit, match="more"):
        format_docs.formats_page(PAGE)


def test_an_empty_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(format_docs.TABLES, "acls", ("links/handshake.py", ("Welcome",)))
    with pytest.raises(SystemExit, match="empty"):
        format_docs.formats_page(PAGE)
