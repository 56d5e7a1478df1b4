"""SQL over topics."""

from __future__ import annotations

from typing import Any

import msgspec

from chronik.admin.endpoint import Access, Call, Content, endpoint

SLACK_SECONDS = 5.0
"""The query process stops a query by itself; this is for when it does not."""
DEADLINE_SECONDS = 3700.0


class SqlQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    query: str
    """One SELECT. Every topic is a table: topic, partition, offset, timestamp, key, value, headers, and the
    fields of JSON values."""
    limit: int | None = None
    timeout_ms: int | None = None
    format: str = "json"
    """json, csv or arrow (an IPC stream)"""


class SqlColumn(msgspec.Struct, frozen=True):
    name: str
    type: str


class SqlAnswer(msgspec.Struct, frozen=True, kw_only=True):
    columns: list[SqlColumn]
    rows: list[list[Any]]
    row_count: int
    is_cut: bool
    """There were more rows than the limit."""
    took: float


class SqlTable(msgspec.Struct, frozen=True):
    name: str
    rows: int
    columns: list[SqlColumn]


class SqlTables(msgspec.Struct, frozen=True):
    tables: list[SqlTable]


class SqlPlan(msgspec.Struct, frozen=True):
    plan: str


async def _ask(call: Call, method: str, body: Any) -> Any:
    seconds = call.context.settings.sql_timeout_ms / 1000 + SLACK_SECONDS
    return await call.context.queries.ask(method, body, timeout_s=seconds)


@endpoint(
    "POST",
    "/_sql",
    summary="Run a SELECT over topics",
    body=SqlQuery,
    answer=SqlAnswer,
    access=Access.DATA,
    deadline_s=DEADLINE_SECONDS,
)
async def sql(call: Call) -> Any:
    """Limits on rows, time and memory are settings. Conditions on offset, partition and timestamp decide
    what is read at all."""
    answer = await _ask(call, "sql", msgspec.to_builtins(call.body))
    cut = {"x-result-cut": "true"} if answer.get("is_cut") else {}
    if call.body.format == "csv":
        return Content(answer["csv"].encode(), "text/csv; charset=utf-8", headers=cut)
    if call.body.format == "arrow":
        return Content(answer["arrow"], "application/vnd.apache.arrow.stream", headers=cut)
    return answer


@endpoint(
    "GET",
    "/_sql/tables",
    summary="The tables and their columns",
    answer=SqlTables,
    access=Access.DATA,
    deadline_s=60.0,
)
async def sql_tables(call: Call) -> Any:
    """Columns of JSON fields are those of each topic's youngest records."""
    return await _ask(call, "tables", None)


@endpoint("POST", "/_sql/tables", summary="The same", answer=SqlTables, access=Access.DATA, deadline_s=60.0)
async def sql_tables_posted(call: Call) -> Any:
    return await _ask(call, "tables", None)


@endpoint(
    "POST",
    "/_sql/explain",
    summary="How a SELECT would be run",
    body=SqlQuery,
    answer=SqlPlan,
    access=Access.DATA,
    deadline_s=DEADLINE_SECONDS,
)
async def sql_explain(call: Call) -> Any:
    return await _ask(call, "explain", msgspec.to_builtins(call.body))
