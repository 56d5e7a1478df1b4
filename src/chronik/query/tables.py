"""A topic as a table: columns of what was read so far, in Parquet files, and the young rest in memory.

A partition's rows lie in files named by the offsets they cover, one after the other without a gap, so the
next query reads only what came since. The fields of JSON values are columns of the files, with the types
that the values in that file have; DuckDB finds the common type over all of them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from chronik.query.column_reader import SCHEMA

__all__ = [
    *("BASE_COLUMNS", "ONCE", "OWN_FOLDERS", "RESULTS", "SPILL"),
    *("PartitionColumns", "TopicColumns", "quoted", "remove_unknown", "single", "table_source"),
]

ONCE: Final = ".once"
SPILL: Final = ".spill"
RESULTS: Final = ".results"
OWN_FOLDERS: Final = frozenset({ONCE, SPILL, RESULTS})
"""Folders that belong to no topic: the names of topics' folders have an id. A topic's name may begin with a
dot, too."""

FLUSH_ROWS: Final = 50_000
FLUSH_BYTES: Final = 32 * 1024 * 1024
"""Where a query may have little memory, it is less: making columns of JSON takes several times as much."""
VECTOR_BYTES: Final = 256 * 1024
VECTOR_ROWS: Final = 2_048
JSON_COLUMNS_MAX: Final = 300
BASE_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
TEXT: Final = "COALESCE(TRY(decode({0})), {0}::VARCHAR)"
TIMESTAMP: Final = "timestamp::TIMESTAMP AS timestamp"
HEADERS_TYPE: Final = 'STRUCT("key" VARCHAR, "value" BLOB)[]'


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class PartitionColumns:
    """What was read of one partition."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._files: list[tuple[int, int, Path]] = []
        self._tail: list[pa.RecordBatch] = []
        for path in sorted(directory.iterdir()):
            first, dash, end = path.stem.partition("-")
            follows = not self._files or (first.isdecimal() and int(first) == self._files[-1][1])
            if path.suffix == ".parquet" and dash and first.isdecimal() and end.isdecimal() and follows:
                self._files.append((int(first), int(end), path))
            else:
                path.unlink(missing_ok=True)
        self.first = self._files[0][0] if self._files else 0
        self.position = self._files[-1][1] if self._files else 0
        self._tail_first = self.position

    @property
    def is_empty(self) -> bool:
        return not self._files and not self._tail

    def begin_at(self, offset: int) -> None:
        """Start at this offset: the log no longer has what is before, or nobody needs it."""
        self.first = self.position = self._tail_first = offset

    def trim(self, log_start_offset: int) -> None:
        """Forget what nobody reads here any more: the log has deleted it, or an archive holds it."""
        while self._files and self._files[0][1] <= log_start_offset:
            self._files.pop(0)[2].unlink(missing_ok=True)
            self.first = self._files[0][0] if self._files else self._tail_first
        if self.position <= log_start_offset:
            self._tail = []
            self.begin_at(log_start_offset)

    def add(self, batches: list[pa.RecordBatch], next_offset: int) -> None:
        self._tail += [part for batch in batches for part in _parts(batch)]
        self.position = next_offset

    @property
    def tail_bytes(self) -> int:
        return sum(batch.nbytes for batch in self._tail)

    def is_due(self, flush_bytes: int = FLUSH_BYTES) -> bool:
        rows = sum(batch.num_rows for batch in self._tail)
        return bool(rows >= FLUSH_ROWS) or self.tail_bytes >= flush_bytes

    def flush(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Write what is in memory to a file. Blocking."""
        if not self._tail:
            self._tail_first = self.position
            return
        path = self._directory / f"{self._tail_first:020d}-{self.position:020d}.parquet"
        partial = path.with_suffix(".partial")
        connection.register("tail", pa.Table.from_batches(self._tail, SCHEMA))
        try:
            source = table_source(connection, "tail")
            connection.execute(
                f"COPY ({source}) TO {literal(str(partial))} (FORMAT parquet, COMPRESSION zstd)"
            )
            os.replace(partial, path)
        finally:
            connection.unregister("tail")
            partial.unlink(missing_ok=True)
        self._files.append((self._tail_first, self.position, path))
        self._tail, self._tail_first = [], self.position

    def files(self) -> list[Path]:
        return [path for _, _, path in self._files]

    def tail(self) -> list[pa.RecordBatch]:
        return list(self._tail)


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut where values are long: DuckDB makes several copies of as many rows as it takes in at once."""
    rows = max(1, min(VECTOR_ROWS, VECTOR_BYTES * batch.num_rows // max(1, batch.nbytes)))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


class TopicColumns:
    def __init__(self, root: Path, topic: str, topic_id: str) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.folder = root / f"{topic}.{topic_id}"
        for old in root.glob(f"{topic}.*"):
            if old.name != self.folder.name and old.name.count(".") == self.folder.name.count("."):
                shutil.rmtree(old, ignore_errors=True)
        self._partitions: dict[int, PartitionColumns] = {}

    def partition(self, number: int) -> PartitionColumns:
        found = self._partitions.get(number)
        if found is None:
            found = self._partitions[number] = PartitionColumns(self.folder / str(number))
        return found

    def tail_bytes(self) -> int:
        return sum(one.tail_bytes for one in self._partitions.values())


def single(connection: duckdb.DuckDBPyConnection, query: str, given: list[Any] | None = None) -> Any:
    """The one value of a query; everything is fetched, since a connection has one open result at most."""
    rows = connection.execute(query, given or []).fetchall()
    return rows[0][0] if rows else None


def table_source(connection: duckdb.DuckDBPyConnection, relation: str) -> str:
    """SELECT that turns raw columns into the table's: text for bytes, a column for each JSON field."""
    text = f"SELECT *, {TEXT.format('value')} AS text FROM {relation}"
    extracted = json_columns(_fields(connection, text))
    return (
        f'SELECT partition, "offset", {TIMESTAMP}, '
        f"{TEXT.format('key')} AS key, text AS value, headers{''.join(extracted)} "
        f"FROM (SELECT *, CASE WHEN text LIKE '{{%' AND json_valid(text) THEN text END AS document "
        f"FROM ({text}))"
    )


def _fields(connection: duckdb.DuckDBPyConnection, source: str) -> dict[str, str]:
    """The fields that the JSON values have, in the order in which they came, each with its type.

    Of each value only the outermost fields are looked at: json_group_structure puts all values together
    before it looks, and fails on one that is nested deeply.
    """
    found = connection.execute(
        f"""SELECT key, list(DISTINCT type) FROM (
                SELECT "offset", CASE WHEN text LIKE '{{%' AND json_valid(text) THEN text END AS document
                FROM ({source})
            ), json_each(document)
            GROUP BY key ORDER BY min("offset"), min(id) LIMIT {JSON_COLUMNS_MAX}"""
    ).fetchall()
    return {name: _common({*kinds} - {"NULL"}) for name, kinds in found}


def _common(kinds: set[str]) -> str:
    """The type of a column for values of these types."""
    if kinds and kinds <= {"BIGINT", "UBIGINT"}:
        return "BIGINT"
    if kinds and kinds <= {"BIGINT", "UBIGINT", "DOUBLE"}:
        return "DOUBLE"
    return kinds.pop() if kinds in ({"VARCHAR"}, {"BOOLEAN"}) else "JSON"


def column_names(fields: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The fields of values that become columns, with the names those have."""
    taken = {name.lower() for name in BASE_COLUMNS}
    for name in itertools.islice(fields, JSON_COLUMNS_MAX):
        if not name or "\x00" in name:
            continue
        column = name
        while column.lower() in taken:
            column = f"value.{column}"
        taken.add(column.lower())
        yield name, column


def json_columns(structure: Mapping[str, str]) -> list[str]:
    columns = []
    for name, column in column_names(structure):
        target = structure[name]
        path = literal("$." + json.dumps(name, ensure_ascii=False))
        if target != "JSON":
            taken_out = f"json_extract_string(document, {path})"
            value = taken_out if target == "VARCHAR" else f"TRY_CAST({taken_out} AS {target})"
        else:
            value = f"json_extract(document, {path})::VARCHAR"
        columns.append(f", {value} AS {quoted(column)}")
    return columns


def remove_unknown(root: Path, known: set[str]) -> None:
    """Columns of topics that are gone."""
    with contextlib.suppress(FileNotFoundError):
        for path in root.iterdir():
            if path.is_dir() and path.name not in known and path.name not in OWN_FOLDERS:
                shutil.rmtree(path, ignore_errors=True)
