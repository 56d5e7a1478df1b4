"""A query is one SELECT of what is known to be harmless, whatever its text looks like."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from chronik.model import InvariantViolated
from chronik.query.messages import QueryError
from chronik.query.run import QueryRun
from chronik.query.tables import PartitionColumns
from tests.unit.query.test_tables import batch


class Limits:
    sql_memory_bytes = 64 * 1024 * 1024
    sql_columns_bytes_max = 1024 * 1024
    sql_rows_max = 10
    sql_result_bytes_max = 1024 * 1024
    sql_seconds_max = 5.0


def attempt(root: Path, query: str) -> str:
    """What came of it; queries that get through are run as well."""
    run = QueryRun(root, Limits(), query, 10)
    try:
        run.plan_reading()
        run.seal()
        run.guarded(lambda: run.rows("json", root / "result", 0.0))
    except QueryError as error:
        return error.code
    finally:
        run.stop()
    return "ran"


def test_constants_are_not_cut_out_of_the_text(tmp_path: Path) -> None:
    """DuckDB replaces each U+2003 (three bytes) by a space, so its positions are not those of the text."""
    payload = f"1)::BIGINT; COPY (SELECT 42) TO '{tmp_path}/planted.csv'; SELECT (1"
    for spaces in range(30, 80):
        gap = "\u2003" * spaces
        query = f'SELECT 1{gap} FROM t /*    {payload}    */ WHERE "offset" > 1{" " * len(payload)}+1'
        assert attempt(tmp_path, query) == "invalid_sql"  # there is no table t
        assert not list(tmp_path.glob("planted*"))


@pytest.mark.parametrize(
    "query",
    [
        "WITH x AS (COPY (SELECT 1) TO '{}/planted.csv') SELECT * FROM x",
        "SELECT * FROM (WITH x AS (COPY (SELECT 1) TO '{}/planted.csv') SELECT * FROM x)",
        "SELECT (WITH x AS (INSERT INTO t VALUES (1) RETURNING 1) SELECT * FROM x)",
        "WITH x AS (DELETE FROM t RETURNING 1) SELECT 1",
        "WITH x AS (UPDATE t SET a = 1 RETURNING 1) SELECT 1",
        "ATTACH '{}/planted.db'",
        "EXPLAIN ANALYZE SELECT 1",
        "PRAGMA database_list",
        "SET memory_limit = '1TB'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "CALL range(3)",
        "EXPORT DATABASE '{}/planted'",
        "CREATE TABLE planted AS SELECT 1",
    ],
)
def test_nothing_but_select_runs(tmp_path: Path, query: str) -> None:
    assert attempt(tmp_path, query.format(tmp_path)) == "not_a_select"
    assert not list(tmp_path.glob("planted*"))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_csv('{}/x.csv')",
        "SELECT * FROM read_parquet('{}/x.parquet')",
        "SELECT * FROM glob('{}/*')",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM duckdb_secrets()",
        "SELECT * FROM query('SELECT 1')",
        "SELECT * FROM main.duckdb_settings()",
        "SELECT * FROM json_execute_serialized_sql('{{}}')",
        "SELECT * FROM enable_logging()",
        "SELECT * FROM pragma_database_size()",
        "SELECT current_setting('temp_directory')",
        "SELECT system.main.current_setting('temp_directory')",
        "SELECT getenv('HOME')",
        "SELECT json_serialize_plan('select max(x) from read_parquet(''{}/*/*.parquet'')', optimize := true)",
        "SELECT json_serialize_plan('select z from read_csv(''{}/.results/1'', skip := 3)')",
        "SELECT json_serialize_sql('SELECT 1')",
        "SELECT pg_get_viewdef(range) FROM range(100)",
        "SELECT main.pg_get_viewdef(1)",
        "SELECT sum(range) EXPORT_STATE FROM range(3)",
        "SELECT a.b.nothing_of_the_kind(1)",
        "SELECT sleep_ms(1)",
        "SELECT write_log('x')",
        "SELECT * FROM (WITH pg_settings AS (SELECT 1) SELECT * FROM pg_settings) a, pg_settings b",
        "SELECT * FROM (WITH \"{}/x.parquet\" AS (SELECT 1) SELECT 1) a, '{}/x.parquet' b",
        "SHOW TABLES",
        "SELECT $1",
        "SELECT " + "(" * 5_000 + "1" + ")" * 5_000,
    ],
)
def test_what_shows_more_than_topics_is_refused(tmp_path: Path, query: str) -> None:
    assert attempt(tmp_path, query.format(tmp_path, tmp_path)) == "invalid_sql"


def test_a_name_with_a_schema_is_no_topic(tmp_path: Path) -> None:
    assert attempt(tmp_path, "SELECT * FROM information_schema.tables") == "unknown_table"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1;",
        "FROM range(3)",
        "VALUES (1), (2)",
        "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x WHERE n < 5) SELECT sum(n) FROM x",
        "WITH x AS MATERIALIZED (SELECT 1 AS a) SELECT * FROM x a JOIN x b USING (a) ORDER BY 1 DESC LIMIT 3",
        "SELECT range AS a, row_number() OVER (ORDER BY range DESC NULLS LAST) FROM range(9) QUALIFY a > 1",
        "SELECT list_transform([1, 2], lambda x: x + 1), [x for x in [1]], {'a': 1}, CASE WHEN 1 THEN 2 END",
        "SELECT count(*) FILTER (range > 2), range % 2 r FROM range(9) GROUP BY ALL HAVING r > 0 LIMIT 50%",
        "SELECT t.* EXCLUDE (b), COLUMNS('a.*'), (SELECT 1), EXISTS (SELECT 1) FROM (SELECT 1 AS a, 2 b) t",
        "SELECT 1 UNION SELECT 2 EXCEPT SELECT 3 ORDER BY 1",
        "SELECT 'é'\u2003AS\u00a0a, TRY_CAST('x' AS INT), 'a' COLLATE NOCASE, 5 BETWEEN 1 AND 9, 1 IN (1, 2)",
        "SELECT DISTINCT ON (range) * FROM range(3) TABLESAMPLE 50%",
        "SELECT * FROM (VALUES (1, 'a')) v(a, b) UNPIVOT (x FOR y IN (a))",
    ],
)
def test_selects_run(tmp_path: Path, query: str) -> None:
    assert attempt(tmp_path, query) == "ran"


SECRET = "canary-of-somebody-else"


def test_a_query_reads_the_files_of_its_own_tables_only(tmp_path: Path) -> None:
    """Whatever function reads them: a list of functions may have a hole."""
    foreign = [tmp_path / ".results" / "77", tmp_path / ".spill" / "other" / "block.tmp"]
    for path in foreign:
        path.parent.mkdir(parents=True)
        path.write_text(f"{SECRET}\n")
    run = QueryRun(tmp_path, Limits(), "SELECT count(*) FROM orders", 10)
    try:
        kept, others = (PartitionColumns(tmp_path / topic / "0") for topic in ("orders.1", "salaries.2"))
        for columns, value in ((kept, {"id": 1}), (others, {"name": SECRET})):
            columns.add([batch(0, [value])], 1)
            columns.flush(run.connection)
        run.add_table("orders", [kept], {0: 0}, None)
        run.seal()
        foreign += others.files()
        for path in foreign:
            for query in (
                f"SELECT * FROM read_text('{path}')",
                f"SELECT * FROM read_parquet('{path}')",
                f"SELECT json_serialize_plan('SELECT z FROM read_csv(''{path}'', delim := ''~'')')",
            ):
                assert SECRET not in outcome(run, query)
        assert SECRET not in outcome(run, f"SELECT * FROM read_text('{tmp_path}/**')")
        assert "Permission" in outcome(run, f"COPY (SELECT 1) TO '{tmp_path}/planted.csv'")
        run.rows("json", tmp_path / "result", 0.0)
        assert b"[[1]]" in (tmp_path / "result").read_bytes()
    finally:
        run.stop()


def outcome(run: QueryRun, query: str) -> str:
    try:
        return str(run.connection.execute(query).fetchall())
    except duckdb.Error as error:
        return str(error)


def test_a_statement_that_was_not_sealed_off_does_not_run(tmp_path: Path) -> None:
    run = QueryRun(tmp_path, Limits(), "SELECT 1", 10)
    with pytest.raises(InvariantViolated):
        run.rows("json", tmp_path / "result", 0.0)
    run.stop()


def test_memory_that_runs_out_inside_an_arrow_stream_is_called_so(tmp_path: Path) -> None:
    def export() -> None:
        raise OSError("Out of Memory Error: ArrowBuffer: failed to allocate 536870912 bytes")

    def read() -> None:
        raise FileNotFoundError(2, "No such file")

    run = QueryRun(tmp_path, Limits(), "SELECT 1", 10)
    with pytest.raises(QueryError) as refused:
        run.guarded(export)
    assert refused.value.code == "out_of_memory"
    with pytest.raises(FileNotFoundError):
        run.guarded(read)
    run.stop()
