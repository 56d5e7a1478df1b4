"""What a SQL query needs to read."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from chronik.query.messages import QueryError
from chronik.query.pushdown import PushdownPlan, RowBounds
from chronik.query.run import QueryRun


class Limits:
    sql_memory_bytes = 64 * 1024 * 1024
    sql_columns_bytes_max = 1024 * 1024
    sql_rows_max = 10
    sql_result_bytes_max = 1024 * 1024
    sql_seconds_max = 5.0


def plan(query: str) -> PushdownPlan:
    with tempfile.TemporaryDirectory() as root:
        run = QueryRun(Path(root), Limits(), query, 10)
        try:
            return run.plan_reading()
        finally:
            run.stop()


@pytest.mark.parametrize(
    ("query", "tables"),
    [
        ("SELECT 1", ()),
        ("SELECT * FROM orders", ("orders",)),
        ('SELECT * FROM "a-b.c" x, orders', ("a-b.c", "orders")),
        ("WITH x AS (SELECT * FROM a) SELECT * FROM x JOIN b USING (k)", ("b", "a")),
        ("SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b)", ("a", "b")),
        ("SELECT * FROM a UNION ALL SELECT * FROM b", ("a", "b")),
        ("SELECT * FROM range(5)", ()),
    ],
)
def test_tables(query: str, tables: tuple[str, ...]) -> None:
    assert set(plan(query).tables) == set(tables)


@pytest.mark.parametrize(
    ("where", "bounds"),
    [
        ('"offset" >= 5', RowBounds(first_offset=5)),
        ('"offset" > 5 AND "offset" <= 9', RowBounds(first_offset=6, end_offset=10)),
        ('o."offset" = 7', RowBounds(first_offset=7, end_offset=8)),
        ("partition = 2 AND customer = 'ada'", RowBounds(partition=2)),
        ("timestamp >= TIMESTAMP '2026-01-01'", RowBounds(first_timestamp_ms=1767225600000)),
        ("timestamp > '2026-01-01'", RowBounds(first_timestamp_ms=1767225600000)),
        ("timestamp > TIMESTAMP '2026-01-01' - INTERVAL 1 DAY", RowBounds(first_timestamp_ms=1767139200000)),
        ("customer = 'é' AND \"offset\" > 3 + 4", RowBounds(first_offset=8)),
        ('"offset" > 5 OR partition = 1', RowBounds()),
        ('NOT ("offset" > 5)', RowBounds()),
        ('"offset" > total', RowBounds()),
        ('"offset" > (SELECT 3)', RowBounds()),
        ("\"offset\" > 'x'", RowBounds()),
        ("timestamp < now()", RowBounds()),
        ("partition > 3", RowBounds()),
    ],
)
def test_bounds(where: str, bounds: RowBounds) -> None:
    assert plan(f"SELECT * FROM orders o WHERE {where}").bounds == bounds


def test_bounds_are_not_taken_from_parts_of_a_query() -> None:
    for query in (
        'SELECT * FROM (SELECT * FROM orders WHERE "offset" > 5) UNION ALL SELECT * FROM orders',
        'SELECT * FROM a JOIN b USING (k) WHERE a."offset" > 5',
        'WITH x AS (SELECT * FROM a) SELECT * FROM x WHERE "offset" > 5',
    ):
        assert plan(query).bounds == RowBounds()


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("DROP TABLE orders", "not_a_select"),
        ("INSERT INTO orders VALUES (1)", "not_a_select"),
        ("COPY orders TO '/tmp/x'", "not_a_select"),
        ("SET memory_limit = '1TB'", "not_a_select"),
        ("SELECT 1; SELECT 2", "invalid_sql"),
        ("SELEC", "invalid_sql"),
        ("", "invalid_sql"),
    ],
)
def test_everything_but_one_select_is_refused(query: str, code: str) -> None:
    with pytest.raises(QueryError) as refused:
        plan(query)
    assert refused.value.code == code
