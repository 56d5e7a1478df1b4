"""What a SQL statement may consist of, decided on DuckDB's own syntax tree and never on text.

Everything is refused that is not listed here. DuckDB lets a SELECT carry statements that write (a WITH may
hold INSERT or COPY) and has functions that show settings or read files, and both grow with its releases.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from chronik.query.functions import FUNCTIONS, TABLE_FUNCTIONS
from chronik.query.messages import QueryError

__all__ = ["Tree", "ctes", "read_statement", "walk"]

Tree = Mapping[str, Any]

_NODES: Final = frozenset(
    {
        *("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"),
        *("BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "EMPTY", "PIVOT"),
        *("ORDER_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "DISTINCT_MODIFIER"),
        *("ORDER_DEFAULT", "ASCENDING", "DESCENDING", "ORDER_ASCENDING", "ORDER_DESCENDING"),
    }
)
_EXPRESSIONS: Final = frozenset(
    {
        *("BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT"),
        *("FUNCTION", "LAMBDA", "LAMBDA_REF", "OPERATOR", "POSITIONAL_REFERENCE", "STAR", "SUBQUERY"),
        *("TYPE", "WINDOW"),
    }
)
_NOT_IN_CTE_NAMES: Final = frozenset("/\\:.*?[")
"""Outside the WITH that defines it, a name with one of these characters could be read as a file name."""


def read_statement(serialized: str, system_views: frozenset[str]) -> Tree:
    """The query of json_serialize_sql's answer. QueryError unless it is one SELECT of what is allowed."""
    try:
        tree = json.loads(serialized)
    except RecursionError:
        raise QueryError(400, "invalid_sql", "The statement is nested too deeply.") from None
    if tree["error"]:
        message = str(tree.get("error_message", "it cannot be read"))
        if "Only SELECT" in message:
            raise QueryError(400, "not_a_select", "Topics can be read with SELECT only.")
        raise QueryError(400, "invalid_sql", message)
    if len(tree["statements"]) != 1:
        raise QueryError(400, "invalid_sql", "Send one statement at a time.")
    query: Tree = tree["statements"][0]["node"]
    for node in walk(query):
        _check(node, system_views)
    return query


def walk(node: Any) -> Iterator[Tree]:
    stack = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, Mapping):
            yield current
            stack.extend(current.values())
        elif isinstance(current, list):
            stack.extend(reversed(current))


def ctes(node: Tree) -> list[Any]:
    """What a WITH of this query defines."""
    found = node.get("cte_map")
    return found.get("map", []) if isinstance(found, Mapping) else []


def _check(node: Tree, system_views: frozenset[str]) -> None:
    for entry in ctes(node):
        name = str(entry["key"]).lower()
        if name in system_views or not _NOT_IN_CTE_NAMES.isdisjoint(name):
            raise _refused(f"the name {entry['key']!r} in WITH")
    kind = node.get("type")
    if not isinstance(kind, str):
        return
    expression = node.get("class")
    if expression is None:
        if kind not in _NODES:
            code = "not_a_select" if kind.endswith("QUERY_NODE") else "invalid_sql"
            raise _refused(kind.lower().replace("_", " "), code)
        if kind == "BASE_TABLE":
            _check_table(node)
        elif kind == "TABLE_FUNCTION":
            _check_function(node["function"], TABLE_FUNCTIONS)
    elif expression not in _EXPRESSIONS:
        raise _refused(str(expression).lower())
    elif "function_name" in node:
        _check_function(node, FUNCTIONS)


def _check_table(node: Tree) -> None:
    if node.get("schema_name") or node.get("catalog_name"):
        raise QueryError(
            404,
            "unknown_table",
            'A topic\'s name has one part; write "a.b" for a topic with a dot in its name.',
        )
    if node.get("at_clause"):
        raise _refused("AT")


def _check_function(node: Tree, allowed: frozenset[str]) -> None:
    name = str(node.get("function_name", "")).lower()
    if name not in allowed or node.get("export_state"):
        raise _refused(f"the function {name}")


def _refused(what: str, code: str = "invalid_sql") -> QueryError:
    return QueryError(400, code, f"A query over topics cannot have this: {what}.")
