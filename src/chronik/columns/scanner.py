"""Raw record batches to Arrow columns, without a Python object per record.

Flow: `index_batches` lists the batches of a fetch; control batches, aborted transactions and batches outside
the window drop out; the rest is checked (CRC), decompressed batch by batch where needed, and decoded by
`scan_records` in one go. Work is cut so that no Arrow batch grows far beyond `CHUNK_BYTES`.

A producer can write a batch whose checksum is right and whose records make no sense, or become gigabytes. A
reader who wants to go on behind such batches passes `unreadable`, which is called for each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray

from chronik.client.visibility import AbortedTransaction, visible_batches
from chronik.columns import kernels
from chronik.model import BATCH_RECORDS_MAX, ErrorCode, RequestError
from chronik.records.batch import (
    ATTRIBUTES_OFFSET,
    COMPRESSION_MASK,
    CONTROL_MASK,
    HEADER_BYTES,
    Buffer,
)
from chronik.records.body import TooManyRecords
from chronik.records.compression import decompress
from chronik.records.reader import Unreadable

CHUNK_BYTES: Final = 1024 * 1024
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
COLUMN_BYTES_MAX: Final = 2**31 - 1
"""Ends of binary values are 32 bits."""

BINARY: Final = pa.binary()
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
COLUMN_TYPES: Final[dict[str, pa.DataType]] = {
    "key": BINARY,
    "value": BINARY,
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP,
    "timestampType": pa.int32(),
    "headers": HEADERS,
}


Skip: TypeAlias = Callable[[NDArray[np.int64], RequestError], None]
"""Called for a row of the batches' table whose records cannot be decoded; raises, or returns to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordWindow:
    """The records that are wanted, both ends included."""

    first_offset: int = 0
    last_offset: int = INT64_MAX
    first_timestamp_ms: int = INT64_MIN
    last_timestamp_ms: int = INT64_MAX

    def as_array(self) -> NDArray[np.int64]:
        bounds = (self.first_offset, self.last_offset, self.first_timestamp_ms, self.last_timestamp_ms)
        return np.array(bounds, dtype=np.int64)


class Scanner:
    """Turns what was fetched from one partition into record batches with the columns named."""

    def __init__(self, columns: Sequence[str], topic: str, partition: int) -> None:
        self._columns = tuple(columns)
        self._topic = topic.encode()
        self._partition = partition
        self._constants: dict[str, pa.Array] = {}
        self.schema = pa.schema([pa.field(name, COLUMN_TYPES[name]) for name in self._columns])

    def scan(
        self,
        data: Buffer,
        window: RecordWindow,
        aborted: Sequence[AbortedTransaction] = (),
        unreadable: Callable[[Unreadable], None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The records of `data` in the window, in order; no batch for no records.

        Raises RequestError(corrupt_message) for bytes that contradict their checksum. A batch whose checksum
        is right and whose records cannot be decoded raises too, or is left out and reported to `unreadable`.
        """
        raw = _read_only(np.frombuffer(data, dtype=np.uint8))
        batches = _visible(raw, data, window, aborted)
        _check(data, batches)
        bounds = window.as_array()
        sizes = dict(
            zip(batches[:, kernels.BASE_OFFSET].tolist(), batches[:, kernels.SIZE].tolist(), strict=True)
        )

        def skip(row: NDArray[np.int64], error: RequestError) -> None:
            if unreadable is None:
                raise error
            first, last = int(row[kernels.BASE_OFFSET]), int(row[kernels.LAST_OFFSET])
            unreadable(Unreadable(first, last, int(row[kernels.MAX_TIMESTAMP]), sizes[first], str(error)))

        is_too_many = batches[:, kernels.RECORD_COUNT] > BATCH_RECORDS_MAX
        for row in batches[is_too_many]:
            skip(row, TooManyRecords(int(row[kernels.RECORD_COUNT])))
        for body, chunk in _bodies(raw, data, batches[~is_too_many], skip):
            for batch in self._decoded(body, chunk, bounds, skip):
                if batch.num_rows:
                    yield batch

    def _decoded(
        self, body: kernels.Bytes, batches: kernels.Ints, window: NDArray[np.int64], skip: Skip
    ) -> Iterator[pa.RecordBatch]:
        """All batches at once; one by one if that fails, to find those to blame."""
        try:
            yield self._decode(body, batches, window)
        except RequestError as error:
            if len(batches) == 1:
                skip(batches[0], error)
                return
            for index in range(len(batches)):
                yield from self._decoded(body, batches[index : index + 1], window, skip)

    def _decode(
        self, body: kernels.Bytes, batches: kernels.Ints, window: NDArray[np.int64]
    ) -> pa.RecordBatch:
        rows_max = int(batches[:, kernels.RECORD_COUNT].sum())
        size_max = int(batches[:, kernels.SIZE].sum())
        if rows_max * kernels.RECORD_BYTES_MIN > size_max:
            raise _corrupt("a batch counts more records than its bytes can hold")
        if size_max > COLUMN_BYTES_MAX:
            raise _corrupt(f"the records take {size_max} bytes, more than a column can hold")
        numbers = _array(np.int64, 2 * rows_max).reshape(2, rows_max)
        types = _array(np.int32, rows_max)
        keys = _Binary(rows_max, size_max, "key" in self._columns)
        values = _Binary(rows_max, size_max, "value" in self._columns)
        header_positions = np.empty(rows_max if "headers" in self._columns else 0, dtype=np.int64)
        rows = kernels.scan_records(
            body,
            batches,
            window,
            numbers,
            types,
            keys.ends,
            keys.data,
            keys.valid,
            values.ends,
            values.data,
            values.valid,
            header_positions,
        )
        if rows < 0:
            raise _corrupt("a record does not end where its length says")
        columns: dict[str, Any] = {
            "key": lambda: keys.array(rows, BINARY),
            "value": lambda: values.array(rows, BINARY),
            "offset": lambda: _fixed(pa.int64(), numbers[0], rows),
            "timestamp": lambda: _fixed(TIMESTAMP, numbers[1], rows),
            "timestampType": lambda: _fixed(pa.int32(), types, rows),
            "headers": lambda: _headers(body, header_positions[:rows]),
            "topic": lambda: self._constant("topic", rows),
            "partition": lambda: self._constant("partition", rows),
        }
        arrays = [columns[name]() for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema) if arrays else _counted(rows)

    def _constant(self, name: str, rows: int) -> pa.Array:
        """A column that says the same in every row, made once and cut to length."""
        known = self._constants.get(name)
        if known is None or len(known) < rows:
            if name == "partition":
                known = pa.array(np.full(rows, self._partition, dtype=np.int32))
            else:
                size = len(self._topic)
                ends = np.arange(0, (rows + 1) * size, size, dtype=np.int32)
                known = pa.Array.from_buffers(
                    pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(self._topic * rows)]
                )
            self._constants[name] = known
        return known.slice(0, rows)


class _Binary:
    """Buffers for a binary column, large enough for anything that the scan may put in."""

    __slots__ = ("data", "ends", "valid")

    def __init__(self, rows_max: int, size_max: int, wanted: bool) -> None:
        self.ends = _array(np.int32, rows_max + 1 if wanted else 0)
        self.data = _array(np.uint8, size_max if wanted else 0)
        self.valid = _array(np.uint8, (rows_max + 7) // 8 if wanted else 0)
        self.ends[:1] = 0
        self.valid.fill(0)

    def array(self, rows: int, kind: pa.DataType) -> pa.Array:
        used = int(self.ends[rows])
        buffers = [pa.py_buffer(part) for part in (self.valid, self.ends, self.data[:used])]
        return pa.Array.from_buffers(kind, rows, buffers)


def _array(kind: type[np.generic], count: int) -> NDArray[Any]:
    """Memory of Arrow's pool, which reuses what it has: fresh pages cost more than the scan itself."""
    buffer = pa.allocate_buffer(count * np.dtype(kind).itemsize)
    return np.frombuffer(buffer, dtype=kind)


def _read_only(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Kernels are compiled for one kind of input: bytes that do not change."""
    data.flags.writeable = False
    return data


def _fixed(kind: pa.DataType, numbers: NDArray[Any], rows: int) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(numbers)])


def _headers(body: kernels.Bytes, positions: kernels.Ints) -> pa.Array:
    totals = np.zeros(3, dtype=np.int64)
    kernels.measure_headers(body, positions, totals)
    count, name_bytes, value_bytes = (int(total) for total in totals)
    row_ends = np.zeros(len(positions) + 1, dtype=np.int32)
    names = _Binary(count, name_bytes, True)
    values = _Binary(count, value_bytes, True)
    kernels.scan_headers(
        body, positions, row_ends, names.ends, names.data, values.ends, values.data, values.valid
    )
    names.valid.fill(0xFF)
    pairs = pa.StructArray.from_arrays(
        [_text(names.array(count, BINARY)), values.array(count, BINARY)], fields=list(HEADERS.value_type)
    )
    return pa.Array.from_buffers(HEADERS, len(positions), [None, pa.py_buffer(row_ends)], children=[pairs])


def _text(names: pa.Array) -> pa.Array:
    """Names of headers as strings; what is not UTF-8 in them is replaced, as Java does."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())


def _counted(rows: int) -> pa.RecordBatch:
    """Rows without columns."""
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, type=pa.struct([])))


def _visible(
    raw: kernels.Bytes, data: Buffer, window: RecordWindow, aborted: Sequence[AbortedTransaction]
) -> kernels.Ints:
    """A row for each batch with records that a reader may see in the window."""
    table = np.empty((len(raw) // HEADER_BYTES + 1, kernels.BATCH_FIELDS), dtype=np.int64)
    count = kernels.index_batches(raw, table)
    if count < 0:
        raise _corrupt("a batch header makes no sense")
    table = table[:count]
    keep = (
        ((table[:, kernels.ATTRIBUTES] & CONTROL_MASK) == 0)
        & (table[:, kernels.LAST_OFFSET] >= window.first_offset)
        & (table[:, kernels.BASE_OFFSET] <= window.last_offset)
        & (table[:, kernels.MAX_TIMESTAMP] >= window.first_timestamp_ms)
        & (table[:, kernels.RECORD_COUNT] > 0)
    )
    if aborted:
        seen = [position for position, _ in visible_batches(data, aborted)]
        keep &= np.isin(table[:, kernels.POSITION], np.array(seen, dtype=np.int64))
    kept: kernels.Ints = table[keep]
    return kept


def _check(data: Buffer, batches: kernels.Ints) -> None:
    view = memoryview(data)
    positions = batches[:, kernels.POSITION].tolist()
    ends = (batches[:, kernels.POSITION] + batches[:, kernels.SIZE]).tolist()
    for position, end, crc in zip(positions, ends, batches[:, kernels.CRC].tolist(), strict=True):
        if crc32c(view[position + ATTRIBUTES_OFFSET : end]) != crc:
            raise _corrupt("the CRC of a record batch does not match its bytes")


def _bodies(
    raw: kernels.Bytes, data: Buffer, batches: kernels.Ints, skip: Skip
) -> Iterator[tuple[kernels.Bytes, kernels.Ints]]:
    """The decompressed records of the batches, with the batches' POSITION and SIZE made to fit them."""
    if not len(batches):
        return
    codecs = batches[:, kernels.ATTRIBUTES] & COMPRESSION_MASK
    if not codecs.any():
        batches[:, kernels.POSITION] += HEADER_BYTES
        batches[:, kernels.SIZE] -= HEADER_BYTES
        yield from _chunks(raw, batches)
        return
    view = memoryview(data)
    parts: list[bytes] = []
    rows: list[int] = []
    size = 0
    for index in range(len(batches)):
        position, end = int(batches[index, kernels.POSITION]), int(batches[index, kernels.SIZE])
        try:
            body = decompress(int(codecs[index]), view[position + HEADER_BYTES : position + end])
        except RequestError as error:
            skip(batches[index], error)
            continue
        if rows and size + len(body) > COLUMN_BYTES_MAX:
            yield _joined(parts), batches[rows]
            parts, rows, size = [], [], 0
        batches[index, kernels.POSITION] = size
        batches[index, kernels.SIZE] = len(body)
        parts.append(body)
        rows.append(index)
        size += len(body)
        if size >= CHUNK_BYTES:
            yield _joined(parts), batches[rows]
            parts, rows, size = [], [], 0
    if rows:
        yield _joined(parts), batches[rows]


def _joined(parts: Sequence[bytes]) -> kernels.Bytes:
    return _read_only(np.frombuffer(b"".join(parts), dtype=np.uint8))


def _chunks(raw: kernels.Bytes, batches: kernels.Ints) -> Iterator[tuple[kernels.Bytes, kernels.Ints]]:
    """Uncompressed batches are decoded where they lie."""
    filled = np.cumsum(batches[:, kernels.SIZE]) // CHUNK_BYTES
    for begin, end in _runs(filled):
        yield raw, batches[begin:end]


def _runs(groups: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    borders = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
    yield from itertools.pairwise(borders)


def _corrupt(why: str) -> RequestError:
    return RequestError(ErrorCode.corrupt_message, why)
