"""What the audit's tasks do: read one replica's batches, as they lie, into a row per batch.

A replica is read through Fetch from the node that holds it, or from the segment files in its data directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from chronik.client.fetching import FetchOptions
from chronik.columns import kernels
from chronik.columns.scanner import RecordWindow, Scanner
from chronik.model import ErrorCode, RequestError, TopicPartition, Unavailable
from chronik.records.batch import ATTRIBUTES_OFFSET, HEADER_BYTES, LEADER_EPOCH_OFFSET
from chronik.spark.fetching import RangeFetcher
from chronik.spark.options import Connect
from chronik.spark.ranges import OffsetRange

READ_BYTES: Final = 8 * 1024 * 1024
SCHEMA: Final = pa.schema(
    [
        ("replica", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("base_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("records", pa.int64()),
        ("epoch", pa.int32()),
        ("crc", pa.int64()),
        ("size_bytes", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("fault", pa.string()),
        ("place", pa.string()),
    ]
)
SPARK_SCHEMA: Final = (
    "replica string, topic string, partition int, base_offset long, last_offset long, records long, "
    "epoch int, crc long, size_bytes long, timestamp_ms long, fault string, place string"
)


class AuditedReplica(msgspec.Struct, frozen=True, kw_only=True):
    """One task: a range of a node's log, or one segment file."""

    replica: str
    topic: str
    partition: int
    node_id: int = -1
    start: int = 0
    end: int = 0
    path: str = ""


@dataclass(slots=True)
class _Order:
    """Checks from chunk to chunk that offsets only go up."""

    next_offset: int = -1


class ReplicaPartition(InputPartition):
    def __init__(self, work: AuditedReplica) -> None:
        self.work = work


class BatchSource(DataSource):
    """Rows of `SCHEMA` for the replicas that the option `replicas` lists."""

    @classmethod
    def name(cls) -> str:
        return "chronik-batches"

    def schema(self) -> str:
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        replicas = msgspec.json.decode(self.options["replicas"], type=list[AuditedReplica])
        connect = msgspec.json.decode(self.options["connect"], type=Connect)
        return BatchReader(replicas, connect)


class BatchReader(DataSourceReader):
    def __init__(self, replicas: list[AuditedReplica], connect: Connect) -> None:
        self._replicas = replicas
        self._connect = connect

    def partitions(self) -> list[ReplicaPartition]:
        return [ReplicaPartition(each) for each in self._replicas]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReplicaPartition)
        work = partition.work
        return _read_file(work) if work.path else _read_node(work, self._connect)


def _read_node(work: AuditedReplica, connect: Connect) -> Iterator[pa.RecordBatch]:
    tp = TopicPartition(work.topic, work.partition)
    options = FetchOptions(partition_max_bytes=READ_BYTES, max_bytes=READ_BYTES)
    order = _Order()
    reached = work.start
    try:
        wanted = OffsetRange(tp, work.start, work.end)
        for chunk in RangeFetcher(connect, wanted, options, replica=work.node_id):
            yield examine(chunk.data, work, f"node {work.node_id}", order)
            reached = chunk.next_offset
    except (RequestError, Unavailable) as error:
        code = getattr(error, "code", None)
        if code == ErrorCode.offset_out_of_range:
            why = f"behind: it ends at offset {reached}, the watermark is {work.end}"
        else:
            why = f"cannot be read at offset {reached}: {error}"
        yield _one_fault(work, reached, why)


def _read_file(work: AuditedReplica) -> Iterator[pa.RecordBatch]:
    """A segment file in pieces that end where batches end."""
    path = Path(work.path)
    order = _Order()
    rest = b""
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            data = rest + piece
            whole = _whole(data)
            if whole:
                yield examine(memoryview(data)[:whole], work, path.name, order)
            rest = data[whole:]
            if not whole and len(rest) > 2**31:
                break
    if rest.strip(b"\0"):  # preallocated space is zeros
        yield _one_fault(
            work, max(order.next_offset, 0), f"{path.name} ends in {len(rest)} bytes of no batch"
        )


def _whole(data: bytes) -> int:
    """How many bytes hold whole batches, by the lengths that the batches tell."""
    position = 0
    while len(data) - position >= HEADER_BYTES:
        size = int.from_bytes(data[position + 8 : position + 12], "big", signed=True) + 12
        if size < HEADER_BYTES or position + size > len(data):
            break
        position += size
    return position


def examine(data: memoryview, work: AuditedReplica, place: str, order: _Order) -> pa.RecordBatch:
    """A row for each batch, with the first thing that is wrong with it."""
    raw = np.frombuffer(data, dtype=np.uint8)
    raw.flags.writeable = False
    table = np.empty((len(raw) // HEADER_BYTES + 1, kernels.BATCH_FIELDS), dtype=np.int64)
    count = kernels.index_batches(raw, table)
    if count < 0:
        return _one_fault(work, max(order.next_offset, 0), f"{place}: a batch header makes no sense")
    table = table[:count]
    faults = [_fault(data, row, order) for row in table]
    positions = table[:, kernels.POSITION].tolist()
    epochs = [_epoch(data, position) for position in positions]
    columns: list[Any] = [
        pa.array([work.replica] * count, pa.string()),
        pa.array([work.topic] * count, pa.string()),
        pa.array(np.full(count, work.partition, dtype=np.int32)),
        pa.array(table[:, kernels.BASE_OFFSET]),
        pa.array(table[:, kernels.LAST_OFFSET]),
        pa.array(table[:, kernels.RECORD_COUNT]),
        pa.array(epochs, pa.int32()),
        pa.array(table[:, kernels.CRC]),
        pa.array(table[:, kernels.SIZE]),
        pa.array(table[:, kernels.MAX_TIMESTAMP]),
        pa.array(faults, pa.string()),
        pa.array([place] * count, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _epoch(data: memoryview, position: int) -> int:
    at = position + LEADER_EPOCH_OFFSET
    return int.from_bytes(data[at : at + 4], "big", signed=True)


def _fault(data: memoryview, row: NDArray[np.int64], order: _Order) -> str | None:
    position, size = int(row[kernels.POSITION]), int(row[kernels.SIZE])
    base, last = int(row[kernels.BASE_OFFSET]), int(row[kernels.LAST_OFFSET])
    expected, order.next_offset = order.next_offset, max(order.next_offset, last + 1)
    if crc32c(data[position + ATTRIBUTES_OFFSET : position + size]) != int(row[kernels.CRC]):
        return f"the bytes of the batch at offset {base} do not match their checksum"
    if base < expected:
        return f"the batch at offset {base} stands behind offset {expected - 1}"
    try:
        offsets = _record_offsets(data[position : position + size])
    except RequestError as error:
        return f"the batch at offset {base} cannot be decoded: {error}"
    if len(offsets) and (offsets[0] < base or offsets[-1] > last or bool((np.diff(offsets) <= 0).any())):
        return f"the records of the batch at offset {base} are not in order"
    return None


def _record_offsets(batch: memoryview) -> NDArray[np.int64]:
    found = [each.column(0).to_numpy() for each in Scanner(("offset",), "", 0).scan(batch, RecordWindow())]
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _one_fault(work: AuditedReplica, offset: int, why: str) -> pa.RecordBatch:
    values = [work.replica, work.topic, work.partition, offset, offset - 1, 0, -1, 0, 0, -1, why, ""]
    return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, values, strict=True))], schema=SCHEMA)
