"""What can be known before Spark starts: the SQL, the Python functions, the topics."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from chronik.client import Cluster
from chronik.model import ErrorCode
from chronik.spark.options import Connect
from chronik.spark.pipeline.document import Document, KeyPath, meant
from chronik.spark.pipeline.spec import Pipeline, Step
from chronik.spark.planning import ask

_WINDOW: Final = re.compile(r"\bwindow\(", re.IGNORECASE)


def check_sql(document: Document, pipeline: Pipeline) -> None:
    """Every statement parses, is a query, and reads views that are made before it."""
    made = {*pipeline.sources, *(s.bad_name for s in pipeline.sources.values() if s.topics)}
    for step in pipeline.steps:
        if step.sql is not None:
            _check_statement(document, step, made)
        made.add(step.name)


def _check_statement(document: Document, step: Step, made: Collection[str]) -> None:
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import ParseError, SqlglotError

    path: KeyPath = ("steps", step.position, "sql")
    sql = step.sql or ""
    try:
        # The parser takes `window(` behind GROUP BY for a clause; Spark's function of that name is meant.
        tree: Any = sqlglot.parse_one(_WINDOW.sub("wind0w(", sql), dialect="spark")
    except ParseError as error:
        if _another_parser_takes(sql):
            return  # Spark itself will judge
        first = error.errors[0]
        near = f" near {first['highlight']!r}" if first.get("highlight") else ""
        line = (first.get("line") or 1) - 1
        what = f"this is no SQL{near}, column {first.get('col')}: {_plainly(str(first['description']))}"
        raise document.error(path, what, further_lines=line + _first_line(document, path, sql)) from None
    except SqlglotError as error:
        raise document.error(path, f"this is no SQL: {_plainly(str(error))}") from None
    if not isinstance(tree, exp.Query):
        raise document.error(path, "a step's SQL must be a SELECT")
    local = {cte.alias_or_name for cte in tree.find_all(exp.CTE)}
    for table in tree.find_all(exp.Table):
        name = table.name
        if not table.db and name and name not in made and name not in local:
            what = f"step {step.name} reads {name!r}, which no source or step before it makes; "
            raise document.error(path, what + meant(name, made))


def _another_parser_takes(sql: str) -> bool:
    import duckdb

    try:
        return bool(duckdb.extract_statements(sql))
    except duckdb.Error:
        return False


def _first_line(document: Document, path: KeyPath, sql: str) -> int:
    """A text in three quotes may begin on the line below its key; the TOML reader drops that line break."""
    return 1 if "\n" in sql else 0


def _plainly(said: str) -> str:
    if said.startswith("Required keyword"):
        return "something is missing behind it"
    if "but got" in said:
        return said.partition(" but got")[0].lower()
    return said.splitlines()[0].lower()


def check_functions(document: Document, pipeline: Pipeline, folder: Path) -> None:
    for step in pipeline.steps:
        if step.python is None:
            continue
        path: KeyPath = ("steps", step.position, "python")
        place, _, function = step.python.rpartition(":")
        if place.endswith(".py"):
            file = folder / place
            if not file.is_file():
                raise document.error(path, f"there is no file {file}")
            try:
                tree = ast.parse(file.read_text(), str(file))
            except SyntaxError as error:
                raise document.error(path, f"{file}, line {error.lineno}: {error.msg}") from None
            names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            if function not in names:
                raise document.error(path, f"{place} has no function {function!r}; {meant(function, names)}")
        elif not _module_exists(place):
            raise document.error(path, f"there is no module {place!r} on the Python path")


def _module_exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def check_topics(document: Document, pipeline: Pipeline, connect: Connect) -> None:
    """Topics that are read or written exist: nobody wants one that was made by a misspelling."""
    wanted: dict[str, KeyPath] = {}
    for source in pipeline.sources.values():
        wanted.update(dict.fromkeys(source.topics, ("sources", source.name, "topic")))
    for sink in pipeline.sinks.values():
        if sink.topic is not None and sink.format == "topic":
            wanted[sink.topic] = ("sinks", sink.name, "topic")
    if not wanted:
        return

    async def work(cluster: Cluster) -> set[str]:
        await cluster.probe()
        topics = await cluster.topics()
        return {name for name, info in topics.items() if info.error_code == ErrorCode.none}

    there = ask(connect, work)
    for topic, path in wanted.items():
        if topic not in there:
            near = meant(topic, there) if there else "there are no topics yet"
            what = f"topic {topic!r} does not exist; {near} `chronik topic create {topic}` makes it"
            raise document.error(path, what)
