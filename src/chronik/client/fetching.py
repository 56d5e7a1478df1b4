"""The Fetch request and what its answer means. Values only, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chronik.client.metadata import Metadata
from chronik.client.offsets import by_topic
from chronik.client.visibility import AbortedTransaction, visible_batches
from chronik.model import NO_EPOCH, ErrorCode, RequestError, TopicPartition
from chronik.records.batch import check_batch, headers
from chronik.records.reader import Record, Row, Unreadable, read_rows, unreadable_batch

if TYPE_CHECKING:
    from kio.schema.fetch.v12.response import FetchResponse, PartitionData


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    read_committed: bool = False
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 32 * 1024 * 1024
    partition_max_bytes: int = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Whole record batches of one partition, as they lie in the log."""

    tp: TopicPartition
    fetch_offset: int
    """Records below it, at the front of the first batch, were not asked for."""
    next_offset: int
    data: memoryview
    aborted: tuple[AbortedTransaction, ...]
    """Transactions to leave out; empty unless only committed records were asked for."""
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int

    def records(self) -> Iterator[Record]:
        """What a reader sees of it, decoded; raises RequestError(corrupt_message) for a wrong checksum.

        A batch that cannot be decoded although its checksum is right is one record that says so: whoever
        wrote it, reading goes on behind it.

        Each batch is decoded when its first record is asked for: together they may hold any number.
        """
        for rows in self._batches():
            if isinstance(rows, Unreadable):
                yield Record(
                    key=None,
                    value=None,
                    timestamp_ms=rows.timestamp_ms,
                    offset=rows.last_offset,
                    unreadable=rows,
                )
                continue
            for offset, timestamp_ms, key, value, pairs in rows:
                yield Record(key=key, value=value, headers=pairs, timestamp_ms=timestamp_ms, offset=offset)

    def rows(self, on_unreadable: Callable[[Unreadable], None] | None = None) -> Iterator[Row]:
        """The same without an object for each, for those who read very many.

        Batches that cannot be decoded are reported to `on_unreadable`; without it, the first one raises.
        """
        for rows in self._batches(skips=on_unreadable is not None):
            if isinstance(rows, Unreadable):
                assert on_unreadable is not None
                on_unreadable(rows)
            else:
                yield from rows

    def _batches(self, *, skips: bool = True) -> Iterator[Iterator[Row] | Unreadable]:
        for position, header in visible_batches(self.data, self.aborted):
            check_batch(self.data, position)
            try:
                rows = read_rows(self.data, position)
            except RequestError as error:
                if not skips:
                    raise
                yield unreadable_batch(header, error)
                continue
            if header.base_offset < self.fetch_offset:
                rows = (row for row in rows if row[0] >= self.fetch_offset)
            yield rows


def fetch_fields(
    positions: Mapping[TopicPartition, int], metadata: Metadata, options: FetchOptions
) -> dict[str, object]:
    return {
        "replica_id": -1,
        "max_wait": options.max_wait_ms,
        "min_bytes": options.min_bytes,
        "max_bytes": options.max_bytes,
        "isolation_level": int(options.read_committed),
        "session_id": 0,
        "session_epoch": -1,
        "forgotten_topics_data": [],
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": tp.partition,
                        "current_leader_epoch": _leader_epoch(metadata, tp),
                        "fetch_offset": positions[tp],
                        "partition_max_bytes": options.partition_max_bytes,
                    }
                    for tp in tps
                ],
            }
            for topic, tps in by_topic(positions).items()
        ],
    }


def _leader_epoch(metadata: Metadata, tp: TopicPartition) -> int:
    """The epoch we know goes along, so that a deposed leader or a stale client finds out (KIP-320)."""
    topic = metadata.topics.get(tp.topic)
    partition = topic.partitions.get(tp.partition) if topic is not None else None
    return partition.leader_epoch if partition is not None else NO_EPOCH


def unpack(
    response: FetchResponse, positions: Mapping[TopicPartition, int]
) -> tuple[list[Fetched], dict[TopicPartition, RequestError]]:
    """What came for each partition (possibly no bytes), and what went wrong for the others."""
    if response_error := getattr(response, "error_code", ErrorCode.none):
        error = RequestError(response_error)
        return [], dict.fromkeys(positions, error)
    fetched: list[Fetched] = []
    errors: dict[TopicPartition, RequestError] = {}
    for topic in response.responses:
        for partition in topic.partitions:
            tp = TopicPartition(topic.topic, partition.partition_index)
            if tp not in positions:
                continue
            try:
                fetched.append(_fetched(tp, positions[tp], partition))
            except RequestError as error:
                errors[tp] = error
    return fetched, errors


def _fetched(tp: TopicPartition, fetch_offset: int, partition: PartitionData) -> Fetched:
    code = partition.error_code
    if code != ErrorCode.none:
        raise RequestError(code, f"{tp} at offset {fetch_offset}: {code.name.replace('_', ' ')}")
    data = memoryview(partition.records or b"")
    end, next_offset = 0, fetch_offset
    for position, header in headers(data):
        end, next_offset = position + header.size_bytes, max(next_offset, header.next_offset)
    if len(data) and not end:
        raise RequestError(ErrorCode.corrupt_message, f"{tp} at offset {fetch_offset}: no whole batch came")
    return Fetched(
        tp=tp,
        fetch_offset=fetch_offset,
        next_offset=next_offset,
        data=data[:end],
        aborted=tuple(
            AbortedTransaction(aborted.first_offset, aborted.producer_id)
            for aborted in partition.aborted_transactions or ()
        ),
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start_offset=getattr(partition, "log_start_offset", -1),
    )
