"""SQL shares the disk with the WAL: what it keeps and what it spills have bounds."""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from chronik.query import kept_columns as keeping
from chronik.query.kept_columns import KeptColumns, spare_bytes
from chronik.query.messages import QueryError
from chronik.query.run import QueryRun, spill_bytes_max
from chronik.query.tables import TopicColumns, remove_unknown
from tests.unit.query.test_statement import Limits
from tests.unit.query.test_tables import batch

GIB = 1 << 30
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as made:
        made.execute("SET TimeZone = 'UTC'")
        yield made


def write(kept: KeptColumns, name: str, connection: duckdb.DuckDBPyConnection) -> list[TopicColumns]:
    """What a query holds that reads one record more of this topic."""
    held: list[TopicColumns] = []
    columns = kept.hold(name, "1", held).partition(0)
    first = columns.position
    columns.add([batch(first, [{"id": first}])], first + 1)
    kept.flush(columns, connection)
    return held


def topics(root: Path) -> set[str]:
    return {path.name.split(".")[0] for path in root.iterdir()}


def size_of_one(folder: Path, connection: duckdb.DuckDBPyConnection) -> int:
    kept = KeptColumns(folder, GIB)
    write(kept, "a", connection)
    return kept.bytes


def test_columns_that_are_longest_unused_go_first(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection
) -> None:
    (tmp_path / "sql").mkdir()
    (tmp_path / "one").mkdir()
    kept = KeptColumns(tmp_path / "sql", 5 * size_of_one(tmp_path / "one", connection) // 2)
    for name in "ab":
        kept.release(write(kept, name, connection))
    again: list[TopicColumns] = []
    kept.hold("a", "1", again)
    kept.release(again)
    kept.release(write(kept, "c", connection))
    assert topics(tmp_path / "sql") == {"a", "c"}
    assert kept.dropped == 1
    assert kept.hold("b", "1", []).partition(0).is_empty, "it begins again"
    kept.release(write(kept, "a", connection))
    assert kept.hold("a", "1", []).partition(0).position == 2, "what was kept goes on where it was"


def test_columns_that_a_query_reads_stay(tmp_path: Path, connection: duckdb.DuckDBPyConnection) -> None:
    (tmp_path / "sql").mkdir()
    (tmp_path / "one").mkdir()
    kept = KeptColumns(tmp_path / "sql", 3 * size_of_one(tmp_path / "one", connection) // 2)
    held = write(kept, "a", connection)
    with pytest.raises(QueryError) as refused:
        write(kept, "b", connection)
    assert (refused.value.status, refused.value.code) == (413, "no_room_for_columns")
    assert topics(tmp_path / "sql") == {"a", "b"}
    kept.release(held)
    assert kept.make_room() is True


def test_columns_of_a_former_process_count_and_go_first(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection
) -> None:
    (tmp_path / "sql").mkdir()
    former = KeptColumns(tmp_path / "sql", GIB)
    former.release(write(former, "z", connection))
    kept = KeptColumns(tmp_path / "sql", 3 * former.bytes // 2)
    kept.release(write(kept, "a", connection))
    assert topics(tmp_path / "sql") == {"a"}


def test_columns_of_a_topic_whose_name_begins_with_a_dot_go_too(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection
) -> None:
    (tmp_path / "sql").mkdir()
    (tmp_path / "one").mkdir()
    kept = KeptColumns(tmp_path / "sql", 3 * size_of_one(tmp_path / "one", connection) // 2)
    for name in (".foo", ".once", "a"):
        kept.release(write(kept, name, connection))
    assert {path.name for path in (tmp_path / "sql").iterdir()} == {"a.1"}


def test_columns_of_topics_that_are_gone_go_and_what_queries_need_stays(tmp_path: Path) -> None:
    for name in (".foo.1", ".bar.1", "a.1", ".once", ".spill", ".results"):
        (tmp_path / name).mkdir()
    remove_unknown(tmp_path, {".bar.1"})
    assert {path.name for path in tmp_path.iterdir()} == {".bar.1", ".once", ".spill", ".results"}


def test_what_is_released_never_waits_for_the_disk(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop releases; while it waits, the node's pings get no answer."""
    kept = KeptColumns(tmp_path, GIB)
    for name in "ab":
        kept.release(write(kept, name, connection))
    waited: list[tuple[str, bool]] = []

    def releasing(name: str, work: Any) -> Any:
        def wrapped(*given: Any, **options: Any) -> Any:
            thread = threading.Thread(target=kept.release, args=([],), daemon=True)
            thread.start()
            thread.join(10)
            waited.append((name, thread.is_alive()))
            return work(*given, **options)

        return wrapped

    monkeypatch.setattr(keeping, "_size", releasing("measure", keeping._size))
    monkeypatch.setattr(keeping.shutil, "rmtree", releasing("delete", keeping.shutil.rmtree))
    kept.hold("a", "2", [])  # the topic was made anew
    assert topics(tmp_path) == {"b"}
    kept._bytes_max = 0
    assert kept.make_room() is True
    assert topics(tmp_path) == set()
    assert waited == [("delete", False), ("measure", False), ("delete", False)]


def test_sql_leaves_a_part_of_the_disk_free(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 500 * GIB
    monkeypatch.setattr(keeping.shutil, "disk_usage", lambda _: Usage(1000 * GIB, 0, free))
    assert spill_bytes_max(tmp_path, Limits()) == 4 * Limits.sql_memory_bytes
    free = GIB + 100_000
    assert spare_bytes(tmp_path) == 100_000
    assert spill_bytes_max(tmp_path, Limits()) == 25_000, "two queries at once fill the half"
    kept = KeptColumns(tmp_path, GIB)
    kept.release(write(kept, "a", connection))
    free = GIB - 1
    with pytest.raises(QueryError):
        write(kept, "b", connection)
    assert topics(tmp_path) == {"b"}
    assert spill_bytes_max(tmp_path, Limits()) == 0


@pytest.mark.parametrize("free", [500 * GIB, GIB])
def test_a_query_spills_only_while_the_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    monkeypatch.setattr(keeping.shutil, "disk_usage", lambda _: Usage(1000 * GIB, 0, free))
    run = QueryRun(tmp_path, Limits(), "SELECT 1", 1)
    text = " || ".join(f"md5((range + {n})::VARCHAR)" for n in range(3))
    fill = f"CREATE TABLE t AS SELECT {text} AS b FROM range(600000)"
    try:
        if free > GIB:
            run.guarded(lambda: run.connection.execute(fill))
            return
        with pytest.raises(QueryError) as refused:
            run.guarded(lambda: run.connection.execute(fill))
        assert refused.value.code == "out_of_memory"
    finally:
        run.stop()
        assert not list((tmp_path / ".spill").iterdir())
