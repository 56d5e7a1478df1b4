"""Arrow columns to record batches, without a Python object per record: the scanner's way back.

Kernels place rows on partitions (Kafka's murmur2 for keys), and write the records of one partition into a
batch body. What is given to them is well-formed Arrow, so they check only the room they have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from chronik.columns.compiling import compiled, copy_bytes
from chronik.columns.kernels import Bytes, Ints, Offsets
from chronik.model import TopicPartition
from chronik.records.batch import HEADER, HEADER_BYTES, MAGIC_V2, OVERHEAD_BYTES, TRANSACTIONAL_MASK, reseal
from chronik.records.compression import compress
from chronik.spark.options import OptionError

RECORD_OVERHEAD_BYTES: Final = 48
"""Upper bound for the varints of one record, besides its key, value and headers."""
HEADER_OVERHEAD_BYTES: Final = 12


@compiled
def _murmur2(data: Bytes, start: int, size: int) -> int:
    m = np.uint32(0x5BD1E995)
    h = np.uint32(0x9747B28C) ^ np.uint32(size)
    whole = size & ~3
    for position in range(start, start + whole, 4):
        k = (
            np.uint32(data[position])
            | (np.uint32(data[position + 1]) << np.uint32(8))
            | (np.uint32(data[position + 2]) << np.uint32(16))
            | (np.uint32(data[position + 3]) << np.uint32(24))
        )
        k = np.uint32(k * m)
        k = np.uint32((k ^ (k >> np.uint32(24))) * m)
        h = np.uint32(h * m) ^ k
    if size > whole:
        rest = np.uint32(0)
        for i in range(size - whole):
            rest |= np.uint32(data[start + whole + i]) << np.uint32(8 * i)
        h = np.uint32((h ^ rest) * m)
    h = np.uint32((h ^ (h >> np.uint32(13))) * m)
    h = h ^ (h >> np.uint32(15))
    return np.int64(h & np.uint32(0x7FFFFFFF))  # type: ignore[return-value]


@compiled
def place_rows(
    key_ends: Offsets, keys: Bytes, key_valid: Bytes, given: Ints, count: int, turn: int, placed: Ints
) -> None:
    """The partition of each row: the one given (not negative), else by its key, else in turn in long runs."""
    rows = len(placed)
    for row in range(rows):
        if given[row] >= 0:
            placed[row] = given[row]
        elif len(key_valid) > 0 and key_valid[row]:
            size = key_ends[row + 1] - key_ends[row]
            placed[row] = _murmur2(keys, key_ends[row], size) % count
        else:
            placed[row] = (turn + row * count // rows) % count


@compiled
def _put_varint(out: Bytes, position: int, value: int) -> int:
    raw = (np.uint64(value) << np.uint64(1)) ^ np.uint64(value >> 63)
    while raw > np.uint64(0x7F):
        out[position] = np.uint8((raw & np.uint64(0x7F)) | np.uint64(0x80))
        raw >>= np.uint64(7)
        position += 1
    out[position] = np.uint8(raw)
    return position + 1


@compiled
def _varint_size(value: int) -> int:
    raw = (np.uint64(value) << np.uint64(1)) ^ np.uint64(value >> 63)
    size = 1
    while raw > np.uint64(0x7F):
        raw >>= np.uint64(7)
        size += 1
    return size


@compiled
def _put_field(out: Bytes, position: int, ends: Offsets, data: Bytes, valid: Bytes, row: int) -> int:
    if len(valid) == 0 or not valid[row]:
        return _put_varint(out, position, -1)
    size = int(ends[row + 1] - ends[row])
    position = _put_varint(out, position, size)
    copy_bytes(out, position, data, ends[row], size)
    return position + size


@compiled
def _field_size(ends: Offsets, valid: Bytes, row: int) -> int:
    if len(valid) == 0 or not valid[row]:
        return 1
    size = int(ends[row + 1] - ends[row])
    return _varint_size(size) + size


@compiled
def put_records(
    rows: Ints,
    key_ends: Offsets,
    keys: Bytes,
    key_valid: Bytes,
    value_ends: Offsets,
    values: Bytes,
    value_valid: Bytes,
    header_rows: Offsets,
    name_ends: Offsets,
    names: Bytes,
    name_valid: Bytes,
    content_ends: Offsets,
    contents: Bytes,
    content_valid: Bytes,
    out: Bytes,
    limit: int,
    made: Ints,
) -> None:
    """Write records of `rows`, in order, up to `limit` bytes (one at least); `made` gets count and bytes."""
    position = 0
    count = 0
    for row in rows:
        first = header_rows[row] if len(header_rows) > 0 else 0
        last = header_rows[row + 1] if len(header_rows) > 0 else 0
        size = 2 + _varint_size(count) + _varint_size(last - first)
        size += _field_size(key_ends, key_valid, row) + _field_size(value_ends, value_valid, row)
        for header in range(first, last):
            size += _field_size(name_ends, name_valid, header)
            size += _field_size(content_ends, content_valid, header)
        if count > 0 and position + size > limit:
            break
        position = _put_varint(out, position, size)
        out[position] = 0  # attributes
        out[position + 1] = 0  # no time of its own: the batch's
        position = _put_varint(out, position + 2, count)
        position = _put_field(out, position, key_ends, keys, key_valid, row)
        position = _put_field(out, position, value_ends, values, value_valid, row)
        position = _put_varint(out, position, last - first)
        for header in range(first, last):
            position = _put_field(out, position, name_ends, names, name_valid, header)
            position = _put_field(out, position, content_ends, contents, content_valid, header)
        count += 1
    made[0] = count
    made[1] = position


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """Ends, bytes and validity (a byte per row) of a binary or string array; empty if there is no column."""

    ends: Offsets
    data: Bytes
    valid: Bytes

    @classmethod
    def of(cls, array: pa.Array | None) -> BinaryColumn:
        if array is None:
            none = np.zeros(0, dtype=np.uint8)
            return cls(np.zeros(0, dtype=np.int32), none, none)
        array = array.cast(pa.binary())
        _, ends, data = array.buffers()
        offsets = np.frombuffer(ends, dtype=np.int32)[array.offset : array.offset + len(array) + 1]
        content = np.frombuffer(data if data is not None else b"", dtype=np.uint8)
        valid = array.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
        return cls(offsets.copy(), _writable(content), valid)

    def size(self, rows: Ints) -> int:
        return int((self.ends[rows + 1] - self.ends[rows]).sum()) if len(self.ends) else 0


def _writable(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Always a writable array, so that numba compiles one variant only."""
    return data if data.flags.writeable else data.copy()


@dataclass(frozen=True, slots=True)
class HeaderColumn:
    rows: Offsets
    names: BinaryColumn
    contents: BinaryColumn

    @classmethod
    def of(cls, array: pa.Array | None) -> HeaderColumn:
        if array is None:
            return cls(np.zeros(0, dtype=np.int32), BinaryColumn.of(None), BinaryColumn.of(None))
        # A null list has no entries, so that its ends coincide in what `flatten` leaves.
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        rows = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        names, contents = array.flatten().flatten()
        return cls(rows, BinaryColumn.of(names), BinaryColumn.of(contents))


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of an Arrow batch, ready to be encoded."""

    topics: tuple[str, ...]
    codes: NDArray[np.int64]
    """Which of the topics each row goes to."""
    partitions: NDArray[np.int64]
    """The partition each row names, -1 for none."""
    keys: BinaryColumn
    values: BinaryColumn
    headers: HeaderColumn

    @classmethod
    def of(cls, batch: pa.RecordBatch, topic: str | None) -> Rows:
        def column(name: str) -> pa.Array | None:
            return batch.column(name) if name in batch.schema.names else None

        count = batch.num_rows
        if topic is not None:
            topics: tuple[str, ...] = (topic,)
            codes = np.zeros(count, dtype=np.int64)
        else:
            named = batch.column("topic")
            if named.null_count:
                raise OptionError("a row has no topic: fill the column topic or set the option topic")
            encoded = named.cast(pa.string()).dictionary_encode()
            topics = tuple(encoded.dictionary.to_pylist())
            codes = encoded.indices.to_numpy().astype(np.int64)
        given = column("partition")
        partitions = np.full(count, -1, dtype=np.int64)
        if given is not None:
            partitions = pc.fill_null(given, -1).to_numpy().astype(np.int64)
        return cls(
            topics,
            codes,
            partitions,
            BinaryColumn.of(column("key")),
            BinaryColumn.of(column("value")),
            HeaderColumn.of(column("headers")),
        )

    def by_partition(
        self, partition_counts: Mapping[str, int], turn: int
    ) -> Iterator[tuple[TopicPartition, NDArray[np.int64]]]:
        """Row numbers of each partition, in the order of the rows."""
        for code, topic in enumerate(self.topics):
            rows = np.flatnonzero(self.codes == code)
            count = partition_counts[topic]
            placed = np.empty(len(self.codes), dtype=np.int64)
            place_rows(self.keys.ends, self.keys.data, self.keys.valid, self.partitions, count, turn, placed)
            placed = placed[rows]
            if len(placed) and int(placed.max()) >= count:
                raise OptionError(f"topic {topic!r} has no partition {int(placed.max())}")
            order = np.argsort(placed, kind="stable")
            numbers, starts = np.unique(placed[order], return_index=True)
            for number, group in zip(numbers.tolist(), np.split(rows[order], starts[1:]), strict=True):
                yield TopicPartition(topic, number), group

    def bodies(self, rows: NDArray[np.int64], limit: int) -> Iterator[tuple[int, Bytes]]:
        """Record counts and bodies of batches with these rows, each about `limit` bytes long."""
        headers = self.headers
        size = self.keys.size(rows) + self.values.size(rows) + RECORD_OVERHEAD_BYTES * len(rows)
        header_count = 0
        if len(headers.rows):
            header_count = int((headers.rows[rows + 1] - headers.rows[rows]).sum())
            size += len(headers.names.data) + len(headers.contents.data)
        out = np.empty(size + HEADER_OVERHEAD_BYTES * header_count, dtype=np.uint8)
        made = np.zeros(2, dtype=np.int64)
        while len(rows):
            put_records(
                rows,
                self.keys.ends,
                self.keys.data,
                self.keys.valid,
                self.values.ends,
                self.values.data,
                self.values.valid,
                headers.rows,
                headers.names.ends,
                headers.names.data,
                headers.names.valid,
                headers.contents.ends,
                headers.contents.data,
                headers.contents.valid,
                out,
                limit,
                made,
            )
            yield int(made[0]), out[: made[1]]
            rows = rows[made[0] :]


def seal(
    body: Any,
    count: int,
    *,
    timestamp_ms: int,
    compression: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    is_transactional: bool,
) -> bytearray:
    """A batch of `count` records, all of the same time, around their encoded bytes."""
    payload = compress(compression, bytes(body)) if compression else memoryview(body)
    size = HEADER_BYTES + len(payload)
    batch = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        batch,
        0,
        0,
        size - OVERHEAD_BYTES,
        -1,
        MAGIC_V2,
        0,
        compression | (TRANSACTIONAL_MASK if is_transactional else 0),
        count - 1,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    batch += payload
    reseal(batch, 0, size)
    return batch
