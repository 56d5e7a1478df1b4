"""One SQL query in a database of its own, within limits."""

from __future__ import annotations

import json
import logging
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import duckdb
import msgspec
import pyarrow as pa

from chronik.model import invariant
from chronik.query.archive import ArchivedTopic, relations
from chronik.query.column_reader import SCHEMA
from chronik.query.kept_columns import spare_bytes
from chronik.query.messages import QueryError
from chronik.query.pushdown import PushdownPlan, constant_query, plan_of
from chronik.query.results import write_result
from chronik.query.statement import Tree, read_statement
from chronik.query.tables import (
    ONCE,
    SPILL,
    PartitionColumns,
    TopicColumns,
    literal,
    quoted,
    single,
    table_source,
)

log = logging.getLogger(__name__)

__all__ = ["AT_ONCE", "FilesMoved", "QueryLimits", "QueryRun", "describe"]


MESSAGE_CHARS_MAX: Final = 2_000
AT_ONCE: Final = 2
"""Queries that run together and share the memory that SQL may take."""
SPARE_PART: Final = 2 * AT_ONCE
"""A query may spill this part of what is free: together they fill the half."""
_TRACE: Final = re.compile(r"\s*Stack Trace:.*", re.DOTALL)
_OUT_OF_MEMORY: Final = "Out of Memory Error"
"""Start of the message of DuckDB's error. Through an Arrow stream it arrives as an OSError."""
_PATHS: Final = re.compile(r"(?<![\w/])/(?:[^\s'\":,;()/]+/)+[^\s'\":,;()]*")


class FilesMoved(Exception):
    """A job moved or replaced files of an archive during the query. The query should be tried again."""


class QueryLimits(Protocol):
    @property
    def sql_memory_bytes(self) -> int: ...
    @property
    def sql_columns_bytes_max(self) -> int: ...
    @property
    def sql_result_bytes_max(self) -> int: ...
    @property
    def sql_rows_max(self) -> int: ...
    @property
    def sql_seconds_max(self) -> float: ...


def spill_bytes_max(root: Path, limits: QueryLimits) -> int:
    """What one query may put on the disk that does not fit in memory: the WAL is on it, too."""
    return max(0, min(4 * limits.sql_memory_bytes, spare_bytes(root) // SPARE_PART))


class QueryRun:
    """One query in a database of its own."""

    def __init__(self, root: Path, limits: QueryLimits, query: str, rows_max: int) -> None:
        """`root` is the engine's own folder."""
        self._query = query.strip().rstrip(";")
        self.rows_max = rows_max
        self.bytes_max = limits.sql_result_bytes_max
        self._root = root
        self._sources: list[str] = []
        self._files: list[Path] = []
        self._spill = root / SPILL / uuid.uuid4().hex
        """One folder per query, since DuckDB lets a query read its folder for temporary files."""
        self._spill.parent.mkdir(exist_ok=True)
        self._once: list[Path] = [self._spill]
        self.held: list[TopicColumns] = []
        """Kept columns that this query reads."""
        self._lock = threading.Lock()
        self._open = True
        self._is_sealed = False
        self._query_tree: Tree = {}
        self.connection = duckdb.connect(
            config={
                "threads": "1",
                "memory_limit": f"{limits.sql_memory_bytes // AT_ONCE // 1024} KiB",
                "temp_directory": str(self._spill),
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "preserve_insertion_order": "false",
                "python_enable_replacements": "false",
            }
        )
        self.connection.execute("SET TimeZone = 'UTC'")
        # Not in the configuration above: DuckDB shows it then, and spills without a limit.
        spill = spill_bytes_max(root, limits) // 1024
        self.connection.execute(f"SET max_temp_directory_size = '{spill} KiB'")

    def seal(self) -> None:
        """Let DuckDB touch only the files of this query's tables from now on. Before this call it executes
        our statements and the caller's constants; after it, the caller's statement."""
        if self._files:
            allowed = ", ".join(literal(str(path)) for path in self._files)
            self.connection.execute(f"SET allowed_paths = [{allowed}]")
        self.connection.execute("SET enable_external_access = false")
        self.connection.execute("SET lock_configuration = true")
        self._is_sealed = True

    def interrupt(self) -> None:
        with self._lock:
            if self._open:
                self.connection.interrupt()

    def stop(self) -> None:
        with self._lock:
            self._open = False
        self.connection.close()
        for path in self._once:
            shutil.rmtree(path, ignore_errors=True)

    def once(self) -> PartitionColumns:
        """A place for rows that only this query needs."""
        self._once.append(self._root / ONCE / uuid.uuid4().hex)
        return PartitionColumns(self._once[-1])

    def plan_reading(self) -> PushdownPlan:
        """What to read for the query. QueryError for everything that is not one SELECT over topics."""
        views = single(self.connection, "SELECT list(lower(view_name)) FROM duckdb_views() WHERE internal")
        self._query_tree = read_statement(self._serialized(self._query), frozenset(views))
        return plan_of(self._query_tree, self._evaluate)

    def _serialized(self, query: str) -> str:
        return str(single(self.connection, "SELECT json_serialize_sql(?)", [query]))

    def _evaluate(self, constant: Tree, column: str) -> int | None:
        form = "SELECT epoch_ms(NULL::TIMESTAMPTZ)" if column == "timestamp" else "SELECT NULL::BIGINT"
        query = constant_query(json.loads(self._serialized(form)), constant)
        try:
            execute = "SELECT * FROM json_execute_serialized_sql(?)"
            value = single(self.connection, execute, [json.dumps(query)])
        except duckdb.Error:
            return None
        return value if isinstance(value, int) else None

    def _statement(self, text: str, kind: duckdb.StatementType) -> duckdb.Statement:
        """Only what DuckDB itself calls a single statement of this kind is executed."""
        invariant(self._is_sealed, "a caller's statement runs with the files of its own tables only")
        statements = self.connection.extract_statements(text)
        if [one.type for one in statements] != [kind]:
            raise QueryError(400, "not_a_select", "Topics can be read with SELECT only.")
        return statements[0]

    def add_table(
        self,
        name: str,
        kept: list[PartitionColumns],
        starts: Mapping[int, int],
        archived: ArchivedTopic | None,
    ) -> None:
        """Make a topic a table: what was read of its log from these offsets on, and what is archived."""
        files = [path.resolve() for one in kept for path in one.files()]
        self._files += files
        if archived is not None:
            self._files += [path for path, _, _ in archived.files]
        tail = [batch for one in kept for batch in one.tail()]
        parts = []
        if files:
            listed = ", ".join(literal(str(path)) for path in files)
            parts.append(f"SELECT * FROM read_parquet([{listed}], union_by_name = true)")
        if tail or not files:
            held = f"tail_{len(self._sources)}"
            self.connection.register(held, pa.Table.from_batches(tail, SCHEMA))
            parts.append(table_source(self.connection, quoted(held)))
        gone = " OR ".join(
            f'(partition = {p} AND "offset" < {start})' for p, start in starts.items() if start
        )
        where = f" WHERE NOT ({gone})" if gone else ""
        parts = [f"SELECT * FROM ({part}){where}" for part in parts]
        parts += archive_parts(self.connection, archived)
        source = " UNION ALL BY NAME ".join(f"({part})" for part in parts)
        view = f"CREATE VIEW {quoted(name)} AS SELECT {literal(name)} AS topic, * FROM ({source})"
        self.connection.execute(view)
        read = f"{name}: {len(files)} files, {sum(b.num_rows for b in tail)} rows in memory"
        self._sources.append(
            read if archived is None else f"{read}, {len(archived.files)} files of the archive"
        )

    def bounded(self, seconds: float, finish: Callable[[QueryRun], Any]) -> Any:
        """Run on a thread; stopped from outside, or by itself when its time is up."""
        timer = threading.Timer(max(0.01, seconds), self.interrupt)
        timer.start()
        try:
            return self.guarded(lambda: finish(self))
        finally:
            timer.cancel()

    @staticmethod
    def guarded(work: Callable[[], Any]) -> Any:
        """DuckDB's errors as ours."""
        try:
            return work()
        except duckdb.InterruptException:
            raise TimeoutError from None
        except duckdb.IOException as error:
            raise FilesMoved(str(error)) from None
        except (duckdb.OutOfMemoryException, MemoryError, pa.ArrowMemoryError) as error:
            raise _out_of_memory(error) from None
        except OSError as error:
            if not str(error).startswith(_OUT_OF_MEMORY):
                raise
            raise _out_of_memory(error) from None
        except (duckdb.InternalException, duckdb.FatalException) as error:
            log.warning("DuckDB failed in a query: %s", error)
            raise QueryError(400, "engine_failed", f"The SQL engine failed: {public(error)}") from None
        except duckdb.Error as error:
            raise QueryError(400, "invalid_sql", public(error)) from None
        except (ValueError, OverflowError, RecursionError, pa.ArrowException) as error:
            # A value that DuckDB has and Python or Arrow has not, such as a date in the year 200,000.
            raise QueryError(400, "invalid_sql", f"The result cannot be shown: {public(error)}") from None

    def rows(self, form: str, path: Path, began: float) -> Any:
        """Write the result to this file."""
        statement = self._statement(self._query, duckdb.StatementType.SELECT)
        try:
            answer = write_result(self.connection, statement, form, path, self)
            answer["took"] = round((time.monotonic() - began) * 1000, 3)
            if form == "json":
                with path.open("ab") as file:
                    file.write(b',"took":%b}' % msgspec.json.encode(answer["took"]))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return answer

    def plan(self) -> Any:
        # Of the tree that was checked, since a text behind EXPLAIN could be read in another way.
        tree = {"error": False, "statements": [{"node": self._query_tree, "named_param_map": []}]}
        text = single(self.connection, "SELECT json_deserialize_sql(?)", [json.dumps(tree)])
        statement = self._statement(f"EXPLAIN {text}", duckdb.StatementType.EXPLAIN)
        rows = self.connection.execute(statement).fetchall()
        text = "\n".join(str(row[-1]) for row in rows)
        return {"plan": "\n".join([*self._sources, "", text])}


def _out_of_memory(error: BaseException) -> QueryError:
    return QueryError(413, "out_of_memory", f"The query needs more memory than it may have: {public(error)}")


def public(error: BaseException) -> str:
    """An error as a client may see it, without paths of the node's files or names of its code."""
    text = _PATHS.sub("…", _TRACE.sub("", str(error)))
    return text[:MESSAGE_CHARS_MAX] or type(error).__name__


def archive_parts(connection: duckdb.DuckDBPyConnection, archived: ArchivedTopic | None) -> list[str]:
    found = relations(archived) if archived is not None else ()
    return [table_source(connection, f"({select})") if is_raw else select for select, is_raw in found]


def describe(batches: list[pa.RecordBatch], archived: ArchivedTopic | None) -> list[dict[str, str]]:
    """The columns of a topic, from a sample of its records and from its archive."""
    with duckdb.connect(config={"threads": "1"}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("sample", pa.Table.from_batches(batches, SCHEMA))
        parts = [table_source(connection, "sample"), *archive_parts(connection, archived)]
        source = " UNION ALL BY NAME ".join(f"({part})" for part in parts)
        described = connection.execute(f"DESCRIBE {source}").fetchall()
    columns = [{"name": "topic", "type": "VARCHAR"}]
    return columns + [{"name": column, "type": kind} for column, kind, *_ in described]
