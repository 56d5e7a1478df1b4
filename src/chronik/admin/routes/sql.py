"""SQL over topics."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from chronik.admin.endpoint import FileContent, HttpAccess, HttpCall, endpoint
from chronik.admin.visible import readable_topics
from chronik.model import Int32
from chronik.security.acls import Operation, ResourceType
from chronik.security.quotas import CONSUMER_RATE
from chronik.server.gate import asks

SLACK_SECONDS = 5.0
"""Added to a query's time limit: the query process should stop it by itself before that."""
DEADLINE_SECONDS = 3700.0
BODY_BYTES_MAX = 512 * 1024
_MEDIA_TYPES: Final = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "arrow": "application/vnd.apache.arrow.stream",
}


class SqlQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    query: str
    """One SELECT. Every topic is a table: topic, partition, offset, timestamp, key, value, headers, and the
    fields of JSON values."""
    limit: Int32 | None = None
    timeout_ms: Int32 | None = None
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
    """Whether there were more rows than the limit, or more bytes than a result may have."""
    took: float


class SqlTable(msgspec.Struct, frozen=True):
    name: str
    rows: int
    columns: list[SqlColumn]


class SqlTables(msgspec.Struct, frozen=True):
    tables: list[SqlTable]


class SqlPlan(msgspec.Struct, frozen=True):
    plan: str


def _with_rights(call: HttpCall, fields: dict[str, Any]) -> dict[str, Any]:
    """A question for the query process. It knows no principals, only what the caller may read."""
    return {**fields, "readable": None if call.access.is_open else readable_topics(call)}


async def _ask(call: HttpCall, method: str, fields: dict[str, Any]) -> Any:
    seconds = call.context.settings.sql_timeout_ms / 1000 + SLACK_SECONDS
    return await call.context.queries.ask(method, _with_rights(call, fields), timeout_s=seconds)


@endpoint(
    "POST",
    "/_sql",
    needs=asks((Operation.READ, ResourceType.TOPIC)),
    summary="Run a SELECT over topics",
    body=SqlQuery,
    answer=SqlAnswer,
    access=HttpAccess.DATA,
    quota=CONSUMER_RATE,
    deadline_s=DEADLINE_SECONDS,
    body_bytes_max=BODY_BYTES_MAX,
)
async def sql(call: HttpCall) -> Any:
    """Limits on rows, time and memory are settings. Conditions on offset, partition and timestamp decide
    what is read at all."""
    queries = call.context.queries
    seconds = call.context.settings.sql_timeout_ms / 1000 + SLACK_SECONDS
    answer, file = await queries.ask_rows(
        _with_rights(call, msgspec.to_builtins(call.body)), timeout_s=seconds
    )
    return FileContent(
        file,
        lambda: queries.close_rows(file),
        _MEDIA_TYPES[call.body.format],
        {"x-result-cut": "true"} if answer["is_cut"] else {},
    )


@endpoint(
    "GET",
    "/_sql/tables",
    needs=asks((Operation.READ, ResourceType.TOPIC)),
    summary="The tables and their columns",
    answer=SqlTables,
    access=HttpAccess.DATA,
    quota=CONSUMER_RATE,
    deadline_s=60.0,
)
async def sql_tables(call: HttpCall) -> Any:
    """Columns of JSON fields are those of each topic's youngest records."""
    return await _ask(call, "tables", {})


@endpoint(
    "POST",
    "/_sql/tables",
    needs=asks((Operation.READ, ResourceType.TOPIC)),
    summary="The same",
    answer=SqlTables,
    access=HttpAccess.DATA,
    quota=CONSUMER_RATE,
    deadline_s=60.0,
)
async def sql_tables_posted(call: HttpCall) -> Any:
    return await _ask(call, "tables", {})


@endpoint(
    "POST",
    "/_sql/explain",
    needs=asks((Operation.READ, ResourceType.TOPIC)),
    summary="How a SELECT would be run",
    body=SqlQuery,
    answer=SqlPlan,
    access=HttpAccess.DATA,
    quota=CONSUMER_RATE,
    deadline_s=DEADLINE_SECONDS,
    body_bytes_max=BODY_BYTES_MAX,
)
async def sql_explain(call: HttpCall) -> Any:
    return await _ask(call, "explain", msgspec.to_builtins(call.body))
