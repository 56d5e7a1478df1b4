"""What a SQL query needs to read."""

from __future__ import annotations

import duckdb
import pytest

from chronik.query.messages import QueryError
from chronik.query.pushdown import Bounds, Plan, read_plan


def plan(query: str) -> Plan:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")

        def evaluate(expression: str) -> int | None:
            try:
                return int(connection.execute(f"SELECT {expression}").fetchall()[0][0])
            except duckdb.Error:
                return None

        ((serialized,),) = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
        return read_plan(query, serialized, evaluate)


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
        ('"offset" >= 5', Bounds(first_offset=5)),
        ('"offset" > 5 AND "offset" <= 9', Bounds(first_offset=6, end_offset=10)),
        ('o."offset" = 7', Bounds(first_offset=7, end_offset=8)),
        ("partition = 2 AND customer = 'ada'", Bounds(partition=2)),
        ("timestamp >= TIMESTAMP '2026-01-01'", Bounds(first_timestamp_ms=1767225600000)),
        ("timestamp > '2026-01-01'", Bounds(first_timestamp_ms=1767225600000)),
        ("timestamp > TIMESTAMP '2026-01-01' - INTERVAL 1 DAY", Bounds(first_timestamp_ms=1767139200000)),
        ("customer = 'é' AND \"offset\" > 3 + 4", Bounds(first_offset=8)),
        ('"offset" > 5 OR partition = 1', Bounds()),
        ('NOT ("offset" > 5)', Bounds()),
        ('"offset" > total', Bounds()),
        ('"offset" > (SELECT 3)', Bounds()),
        ("\"offset\" > 'x'", Bounds()),
        ("timestamp < now()", Bounds()),
        ("partition > 3", Bounds()),
    ],
)
def test_bounds(where: str, bounds: Bounds) -> None:
    assert plan(f"SELECT * FROM orders o WHERE {where}").bounds == bounds


def test_bounds_are_not_taken_from_parts_of_a_query() -> None:
    for query in (
        'SELECT * FROM (SELECT * FROM orders WHERE "offset" > 5) UNION ALL SELECT * FROM orders',
        'SELECT * FROM a JOIN b USING (k) WHERE a."offset" > 5',
        'WITH x AS (SELECT * FROM a) SELECT * FROM x WHERE "offset" > 5',
    ):
        assert plan(query).bounds == Bounds()


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
