"""Which archived files a query reads, and how they look beside what comes from the log."""

from __future__ import annotations

import datetime
import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chronik.published.steps import PublishedStep, step_path
from chronik.query.archive import Archive, ArchivedTopic
from chronik.query.messages import QueryError
from chronik.query.pushdown import RowBounds
from chronik.query.run import QueryRun, archive_parts, describe

WHEN = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)


class Limits:
    sql_memory_bytes = 64 << 20
    sql_columns_bytes_max = 1 << 20
    sql_rows_max = 1000
    sql_result_bytes_max = 1024 * 1024
    sql_seconds_max = 10.0


def write(
    root: Path, place: str, offsets: range, value: pa.DataType, values: list[Any], partition: int = 0
) -> None:
    table = pa.table(
        {
            "key": pa.array([b"k"] * len(offsets), pa.binary()),
            "value": pa.array(values, value),
            "partition": pa.array([partition] * len(offsets), pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array([WHEN] * len(offsets), pa.timestamp("us", tz="UTC")),
        }
    )
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, root / place)


def commit(root: Path, version: int, **given: Any) -> None:
    step = PublishedStep(version=version, topic="orders", **{"topic_id": "one", **given})
    path = root / step_path("orders", version)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(step))


def rows(archived: ArchivedTopic, columns: str = "*") -> list[tuple[Any, ...]]:
    connection = duckdb.connect()
    source = " UNION ALL BY NAME ".join(f"({part})" for part in archive_parts(connection, archived))
    return connection.execute(f'SELECT {columns} FROM ({source}) ORDER BY "offset"').fetchall()


ONE = pa.struct([("id", pa.int64()), ("deep", pa.struct([("x", pa.int64()), ("y", pa.int64())]))])
TWO = pa.struct([*ONE, ("offset", pa.string())])
DAY = "topic=orders/date=2024-05-01"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, f"{DAY}/0.parquet", range(3), ONE, [{"id": n, "deep": {"x": n}} for n in range(3)])
    commit(tmp_path, 0, ranges={"0": (0, 3)}, offsets={"0": 3}, rows=3, moves={"s/0": f"{DAY}/0.parquet"})
    return tmp_path


def look(archive: Archive, bounds: RowBounds | None = None, topic_id: str = "one") -> ArchivedTopic:
    found = archive.look("orders", topic_id, bounds or RowBounds())
    assert found is not None
    return found


def test_nothing_archived(tmp_path: Path) -> None:
    assert Archive(tmp_path / "nowhere").look("orders", "one", RowBounds()) is None


def test_decoded_values_are_columns_and_text(root: Path) -> None:
    archived = look(Archive(root))
    assert archived.ends == {0: 3}
    assert archived.rows == 3
    assert rows(archived, 'partition, "offset", key, id, deep, value')[1] == (
        *(0, 1, "k", 1, '{"x":1,"y":null}'),
        '{"id":1,"deep":{"x":1}}',
    )
    assert rows(archived, "timestamp")[0] == (WHEN.replace(tzinfo=None),)


def test_a_schema_that_grew_and_records_that_did_not_fit(root: Path) -> None:
    archive = Archive(root)
    assert look(archive).rows == 3
    write(root, "s/1", range(3, 5), TWO, [{"id": 3, "offset": "high"}, None])
    write(root, "s/2", range(5, 6), pa.binary(), [b'{"id": "words", "deep": 7}'])
    dead = "_dead_letters/topic=orders/date=2024-05-01/2.parquet"
    commit(
        root,
        1,
        ranges={"0": (3, 6)},
        offsets={"0": 6},
        rows=2,
        dead=1,
        moves={"s/1": f"{DAY}/1.parquet", "s/2": dead},
    )
    archived = look(archive)  # the files are still in staging: the job was killed
    assert archived.ends == {0: 6}
    assert rows(archived, '"offset", id, "value.offset"') == [
        (0, "0", None),
        (1, "1", None),
        (2, "2", None),
        (3, "3", "high"),
        (4, None, None),
        (5, "words", None),
    ]
    assert rows(archived, "value")[4:] == [(None,), ('{"id": "words", "deep": 7}',)]
    (root / DAY / "1.parquet").parent.mkdir(exist_ok=True)
    (root / "s/1").rename(root / DAY / "1.parquet")
    assert len(rows(look(archive))) == 6
    columns = {one["name"]: one["type"] for one in describe([], look(archive))}
    assert columns["headers"] == 'STRUCT("key" VARCHAR, "value" BLOB)[]'


def test_bounds_decide_which_files_are_read(root: Path) -> None:
    write(root, f"{DAY}/1.parquet", range(3), ONE, [{"id": 9}] * 3, partition=1)
    commit(root, 1, ranges={"1": (0, 3)}, offsets={"0": 3, "1": 3}, rows=3, moves={"s/1": f"{DAY}/1.parquet"})
    archive = Archive(root)
    assert len(look(archive).files) == 2
    assert len(look(archive, RowBounds(partition=1)).files) == 1
    assert look(archive, RowBounds(first_offset=3)).files == ()
    assert look(archive, RowBounds(end_offset=0)).files == ()
    day = int(WHEN.timestamp() * 1000)
    assert len(look(archive, RowBounds(first_timestamp_ms=day)).files) == 2
    assert look(archive, RowBounds(first_timestamp_ms=day + 86_400_000)).files == ()


def test_files_that_were_replaced_are_not_read_twice(root: Path) -> None:
    write(root, f"{DAY}/1.parquet", range(3), ONE, [{"id": n} for n in range(3)])
    moves = {"s/1": f"{DAY}/1.parquet"}
    commit(root, 1, kind="compact", offsets={"0": 3}, moves=moves, removes=(f"{DAY}/0.parquet",))
    archived = look(Archive(root), RowBounds(first_offset=2))
    assert [path.name for path, _, _ in archived.files] == ["1.parquet"]


def test_a_topic_made_anew_has_an_archive_of_its_own(root: Path) -> None:
    archive = Archive(root)
    assert archive.look("orders", "two", RowBounds()) is None
    write(root, f"{DAY}/1.parquet", range(1), ONE, [{"id": 100}])
    commit(
        root,
        1,
        topic_id="two",
        ranges={"0": (0, 1)},
        offsets={"0": 1},
        rows=1,
        moves={"s/1": f"{DAY}/1.parquet"},
    )
    assert rows(look(archive, topic_id="two"), "id") == [(100,)]
    both = (f"{DAY}/0.parquet", f"{DAY}/1.parquet")
    commit(
        root,
        2,
        topic_id="two",
        kind="compact",
        offsets={"0": 1},
        moves={"s/2": f"{DAY}/2.parquet"},
        removes=both,
    )
    assert archive.look("orders", "two", RowBounds()) is None, "nobody can tell its records apart"


def test_tables_of_other_formats_are_left_alone(tmp_path: Path) -> None:
    commit(tmp_path, 0, ranges={"0": (0, 3)}, offsets={"0": 3}, rows=3)
    assert Archive(tmp_path).look("orders", "one", RowBounds()) is None


def test_a_query_may_read_the_archive_and_nothing_else(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own = tmp_path_factory.mktemp("sql")
    run = QueryRun(own, Limits(), "SELECT count(*) FROM orders", 10)
    try:
        run.add_table("orders", [], {0: 3}, look(Archive(root)))
        run.seal()
        run.rows("json", own / "result", 0.0)
        assert json.loads((own / "result").read_bytes())["rows"] == [[3]]
        with pytest.raises(duckdb.Error):
            run.connection.execute("SELECT * FROM read_text('/etc/passwd')")
        other = root / DAY / "other.parquet"
        shutil.copy(next((root / DAY).glob("*.parquet")), other)
        with pytest.raises(duckdb.PermissionException):
            run.connection.execute(f"SELECT * FROM read_parquet('{other}')")
    finally:
        run.stop()


@pytest.mark.parametrize("what", ["a step", "a file"])
def test_a_damaged_archive_is_told_in_a_sentence(root: Path, what: str) -> None:
    """It was an internal error with a traceback in the log."""
    path = root / (step_path("orders", 0) if what == "a step" else f"{DAY}/0.parquet")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(QueryError) as refused:
        look(Archive(root))
    assert (refused.value.status, refused.value.code) == (503, "archive_damaged")
