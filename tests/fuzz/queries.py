"""Search and SQL queries by grammar: mostly well-formed, some absurd, some broken."""

from __future__ import annotations

import functools
import json
import random
from typing import Any, Final

import duckdb

from tests.fuzz import canaries
from tests.fuzz.values import STRANGE_JSON, damaged, json_key, json_value, text

TABLES: Final = (
    '"fuzz-0"',
    '"fuzz-1"',
    '"fuzz-2"',
    "nowhere",
    "range(10)",
    "(VALUES (1, 'a')) AS v(id, customer)",
    "tail_0",
    "duckdb_views",
)
STATEMENTS: Final = (
    f"SELECT a FROM read_parquet('{canaries.PARQUET}')",
    f"SELECT min(a), max(a), count(*) FROM read_parquet('{canaries.FOLDER}/*.parquet')",
    f"SELECT zzz FROM read_csv('{canaries.TEXT}', header := true, delim := '~', quote := '', skip := 1)",
    f"SELECT * FROM read_text('{canaries.FOLDER}/*')",
    f"SELECT * FROM '{canaries.PARQUET}'",
    f"COPY (SELECT 1) TO '{canaries.FOLDER}/{canaries.MADE}.csv'",
    f"ATTACH '{canaries.FOLDER}/{canaries.MADE}.db'",
    "SELECT current_setting('temp_directory')",
)
"""What a function that takes a statement, or a table function, might run."""
SUSPECT: Final = ("_plan", "_sql", "query", "read", "setting", "viewdef", "log", "file")
FIELDS: Final = (
    "id",
    "customer",
    "note",
    "a.b",
    "_key",
    "_offset",
    "_text",
    "@timestamp",
    "_partition",
    "",
    "*",
)


# --- search -----------------------------------------------------------------------------------------


def search(pick: random.Random) -> tuple[str, bytes]:
    """Path and body."""
    body: dict[str, Any] = {"query": _query(pick, 0)}
    if pick.random() < 0.5:
        body["size"] = pick.choice((0, 1, 10, 1000, 1001, -1, 2**40, "5"))
    if pick.random() < 0.3:
        body["from"] = pick.choice((0, 9_999, -1, 2**63, 5))
    if pick.random() < 0.3:
        names = (
            pick.choice(FIELDS),
            {pick.choice(FIELDS): pick.choice(("asc", "desc", {"order": "x"}))},
            json_value(pick),
        )
        body["sort"] = pick.choice(([pick.choice(names)], pick.choice(names)))
    if pick.random() < 0.2:
        body["highlight"] = pick.choice(({"fields": {pick.choice(FIELDS): {}}}, json_value(pick)))
    if pick.random() < 0.2:
        body[pick.choice(("_source", "track_total_hits", "timeout", "aggs", "refresh"))] = json_value(pick)
    target = pick.choice(
        ("/fuzz-1/_search", "/fuzz-1/_search", "/_search", "/fuzz-0,fuzz-1,,/_search", "/nowhere/_search")
    )
    data = json.dumps(body).encode()
    return target, damaged(pick, data) if pick.random() < 0.1 else data


def _query(pick: random.Random, depth: int) -> Any:
    field, value = pick.choice(FIELDS), text(pick) if pick.random() < 0.5 else json_value(pick)
    deeper = depth < 4 or (depth < 30 and pick.random() < 0.3)
    if pick.random() < 0.25 and deeper:
        clauses = ("must", "should", "filter", "must_not", "minimum_should_match", "x")
        return {
            "bool": {name: _clause(pick, name, depth) for name in pick.sample(clauses, pick.randrange(4))}
        }
    return pick.choice(
        (
            {"match_all": {}},
            {"match": {field: value}},
            {"match": {field: {"query": value, "operator": pick.choice(("and", "or", "x", 5))}}},
            {"match_phrase": {field: value}},
            {"term": {field: {"value": value}}},
            {"terms": {field: [value, json_value(pick)], "boost": value}},
            {"terms": {field: value}},
            {
                "range": {
                    field: {pick.choice(("gte", "lt", "gt", "lte", "format")): value, "lte": json_value(pick)}
                }
            },
            {"prefix": {field: value}},
            {
                "fuzzy": {
                    field: {"value": value, "fuzziness": pick.choice((0, 1, 2, 3, -1, "AUTO", "x", None))}
                }
            },
            {"query_string": {"query": _query_string(pick), "default_field": field}},
            {"simple_query_string": {"query": _query_string(pick), "fields": [field, value]}},
            {"multi_match": {"query": value, "fields": pick.choice(([field], [field, "id"], value, []))}},
            {"ids": {"values": pick.choice(([value], value, ["fuzz-1-0-1", "x", 5]))}},
            {"exists": {"field": field}},
            {"constant_score": {"filter": {"match_all": {}}, "boost": value}},
            {json_key(pick): json_value(pick)},
            json_value(pick),
        )
    )


def _clause(pick: random.Random, name: str, depth: int) -> Any:
    if name == "minimum_should_match":
        return pick.choice((0, 1, 5, -1, "50%", "x", None, 1.5))
    return pick.choice(
        (_query(pick, depth + 1), [_query(pick, depth + 1) for _ in range(pick.choice((0, 1, 2, 3)))])
    )


def _query_string(pick: random.Random) -> str:
    parts = (
        "ada",
        "AND",
        "OR",
        "NOT",
        "(",
        ")",
        '"',
        "*",
        "id:",
        "id:[1 TO",
        "]",
        "{",
        "^",
        "~2",
        "\\",
        "/a.*/",
        "+",
        "-",
    )
    return " ".join(pick.choice((*parts, text(pick)[:50])) for _ in range(pick.choice((1, 3, 8, 60))))


# --- SQL --------------------------------------------------------------------------------------------


def sql(pick: random.Random) -> tuple[str, bytes]:
    """Path and body."""
    statement = _select(pick, 0) if pick.random() < 0.9 else _statement(pick)
    if pick.random() < 0.15:
        statement = _alone(pick)
    if pick.random() < 0.1:
        statement = damaged(pick, statement.encode()).decode("utf-8", "replace")
    body: dict[str, Any] = {"query": statement}
    if pick.random() < 0.5:
        body["format"] = pick.choice(("json", "csv", "arrow", "x", None))
    if pick.random() < 0.3:
        body["limit"] = pick.choice((0, 1, 10, -1, 2**63, "x"))
    if pick.random() < 0.9:
        body["timeout_ms"] = pick.choice((300, 300, 300, 300, 300, 0, 1, -1, 2**70))
    target = pick.choice(("/_sql", "/_sql", "/_sql", "/_sql/explain"))
    return target, json.dumps(body).encode()


def _select(pick: random.Random, depth: int) -> str:
    columns = ", ".join(_expression(pick, depth) for _ in range(pick.choice((1, 1, 2, 3))))
    what = pick.choice(("*", columns, columns, f"DISTINCT {columns}"))
    made = f"SELECT {what} FROM {_source(pick, depth)}"
    if pick.random() < 0.5:
        made += f" WHERE {_condition(pick, depth)}"
    if pick.random() < 0.2:
        made += f" GROUP BY {pick.choice(('ALL', '1', 'id', _expression(pick, depth)))}"
    if pick.random() < 0.2:
        made += f" ORDER BY {pick.choice(('ALL', '1', '99', 'id', _expression(pick, depth)))}"
    if pick.random() < 0.3:
        made += f" LIMIT {pick.choice(('0', '5', '-1', '1e9', '(SELECT 3)', 'x'))}"
    if depth < 2 and pick.random() < 0.1:
        made += f" {pick.choice(('UNION', 'UNION ALL', 'EXCEPT', 'INTERSECT'))} {_select(pick, depth + 1)}"
    return made


def _source(pick: random.Random, depth: int) -> str:
    if depth < 2 and pick.random() < 0.15:
        return f"({_select(pick, depth + 1)}) AS s"
    if pick.random() < 0.1:
        return _call(pick, pick.choice(catalogue()["table"]), depth)
    first = pick.choice(TABLES)
    if pick.random() < 0.15:
        join = pick.choice((",", "CROSS JOIN", "NATURAL JOIN", "POSITIONAL JOIN"))
        return f"{first} AS l {join} {pick.choice(TABLES)}"
    return first


def _condition(pick: random.Random, depth: int) -> str:
    operators = ("=", "<", ">=", "<>", "IS DISTINCT FROM", "LIKE", "SIMILAR TO", "IN", "BETWEEN 1 AND")
    column = pick.choice(('"offset"', "partition", "timestamp", "key", "id", "value"))
    value = pick.choice(
        ("0", "-1", "9223372036854775808", "'x'", "NULL", "now()", "(SELECT 1)", "'\u2003'", "(1, 2)")
    )
    return f"{column} {pick.choice(operators)} {value}" if pick.random() < 0.7 else _expression(pick, depth)


def _expression(pick: random.Random, depth: int) -> str:
    simple = (
        "id",
        "customer",
        '"offset"',
        "key",
        "value",
        "headers",
        "timestamp",
        "1",
        "NULL",
        "count(*)",
        "'\u2003/* */'",
    )
    if depth > 3 or pick.random() < 0.4:
        return pick.choice(simple)
    if pick.random() < 0.3:
        names = catalogue()["suspect" if pick.random() < 0.3 else "other"]
        return _call(pick, pick.choice(names), depth)
    inner = _expression(pick, depth + 1)
    return pick.choice(
        (
            f"max({inner})",
            f"repeat({inner}, {pick.choice((3, 10**6, 10**9, -1))})",
            f"list({inner})",
            f"unnest([{inner}, NULL])",
            f"CAST({inner} AS {pick.choice(('INT', 'BLOB', 'TIMESTAMP', 'JSON', 'STRUCT(a INT)', 'x'))})",
            f"TRY_CAST({inner} AS HUGEINT)",
            f"json_extract(value, {pick.choice(('$', inner, chr(39) + '$.' + 'a.' * 50 + chr(39)))})",
            f"regexp_matches(CAST({inner} AS VARCHAR), '{'a?' * 20 + 'a' * 20}')",
            f"row_number() OVER (ORDER BY {inner})",
            f"(SELECT {inner})",
            f"CASE WHEN {inner} IS NULL THEN {inner} ELSE 1/0 END",
            f"{inner} || {inner}",
            f"-({inner})",
            f"{{'a': {inner}}}",
            f"string_agg({inner}, ',')",
            f"printf('%s%n', {inner})",
        )
    )


@functools.cache
def catalogue() -> dict[str, list[str]]:
    """Every function of DuckDB, whether it may be called or not; those that return tables by themselves."""
    with duckdb.connect() as connection:
        query = "SELECT DISTINCT lower(function_name), function_type LIKE 'table%' FROM duckdb_functions()"
        rows = sorted(connection.execute(query).fetchall())
    others = [name for name, is_table in rows if not is_table]
    return {
        "table": [name for name, is_table in rows if is_table],
        "other": others,
        "suspect": [name for name in others if any(part in name for part in SUSPECT)],
    }


def _alone(pick: random.Random) -> str:
    """One function of a statement and nothing that could be wrong about the rest."""
    name = pick.choice(catalogue()[pick.choice(("suspect", "other"))])
    text = pick.choice(STATEMENTS).replace("'", "''")
    more = pick.choice(("", "", ", optimize := true", ", 1", ", 'a'"))
    return f"SELECT {_called(name)}('{text}'{more})"


def _called(name: str) -> str:
    return name if name.isidentifier() else f'"{name}"'


def _call(pick: random.Random, name: str, depth: int) -> str:
    text = (
        "'" + pick.choice((*STATEMENTS, str(canaries.PARQUET), str(canaries.TEXT))).replace("'", "''") + "'"
    )
    arguments = [
        text if pick.random() < 0.4 else _expression(pick, max(depth, 2) + 1)
        for _ in range(pick.choice((0, 1, 1, 1, 2, 3)))
    ]
    if pick.random() < 0.1:
        arguments.append("optimize := true")
    return f"{_called(name)}({', '.join(arguments)})"


def _statement(pick: random.Random) -> str:
    return pick.choice(
        (
            "",
            ";",
            "SELECT 1; SELECT 2",
            "SELECT count(*) FROM range(1000000000000)",
            "SELECT repeat('x', 30000000) FROM range(9)",
            "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r",
            "SELECT " + "(" * 3000 + "1" + ")" * 3000,
            "SELECT " + "+".join(["1"] * 20_000),
            "SELECT * FROM read_csv('/etc/passwd')",
            *STATEMENTS,
            "SELECT * FROM read_text('**')",
            "SELECT * FROM glob('/*')",
            f"WITH x AS (COPY (SELECT 1) TO '{canaries.FOLDER}/{canaries.MADE}') SELECT * FROM x",
            "ATTACH 'x.db'",
            "INSTALL httpfs",
            "SET memory_limit='1TB'",
            "PRAGMA database_list",
            "CALL pragma_version()",
            "EXPORT DATABASE 'x'",
            "CREATE TABLE t AS SELECT 1",
            "SELECT getenv('HOME')",
            "SELECT * FROM duckdb_settings()",
            'SELECT * FROM \u2003 "fuzz-1" -- \u2003\n WHERE "offset" < 5 /* \u2003 */',
            'SELECT * FROM "fuzz-1" AS a, "fuzz-1" AS b, "fuzz-1" AS c, "fuzz-1" AS d, range(100000)',
            "SELECT list(x) FROM range(100000000) AS t(x)",
            "SELECT " + ", ".join(f"1 AS c{number}" for number in range(5_000)),
            STRANGE_JSON[0].decode(),
            text(pick),
        )
    )
