"""One SQL query in a database of its own, within limits; its result as JSON, CSV or Arrow."""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import math
import shutil
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import duckdb
import msgspec
import pyarrow as pa

from chronik.query.archive import Archived, relations
from chronik.query.columns import SCHEMA
from chronik.query.messages import QueryError
from chronik.query.pushdown import Plan, read_plan
from chronik.query.tables import PartitionColumns, literal, quoted, single, table_source

__all__ = ["FilesMoved", "Limits", "QueryRun", "describe", "plain"]


class FilesMoved(Exception):
    """A job moved or replaced files of an archive under the query; looking again helps."""


class Limits(Protocol):
    @property
    def sql_memory_bytes(self) -> int: ...
    @property
    def sql_rows_max(self) -> int: ...
    @property
    def sql_seconds_max(self) -> float: ...


class QueryRun:
    """One query in a database of its own."""

    def __init__(
        self, root: Path, limits: Limits, query: str, rows_max: int, readable: Sequence[Path] = ()
    ) -> None:
        """`root` is the engine's own folder; DuckDB may also read what is below `readable`."""
        self._query = query.strip().rstrip(";")
        self._rows_max = rows_max
        self._root = root
        self._sources: list[str] = []
        self._once: list[Path] = []
        self._lock = threading.Lock()
        self._open = True
        self.connection = duckdb.connect(
            config={
                "threads": "1",
                "memory_limit": f"{limits.sql_memory_bytes // 1024} KiB",
                "temp_directory": str(root / ".spill"),
                "max_temp_directory_size": f"{4 * limits.sql_memory_bytes // 1024} KiB",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "preserve_insertion_order": "false",
            }
        )
        self.connection.execute("SET TimeZone = 'UTC'")
        allowed = ", ".join(literal(f"{path.resolve()}/") for path in (root, *readable))
        self.connection.execute(f"SET allowed_directories = [{allowed}]")
        self.connection.execute("SET enable_external_access = false")
        self.connection.execute("SET lock_configuration = true")

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
        self._once.append(self._root / ".once" / uuid.uuid4().hex)
        return PartitionColumns(self._once[-1])

    def plan_reading(self) -> Plan:
        serialized = single(self.connection, "SELECT json_serialize_sql(?)", [self._query])
        return read_plan(self._query, serialized, self._evaluate)

    def _evaluate(self, expression: str) -> int | None:
        try:
            value = single(self.connection, f"SELECT {expression}")
        except duckdb.Error:
            return None
        return value if isinstance(value, int) else None

    def add_table(
        self, name: str, kept: list[PartitionColumns], starts: Mapping[int, int], archived: Archived | None
    ) -> None:
        """Make a topic a table: what was read of its log from these offsets on, and what is archived."""
        files = [path for one in kept for path in one.files()]
        tail = [batch for one in kept for batch in one.tail()]
        parts = []
        if files:
            listed = ", ".join(literal(str(path.resolve())) for path in files)
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

    def guarded(self, work: Callable[[], Any]) -> Any:
        """DuckDB's errors as ours."""
        try:
            return work()
        except duckdb.InterruptException:
            raise TimeoutError from None
        except duckdb.IOException as error:
            raise FilesMoved(str(error)) from None
        except duckdb.OutOfMemoryException as error:
            raise QueryError(
                413, "out_of_memory", f"The query needs more memory than it may have: {error}"
            ) from None
        except duckdb.Error as error:
            raise QueryError(400, "invalid_sql", str(error)) from None

    def rows(self, form: str) -> Any:
        result = self.connection.execute(self._query)
        if form == "arrow":
            return _arrow(result, self._rows_max)
        columns = [{"name": name, "type": str(kind)} for name, kind, *_ in result.description or ()]
        rows = result.fetchmany(self._rows_max + 1)
        is_cut = len(rows) > self._rows_max
        plain_rows = [[plain(value) for value in row] for row in rows[: self._rows_max]]
        answer = {"columns": columns, "rows": plain_rows, "row_count": len(plain_rows), "is_cut": is_cut}
        return answer if form == "json" else {"csv": _csv(answer), "is_cut": is_cut}

    def plan(self) -> Any:
        rows = self.connection.execute(f"EXPLAIN {self._query}").fetchall()
        text = "\n".join(str(row[-1]) for row in rows)
        return {"plan": "\n".join([*self._sources, "", text])}


def archive_parts(connection: duckdb.DuckDBPyConnection, archived: Archived | None) -> list[str]:
    found = relations(archived) if archived is not None else ()
    return [table_source(connection, f"({select})") if is_raw else select for select, is_raw in found]


def describe(batches: list[pa.RecordBatch], archived: Archived | None) -> list[dict[str, str]]:
    """The columns of a topic, as these of its records and its archive suggest."""
    with duckdb.connect(config={"threads": "1"}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("sample", pa.Table.from_batches(batches, SCHEMA))
        parts = [table_source(connection, "sample"), *archive_parts(connection, archived)]
        source = " UNION ALL BY NAME ".join(f"({part})" for part in parts)
        described = connection.execute(f"DESCRIBE {source}").fetchall()
    columns = [{"name": "topic", "type": "VARCHAR"}]
    return columns + [{"name": column, "type": kind} for column, kind, *_ in described]


def _arrow(result: duckdb.DuckDBPyConnection, rows_max: int) -> dict[str, Any]:
    found: Any = result
    # DuckDB 1.x and 2.x have different names for it.
    table = (getattr(found, "to_arrow_table", None) or found.fetch_arrow_table)()
    cut = table.slice(0, rows_max)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, cut.schema) as writer:
        writer.write_table(cut)
    return {"arrow": sink.getvalue(), "is_cut": table.num_rows > rows_max}


def _csv(answer: Mapping[str, Any]) -> str:
    import csv

    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow([column["name"] for column in answer["columns"]])
    for row in answer["rows"]:
        writer.writerow([msgspec.json.encode(v).decode() if isinstance(v, dict | list) else v for v in row])
    return sink.getvalue()


def plain(value: Any) -> Any:
    """A value of DuckDB's as JSON has it: times as ISO text, bytes as base64, what is no number as null."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case decimal.Decimal():
            return float(value)
        case list() | tuple():
            return [plain(one) for one in value]
        case dict():
            return {str(name): plain(one) for name, one in value.items()}
        case _:
            return str(value)
