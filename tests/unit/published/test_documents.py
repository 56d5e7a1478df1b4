"""Records as documents of a search index."""

from __future__ import annotations

from pathlib import Path

import tantivy

from chronik.published.documents import Documents, index_schema
from chronik.published.paths import Paths


def test_odd_values_are_indexed_as_text_or_not_at_all(tmp_path: Path) -> None:
    tmp_path.joinpath("s").mkdir()
    writer = tantivy.Index(index_schema(), path=str(tmp_path / "s")).writer(16 * 1024 * 1024, 1)
    documents = Documents(writer, Paths())
    for number, value in enumerate([None, b"", b"\xff\xfe", b"plain words", b"[1, 2]", b'{"a": 1} {"b": 2}']):
        documents.add(None, value, 3, number, 0)
    writer.commit()
    writer.wait_merging_threads()
    index = tantivy.Index.open(str(tmp_path / "s"))
    assert index.searcher().num_docs == 6
    assert len(index.searcher().search(index.parse_query("plain", ["_text"]), 5).hits) == 1
