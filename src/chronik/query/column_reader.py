"""Fetched record batches as Arrow columns: by the pipeline's compiled scanner where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from chronik.client import Fetched
from chronik.client.visibility import visible_batches
from chronik.model import RequestError
from chronik.query.unreadable_records import Skipped, readable_rows
from chronik.records.reader import unreadable_batch

__all__ = ["SCHEMA", "ColumnReader"]

_HEADERS: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", _HEADERS),
    ]
)


def _with_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Names of headers that are no text get replacement characters: DuckDB would refuse all rows."""
    headers = batch.column("headers")
    pairs = headers.values
    names = pairs.field("key")
    try:
        names.validate(full=True)
        return batch
    except pa.ArrowInvalid:
        pass
    mended = pa.array([name.decode("utf-8", "replace") for name in names.view(pa.binary()).to_pylist()])
    fields = pa.StructArray.from_arrays([mended, pairs.field("value")], fields=list(_HEADERS.value_type))
    column = pa.ListArray.from_arrays(headers.offsets, fields, type=_HEADERS)
    return batch.set_column(batch.schema.get_field_index("headers"), batch.schema.field("headers"), column)


class ColumnReader:
    """Reads what came from one partition."""

    def __init__(self, topic: str, partition: int, skipped: Skipped) -> None:
        self._topic = topic
        self._partition = partition
        self._skipped = skipped
        self._scanner: Any = None
        self._window: Any = None
        if importlib.util.find_spec("numba") is not None:
            from chronik.columns.scanner import RecordWindow, Scanner

            self._scanner = Scanner(SCHEMA.names, topic, partition)
            self._window = RecordWindow

    def _scan(self, fetched: Fetched, end_offset: int) -> Iterator[pa.RecordBatch]:
        """All at once; batch by batch from where that fails, so that only what is bad is left out."""
        first = fetched.fetch_offset
        try:
            for found in self._scanner.scan(fetched.data, self._within(first, end_offset), fetched.aborted):
                first = found.column("offset")[-1].as_py() + 1
                yield _with_text(found)
            return
        except RequestError:
            pass
        for position, header in visible_batches(fetched.data, fetched.aborted):
            if header.last_offset < first or header.base_offset >= end_offset:
                continue
            data = fetched.data[position : position + header.size_bytes]
            try:
                yield from map(_with_text, self._scanner.scan(data, self._within(first, end_offset)))
            except RequestError as error:
                bad = unreadable_batch(header, error)
                self._skipped.add(self._topic, self._partition, header.record_count, str(bad))

    def _within(self, first_offset: int, end_offset: int) -> Any:
        return self._window(first_offset=first_offset, last_offset=end_offset - 1)

    def read(self, fetched: Fetched, end_offset: int) -> Iterator[pa.RecordBatch]:
        """The committed records from the fetched offset up to the end, which is excluded."""
        if self._scanner is not None:
            yield from self._scan(fetched, end_offset)
            return
        rows = readable_rows(fetched, self._skipped)
        records = [row for row in rows if row[0] < end_offset]
        if records:
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([self._partition] * len(records), pa.int32()),
                    pa.array([offset for offset, *_ in records], pa.int64()),
                    pa.array([when * 1000 for _, when, *_ in records], SCHEMA.field("timestamp").type),
                    pa.array([key for _, _, key, *_ in records], pa.binary()),
                    pa.array([value for *_, value, _ in records], pa.binary()),
                    pa.array([[{"key": k, "value": v} for k, v in pairs] for *_, pairs in records], _HEADERS),
                ],
                schema=SCHEMA,
            )
