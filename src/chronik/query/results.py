"""Writes the rows of a query to a file as JSON, CSV or Arrow: a few at a time, within a budget of bytes.

Rows are taken from DuckDB only as fast as they are written, so what is cut off is never computed and memory
holds a few of them. The node sends the file on without reading what is in it.
"""

from __future__ import annotations

import base64
import csv
import datetime
import decimal
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import duckdb
import msgspec
import pyarrow as pa

from chronik.query.messages import QueryError

__all__ = ["FORMATS", "Budget", "plain", "write_result"]

FORMATS: Final = ("json", "csv", "arrow")
CHUNK_BYTES: Final = 256 * 1024
"""Rows are taken in portions of about this size."""
CHUNK_ROWS_MAX: Final = 1_000
ARROW_ROWS: Final = 2_048
DEPTH_MAX: Final = 200
_INT64_MIN: Final = -(2**63)
_UINT64_MAX: Final = 2**64 - 1


class Budget(Protocol):
    @property
    def rows_max(self) -> int: ...
    @property
    def bytes_max(self) -> int: ...


class ResultFile:
    """A file that does not grow beyond a limit."""

    def __init__(self, file: io.BufferedWriter, bytes_max: int) -> None:
        self._file = file
        self.left = bytes_max
        self.rows = 0

    def fits(self, data: bytes) -> bool:
        """Whether there was room for these bytes, which are then in the file."""
        if len(data) > self.left:
            return False
        self.put(data)
        return True

    def put(self, data: bytes) -> None:
        """Write these bytes even beyond the limit: the end of a result is small."""
        self.left -= len(data)
        self._file.write(data)


def write_result(
    connection: duckdb.DuckDBPyConnection, statement: Any, form: str, path: Path, budget: Budget
) -> dict[str, Any]:
    """Write the rows; the answer says how many they are and whether there were more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        sink = ResultFile(file, budget.bytes_max)
        if form == "arrow":
            # Of a relation: the result of `execute` would be copied as a whole before its first batch.
            is_cut = _arrow(connection.sql(statement), sink, budget.rows_max)
        else:
            write = _json if form == "json" else _csv
            is_cut = write(connection.execute(statement), sink, budget.rows_max)
    if is_cut and not sink.rows and budget.rows_max:
        raise QueryError(
            413,
            "result_too_large",
            f"Its first row alone is larger than the {budget.bytes_max} bytes allowed.",
        )
    return {"row_count": sink.rows, "is_cut": is_cut}


def _json(result: duckdb.DuckDBPyConnection, sink: ResultFile, rows_max: int) -> bool:
    columns = [{"name": name, "type": str(kind)} for name, kind, *_ in result.description or ()]
    _begin(sink, b'{"columns":%b,"rows":[' % _encoded(columns))
    is_cut = False
    for row in _rows(result):
        data = (b"," if sink.rows else b"") + _encoded([plain(value) for value in row])
        is_cut = sink.rows >= rows_max or not sink.fits(data)
        if is_cut:
            break
        sink.rows += 1
    end = b'],"row_count":%d,"is_cut":%b' % (sink.rows, b"true" if is_cut else b"false")
    sink.put(end)  # the caller closes the object
    return is_cut


def _csv(result: duckdb.DuckDBPyConnection, sink: ResultFile, rows_max: int) -> bool:
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")

    def encoded(values: Sequence[Any]) -> bytes:
        line.seek(0)
        line.truncate()
        writer.writerow(values)
        return line.getvalue().encode()

    _begin(sink, encoded([name for name, *_ in result.description or ()]))
    for row in _rows(result):
        data = encoded([_cell(plain(value)) for value in row])
        if sink.rows >= rows_max or not sink.fits(data):
            return True
        sink.rows += 1
    return False


def _cell(value: Any) -> Any:
    is_text = value is None or isinstance(value, str | int | float)
    return value if is_text else _encoded(value).decode()


def _arrow(relation: Any, sink: ResultFile, rows_max: int) -> bool:
    # DuckDB 1.x and 2.x have different names for it.
    reader = (getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader)(ARROW_ROWS)
    held = io.BytesIO()
    with pa.ipc.new_stream(held, reader.schema) as writer:
        _begin(sink, _stream_part(held, writer, pa.RecordBatch.from_pylist([], reader.schema)))
        for batch in reader:
            while batch.num_rows:
                size = min(batch.num_rows, rows_max - sink.rows)
                while size and batch.slice(0, size).nbytes > sink.left:
                    size //= 2
                if size:
                    sink.put(_stream_part(held, writer, batch.slice(0, size)))
                sink.rows += size
                if size < batch.num_rows and (not size or sink.rows >= rows_max):
                    _end_stream(sink)
                    return True
                batch = batch.slice(size)
    _end_stream(sink)
    return False


def _stream_part(held: io.BytesIO, writer: Any, batch: pa.RecordBatch) -> bytes:
    held.seek(0)
    held.truncate()
    writer.write_batch(batch)
    return held.getvalue()


def _end_stream(sink: ResultFile) -> None:
    sink.put(b"\xff\xff\xff\xff\x00\x00\x00\x00")


def _begin(sink: ResultFile, head: bytes) -> None:
    if not sink.fits(head):
        raise QueryError(413, "result_too_large", "Its columns alone are larger than a result may be.")


def _rows(result: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    """Few at a time while they are large."""
    count = 1
    while rows := result.fetchmany(count):
        size = sum(_size(value) for row in rows for value in row)
        yield from rows
        count = max(1, min(CHUNK_ROWS_MAX, 2 * count, CHUNK_BYTES * len(rows) // (size + 1)))


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | dict) else 8


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)


def plain(value: Any, depth: int = 0) -> Any:
    """A DuckDB value for JSON: times as ISO text, bytes as base64, NaN and infinities as null."""
    if depth > DEPTH_MAX:
        return str(value)
    match value:
        case None | bool() | str():
            return value
        case int():
            # HUGEINT: JSON has numbers of any length, though its readers may not.
            return value if _INT64_MIN <= value <= _UINT64_MAX else msgspec.Raw(b"%d" % value)
        case float():
            return value if math.isfinite(value) else None
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case decimal.Decimal():
            return float(value)
        case list() | tuple():
            return [plain(one, depth + 1) for one in value]
        case dict():
            return {str(name): plain(one, depth + 1) for name, one in value.items()}
        case _:
            return str(value)
