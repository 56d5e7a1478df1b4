"""The page on formats is made from the structs: no table of it may be empty, left out or forgotten."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import format_docs

PAGE = (Path(__file__).parents[2] / "docs" / "FORMATS.md").read_text()

PACKAGES = (
    *("cluster", "coordinators", "groups", "links", "metadata", "published", "raft", "replication"),
    *("security", "storage", "tiering", "transactions"),
)
"""Those whose structs are written to disk or sent to other nodes."""
IN_MEMORY = {
    "cluster/lease.py": {"_Grant"},
    "links/handshake.py": {"LinkIdentity"},
    "metadata/values.py": {"Refused", "Outcome"},
    "replication/writers.py": {"Writer"},
    "security/acls.py": {"AclFilter"},
    "storage/log_parts.py": {"TailBatch"},
    "storage/verifying.py": {"SegmentFinding", "SegmentCheck"},
    "tiering/manifest.py": {"_Listing"},
    "storage/wal_queue.py": {"Round"},
}
"""Neither written nor sent, but by HTTP. So are all events."""
BY_HAND = {
    "published/documents.py": {"Manifest"},
    "published/steps.py": {"PublishedStep"},
    "storage/checkpoint.py": {"_Version"},
    "transactions/transaction.py": {"TxnRecord"},
}
"""Described in the text of the page: JSON that others read, Kafka's own record, the start of a checkpoint."""


def encoded_classes(source: str, *, tuples: bool = False) -> Iterator[str]:
    """Names of the structs in a file, and of the named tuples where these are encoded by hand."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base) for base in node.bases}
            if bases & {"msgspec.Struct", "Struct", *found} or (tuples and "NamedTuple" in bases):
                found.add(node.name)
                yield node.name


def missing_structs() -> list[str]:
    """Structs that are on no table of the page and that nothing excuses."""
    missing = []
    for path in sorted(path for name in PACKAGES for path in (format_docs.SOURCE / name).rglob("*.py")):
        file = str(path.relative_to(format_docs.SOURCE))
        if file == "metadata/events.py":
            continue
        known = IN_MEMORY.get(file, set()) | BY_HAND.get(file, set())
        for table_file, names in format_docs.TABLES.values():
            if table_file == file:
                known |= {*names, *(one.name for one in format_docs.structs(path, names))}
        found = encoded_classes(path.read_text(), tuples=file == "links/frames.py")
        missing += [f"{file}: {name}" for name in found if name not in known]
    return missing


def test_every_struct_that_is_written_or_sent_is_on_the_page() -> None:
    assert missing_structs() == [], "add it to TABLES of tools/format_docs.py, or say here why not"


def test_a_struct_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("handshake", "replication bodies", "raft messages"):
        monkeypatch.delitem(format_docs.TABLES, name)
    missing = missing_structs()
    assert {"links/handshake.py: Hello", "links/frames.py: Head", "raft/messages.py: Fence"} <= {*missing}


def test_what_is_excused_is_still_there() -> None:
    for excused in (IN_MEMORY, BY_HAND):
        for file, names in excused.items():
            assert names <= set(encoded_classes((format_docs.SOURCE / file).read_text())), file


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
