"""What a SQL query needs, read from DuckDB's own syntax tree: tables, and which offsets and times of them.

Only what certainly holds is pushed down: comparisons joined by AND in the WHERE of a query over one table.
Everything else reads the whole topic. The query itself still filters, so what is not pushed down only costs
time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from chronik.query.statement import Tree, ctes, walk

__all__ = ["Evaluate", "PushdownPlan", "RowBounds", "constant_query", "plan_of"]

_COMPARISONS: Final = {
    "COMPARE_EQUAL": "=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
}
_CONSTANTS: Final = frozenset({"CONSTANT", "CAST", "TYPE"})
_FUNCTIONS: Final = frozenset(
    {
        *("+", "-", "*", "/", "//", "%", "now", "get_current_timestamp", "today", "current_date", "trunc"),
        *("to_microseconds", "to_milliseconds", "to_seconds", "to_minutes", "to_hours", "to_days"),
        *("to_weeks", "to_months", "to_years", "to_timestamp", "make_timestamp", "make_timestamp_ms"),
        *("make_date", "date_trunc", "epoch_ms"),
    }
)
"""Functions of constants that can be computed before the query. None has a result that depends on chance."""
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBounds:
    """The part of a topic that a query can see; ends are excluded."""

    partition: int | None = None
    first_offset: int = 0
    end_offset: int = _INT64_MAX
    first_timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PushdownPlan:
    tables: tuple[str, ...]
    bounds: RowBounds


Evaluate: TypeAlias = Callable[[Tree, str], int | None]
"""Computes a constant, given as a syntax tree, for a column: a number, or a time in milliseconds."""


def plan_of(query: Tree, evaluate: Evaluate) -> PushdownPlan:
    """`query` has passed `read_statement`."""
    hidden = {entry["key"].lower() for found in walk(query) for entry in ctes(found)}
    named = [found["table_name"] for found in walk(query) if found.get("type") == "BASE_TABLE"]
    tables = tuple(dict.fromkeys(name for name in named if name.lower() not in hidden))
    bounds = RowBounds()
    is_simple = len(named) == 1 and not hidden and query.get("type") == "SELECT_NODE"
    if is_simple and query["from_table"].get("type") == "BASE_TABLE" and query.get("where_clause"):
        bounds = _narrow(query["where_clause"], evaluate)
    return PushdownPlan(tables, bounds)


def constant_query(template: Any, constant: Tree) -> Any:
    """The serialized query `template` with `constant` in place of its one NULL."""
    if isinstance(template, dict):
        if template.get("class") == "CONSTANT":
            return constant
        return {name: constant_query(inner, constant) for name, inner in template.items()}
    if isinstance(template, list):
        return [constant_query(inner, constant) for inner in template]
    return template


def _narrow(where: Tree, evaluate: Evaluate) -> RowBounds:
    bounds = RowBounds()
    parts = where["children"] if where.get("type") == "CONJUNCTION_AND" else [where]
    for part in parts:
        sign = _COMPARISONS.get(str(part.get("type")))
        left = part.get("left")
        if sign is None or not isinstance(left, dict) or left.get("type") != "COLUMN_REF":
            continue
        column = str(left["column_names"][-1]).lower()
        if column not in ("partition", "offset", "timestamp") or not _is_constant(part["right"]):
            continue
        value = evaluate(part["right"], column)
        if value is not None:
            bounds = _with(bounds, column, sign, value)
    return bounds


def _is_constant(expression: Tree) -> bool:
    """Depends on no column, subquery or chance."""
    return all(
        node["class"] in _CONSTANTS
        or (node["class"] == "FUNCTION" and str(node["function_name"]).lower() in _FUNCTIONS)
        for node in walk(expression)
        if "class" in node
    )


def _with(bounds: RowBounds, column: str, sign: str, value: int) -> RowBounds:
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
