"""Fetched record batches as Arrow columns: by the pipeline's compiled scanner where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from chronik.client import Fetched

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


class ColumnReader:
    """Reads what came from one partition."""

    def __init__(self, topic: str, partition: int) -> None:
        self._partition = partition
        self._scanner: Any = None
        self._window: Any = None
        if importlib.util.find_spec("numba") is not None:
            from chronik.spark.scanner import Scanner, Window

            self._scanner = Scanner(SCHEMA.names, topic, partition)
            self._window = Window

    def read(self, fetched: Fetched, end_offset: int) -> Iterator[pa.RecordBatch]:
        """The committed records from the fetched offset up to the end, which is excluded."""
        if self._scanner is not None:
            window = self._window(first_offset=fetched.fetch_offset, last_offset=end_offset - 1)
            yield from self._scanner.scan(fetched.data, window, fetched.aborted)
            return
        records = [record for record in fetched.records() if record.offset < end_offset]
        if records:
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([self._partition] * len(records), pa.int32()),
                    pa.array([record.offset for record in records], pa.int64()),
                    pa.array(
                        [record.timestamp_ms * 1000 for record in records], SCHEMA.field("timestamp").type
                    ),
                    pa.array([record.key for record in records], pa.binary()),
                    pa.array([record.value for record in records], pa.binary()),
                    pa.array([[{"key": k, "value": v} for k, v in one.headers] for one in records], _HEADERS),
                ],
                schema=SCHEMA,
            )
