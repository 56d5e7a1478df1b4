"""Results go to a file, a few rows at a time, and stop where they would be too large."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pytest

from chronik.query.messages import QueryError
from chronik.query.results import write_result


class Budget(NamedTuple):
    rows_max: int = 1_000
    bytes_max: int = 100_000


def written(path: Path, query: str, form: str = "json", budget: Budget | None = None) -> Any:
    with duckdb.connect(config={"threads": "1"}) as connection:
        answer = write_result(connection, query, form, path, budget or Budget())
    data = path.read_bytes()
    if form == "json":
        return answer, json.loads(data + b"}")
    return answer, data if form == "csv" else pa.ipc.open_stream(data).read_all()


def test_json_csv_and_arrow_hold_the_same(tmp_path: Path) -> None:
    query = "SELECT range AS n, 'x' || range AS t FROM range(5)"
    rows = [[n, f"x{n}"] for n in range(5)]
    answer, found = written(tmp_path / "r", query)
    assert found["rows"] == rows
    assert answer == {"row_count": 5, "is_cut": False}
    assert written(tmp_path / "r", query, "csv")[1] == b"n,t\n0,x0\n1,x1\n2,x2\n3,x3\n4,x4\n"
    assert [list(row.values()) for row in written(tmp_path / "r", query, "arrow")[1].to_pylist()] == rows


@pytest.mark.parametrize("form", ["json", "csv", "arrow"])
def test_a_result_is_cut_at_its_rows_and_at_its_bytes(tmp_path: Path, form: str) -> None:
    query = "SELECT repeat('x', 1000) AS t FROM range(100000000)"
    answer, _ = written(tmp_path / "r", query, form, Budget(7))
    assert answer == {"row_count": 7, "is_cut": True}
    answer, found = written(tmp_path / "r", query, form)
    assert answer["is_cut"]
    assert 40 < answer["row_count"] < 101
    assert (tmp_path / "r").stat().st_size < 101_000
    assert form != "arrow" or found.num_rows == answer["row_count"]
    assert written(tmp_path / "r", query, form, Budget(0))[0] == {"row_count": 0, "is_cut": True}


@pytest.mark.parametrize("form", ["json", "csv", "arrow"])
def test_one_row_that_is_too_large_is_refused(tmp_path: Path, form: str) -> None:
    with pytest.raises(QueryError) as refused:
        written(tmp_path / "r", "SELECT repeat('x', 200000)", form)
    assert refused.value.code == "result_too_large"


def test_numbers_and_values_that_few_know(tmp_path: Path) -> None:
    _, found = written(
        tmp_path / "r",
        "SELECT 170141183460469231731687303715884105727::HUGEINT, -5::HUGEINT, 'nan'::DOUBLE, "
        "[{'a': 2::UBIGINT ** 63}], 'x'::BLOB, TIMESTAMP '2024-01-01', 1.5::DECIMAL(9, 2)",
    )
    assert found["rows"] == [
        [2**127 - 1, -5, None, [{"a": 2.0**63}], "eA==", "2024-01-01T00:00:00", 1.5],
    ]
