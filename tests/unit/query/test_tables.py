"""Records as columns: text, JSON fields, types that differ between files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from chronik.query.column_reader import SCHEMA
from chronik.query.tables import PartitionColumns, table_source


def batch(first: int, values: list[Any]) -> pa.RecordBatch:
    data = [v if isinstance(v, bytes) or v is None else json.dumps(v).encode() for v in values]
    count = len(values)
    arrays = [
        pa.array([0] * count, pa.int32()),
        pa.array(range(first, first + count), pa.int64()),
        pa.array([1_700_000_000_000_000] * count, SCHEMA.field("timestamp").type),
        pa.array([b"k"] * count, pa.binary()),
        pa.array(data, pa.binary()),
        pa.array([[]] * count, SCHEMA.field("headers").type),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def table(values: list[Any]) -> tuple[list[tuple[str, str]], list[dict[str, Any]]]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("raw", pa.Table.from_batches([batch(0, values)], SCHEMA))
        result = connection.execute(table_source(connection, "raw") + ' ORDER BY "offset"')
        names = [(name, str(kind)) for name, kind, *_ in result.description]
        return names, [dict(zip([n for n, _ in names], row, strict=True)) for row in result.fetchall()]


def test_json_fields_are_columns_with_the_types_of_all_values() -> None:
    names, rows = table([{"n": 1, "x": 1, "ok": True, "s": "a", "deep": {"b": [1]}}, {"n": -2, "x": 2.5}])
    types = dict(names)
    assert types["n"] == "BIGINT"
    assert (types["x"], types["ok"], types["s"]) == ("DOUBLE", "BOOLEAN", "VARCHAR")
    assert [row["x"] for row in rows] == [1.0, 2.5]
    assert json.loads(rows[0]["deep"]) == {"b": [1]}
    assert rows[1]["s"] is None


def test_values_that_are_not_json_are_text_and_bytes_are_shown_escaped() -> None:
    _, rows = table([b"plain", b"\xff\x00", None, b"{not json", {"n": 1}])
    assert [row["value"] for row in rows] == ["plain", "\\xFF\\x00", None, "{not json", '{"n": 1}']
    assert [row["n"] for row in rows] == [None, None, None, None, 1]


def test_fields_named_like_a_column_do_not_hide_it() -> None:
    names, rows = table([{"offset": 99, "Key": "mine", 'odd "name"': 3, "": 1}])
    assert {"value.offset", "value.Key", 'odd "name"'} <= {name for name, _ in names}
    assert (rows[0]["offset"], rows[0]["value.offset"], rows[0]["key"]) == (0, 99, "k")


def test_files_and_memory_are_one_and_survive_a_restart(tmp_path: Path) -> None:
    columns = PartitionColumns(tmp_path)
    columns.begin_at(10)
    with duckdb.connect() as connection:
        columns.add([batch(10, [{"n": 1}, {"n": 2}])], 12)
        columns.flush(connection)
        columns.add([batch(12, [{"n": 2.5}])], 13)
        columns.flush(connection)
        listed = [str(path) for path in columns.files()]
        query = f'SELECT sum(n), min("offset") FROM read_parquet({listed}, union_by_name = true)'
        assert connection.execute(query).fetchall() == [(5.5, 10)]
    again = PartitionColumns(tmp_path)
    assert (again.first, again.position, len(again.files())) == (10, 13, 2)
    again.trim(12)
    assert (again.first, len(again.files())) == (12, 1)


@pytest.mark.parametrize("name", ["00000000000000000020-00000000000000000030.parquet", "x.partial"])
def test_leftovers_that_do_not_fit_are_removed(tmp_path: Path, name: str) -> None:
    columns = PartitionColumns(tmp_path)
    columns.begin_at(0)
    with duckdb.connect() as connection:
        columns.add([batch(0, [{"n": 1}])], 1)
        columns.flush(connection)
    (tmp_path / name).write_bytes(b"half")
    again = PartitionColumns(tmp_path)
    assert again.position == 1
    assert not (tmp_path / name).exists()


def test_a_value_nested_deeper_than_the_engine_likes_costs_nothing_else() -> None:
    deep = b'{"deep":' * 500 + b"1" + b"}" * 500
    names, rows = table([{"id": 1}, deep, b'{"\\ud800": 1, "id": 5}', b'{"id": ' + b"[" * 5_000, {"id": 2}])
    assert ("id", "BIGINT") in names
    assert [row["id"] for row in rows] == [1, None, None, None, 2]
    assert rows[1]["value"] == deep.decode()
    assert rows[2]["value"] == '{"\\ud800": 1, "id": 5}'


def test_the_kernels_are_warmed_with_the_types_that_the_scanner_uses() -> None:
    """The SQL process compiles nothing once it is confined: it could not keep what it compiles."""
    code = (
        "from chronik.columns import kernels, scanner, warming\n"
        "from chronik.records.compression import Compression\n"
        "from chronik.records.reader import Record\n"
        "from chronik.records.writer import build_batch\n"
        "warming.warm()\n"
        "names = ('index_batches', 'scan_records', 'measure_headers', 'scan_headers')\n"
        "before = [len(getattr(kernels, name).signatures) for name in names]\n"
        "records = [Record(key=b'k', value=b'v', headers=(('a', b'b'),), timestamp_ms=1)]\n"
        "for codec in (Compression.NONE, Compression.ZSTD):\n"
        "    data = memoryview(bytes(build_batch(records, compression=codec)))\n"
        "    one = scanner.Scanner(['partition', 'offset', 'timestamp', 'key', 'value', 'headers'], '', 0)\n"
        "    assert sum(part.num_rows for part in one.scan(data, scanner.RecordWindow())) == 1\n"
        "after = [len(getattr(kernels, name).signatures) for name in names]\n"
        "assert before == after == [1, 1, 1, 1], (before, after)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
