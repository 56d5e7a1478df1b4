"""The line of the SQL shell."""

from __future__ import annotations

from chronik.cli.http import Http
from chronik.cli.sql import _Shell


def completions(text: str) -> list[str]:
    shell = _Shell(Http("127.0.0.1", 1, None, is_named=True), "table", None)
    shell._tables = {"orders": ["partition INTEGER", "total DOUBLE"], "shipments": ["total DOUBLE"]}
    found = []
    while (word := shell._complete(text, len(found))) is not None:
        found.append(word)
    return found


def test_topics_columns_and_words_are_completed() -> None:
    assert completions("ord") == ["orders", "ORDER"]
    assert completions("TOT") == ["total"]
    assert completions("SEL") == ["SELECT"]
    assert completions(".t") == [".tables"]
    assert completions("nothing") == []
