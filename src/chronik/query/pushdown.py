"""What a SQL query needs, read from DuckDB's own syntax tree: tables, and which offsets and times of them.

Only what certainly holds is pushed down: comparisons joined by AND in the WHERE of a query over one table.
Everything else reads the whole topic; the query itself still filters, so a missed chance costs time only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from chronik.query.messages import QueryError

__all__ = ["Bounds", "Plan", "read_plan"]

_COMPARISONS: Final = {
    "COMPARE_EQUAL": "=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
}
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The part of a topic that a query can see; ends are excluded."""

    partition: int | None = None
    first_offset: int = 0
    end_offset: int = _INT64_MAX
    first_timestamp_ms: int | None = None

    @property
    def is_everything(self) -> bool:
        return self == Bounds()


@dataclass(frozen=True, slots=True)
class Plan:
    tables: tuple[str, ...]
    bounds: Bounds


def read_plan(query: str, serialized: str, evaluate: Callable[[str], int | None]) -> Plan:
    """`serialized` is json_serialize_sql(query); `evaluate` computes a constant as a number.

    Times come out of `evaluate` as milliseconds. Raises QueryError unless this is exactly one SELECT.
    """
    tree = json.loads(serialized)
    if tree["error"]:
        message = str(tree.get("error_message", "it cannot be read"))
        if "Only SELECT" in message:
            raise QueryError(400, "not_a_select", "Topics can be read with SELECT only.")
        raise QueryError(400, "invalid_sql", message)
    if len(tree["statements"]) != 1:
        raise QueryError(400, "invalid_sql", "Send one statement at a time.")
    node = tree["statements"][0]["node"]
    hidden = {entry["key"].lower() for found in _walk(node) for entry in _ctes(found)}
    named = [found["table_name"] for found in _walk(node) if found.get("type") == "BASE_TABLE"]
    tables = tuple(dict.fromkeys(name for name in named if name.lower() not in hidden))
    bounds = Bounds()
    is_simple = len(named) == 1 and not hidden and node.get("type") == "SELECT_NODE"
    if is_simple and node["from_table"].get("type") == "BASE_TABLE" and node.get("where_clause"):
        bounds = _narrow(query.encode(), node["where_clause"], evaluate)
    return Plan(tables, bounds)


def _walk(node: Any) -> Iterator[Mapping[str, Any]]:
    stack = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, Mapping):
            yield current
            stack.extend(current.values())
        elif isinstance(current, list):
            stack.extend(reversed(current))


def _ctes(node: Mapping[str, Any]) -> list[Any]:
    found = node.get("cte_map")
    return found.get("map", []) if isinstance(found, Mapping) else []


def _narrow(query: bytes, where: Mapping[str, Any], evaluate: Callable[[str], int | None]) -> Bounds:
    bounds = Bounds()
    parts = where["children"] if where.get("type") == "CONJUNCTION_AND" else [where]
    for part in parts:
        sign = _COMPARISONS.get(str(part.get("type")))
        left = part.get("left")
        if sign is None or not isinstance(left, Mapping) or left.get("type") != "COLUMN_REF":
            continue
        column = str(left["column_names"][-1]).lower()
        right = _right_side(query, part, left)
        if column not in ("partition", "offset", "timestamp") or right is None:
            continue
        value = evaluate(
            f"epoch_ms(({right})::TIMESTAMPTZ)" if column == "timestamp" else f"({right})::BIGINT"
        )
        if value is not None:
            bounds = _with(bounds, column, sign, value)
    return bounds


def _right_side(query: bytes, part: Mapping[str, Any], left: Mapping[str, Any]) -> str | None:
    """The text behind the comparison's sign, if it depends on no column and no subquery."""
    for node in _walk(part["right"]):
        if node.get("class") in ("COLUMN_REF", "SUBQUERY", "PARAMETER", "WINDOW"):
            return None
    start = left["query_location"] + left["query_location_length"]
    end = part["query_location"] + part["query_location_length"]
    if not 0 < start < end <= len(query):
        return None
    return query[start:end].decode(errors="replace").strip().lstrip("<>=").strip() or None


def _with(bounds: Bounds, column: str, sign: str, value: int) -> Bounds:
    if column == "partition":
        return replace(bounds, partition=value) if sign == "=" else bounds
    if column == "timestamp":
        if sign not in ("=", ">", ">="):
            return bounds
        return replace(bounds, first_timestamp_ms=max(value, bounds.first_timestamp_ms or 0))
    if sign in ("=", ">", ">="):
        bounds = replace(bounds, first_offset=max(bounds.first_offset, value + (sign == ">")))
    if sign in ("=", "<", "<="):
        bounds = replace(bounds, end_offset=min(bounds.end_offset, value + (sign != "<")))
    return bounds
