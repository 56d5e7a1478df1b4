"""Do the replicas of a partition hold the same? Every one of them is asked, not the leader alone."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from chronik.client import ClientOptions, Connection
from chronik.client.apis import FETCH, LIST_OFFSETS
from chronik.client.options import BrokerAddress as ClientAddress
from chronik.config_file import Address
from chronik.model import ErrorCode, NodeId, RequestError, TopicPartition
from chronik.records.batch import headers
from chronik.records.reader import Record, read_records

LATEST: Final = -1
EARLIEST: Final = -2
DEBUGGER: Final = -2
"""The replica id of somebody who wants a replica's own view, leader or not."""
FETCH_BYTES: Final = 8 * 1024 * 1024
POLL_SECONDS: Final = 0.1


class ReplicasDiffer(AssertionError):
    """Replicas of a partition do not hold the same; the message says where they part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A partition as one replica has it."""

    log_start_offset: int
    high_watermark: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class _Batch:
    base_offset: int
    next_offset: int
    digest: bytes


class ReplicaReader:
    """Reads one node's replicas, whether they lead or follow."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, address: Address) -> ReplicaReader:
        options = ClientOptions(client_id="chronik-testing", request_timeout_ms=10_000)
        return cls(await Connection.open(ClientAddress(address.host, address.port or 0), options))

    def close(self) -> None:
        self._connection.close()

    async def view(self, tp: TopicPartition) -> ReplicaView:
        start = await self._offset(tp, EARLIEST)
        end = await self._offset(tp, LATEST)
        found = await self._fetch(tp, start)
        return ReplicaView(log_start_offset=start, high_watermark=found.high_watermark, log_end_offset=end)

    async def batches(self, tp: TopicPartition, start: int, end: int) -> list[_Batch]:
        """What lies between two offsets, batch by batch, byte by byte."""
        batches: list[_Batch] = []
        position = start
        while position < end:
            data = memoryview((await self._fetch(tp, position)).records or b"")
            for at, header in headers(data):
                raw = data[at : at + header.size_bytes]
                if header.base_offset < end:
                    digest = hashlib.blake2b(raw, digest_size=16).digest()
                    batches.append(_Batch(header.base_offset, header.next_offset, digest))
                position = header.next_offset
            if not len(data):
                raise ReplicasDiffer(f"{tp}: nothing can be read at {position}, below the watermark {end}")
        return batches

    async def records(self, tp: TopicPartition) -> list[Record]:
        """Every record below the watermark that this replica knows of; compaction may have left gaps."""
        position = await self._offset(tp, EARLIEST)
        found: list[Record] = []
        while True:
            answer = await self._fetch(tp, position)
            data = memoryview(answer.records or b"")
            for at, header in headers(data):
                if header.next_offset > position and not header.is_control:
                    found += read_records(data[at : at + header.size_bytes])
                position = max(position, header.next_offset)
            if not len(data) or position >= answer.high_watermark:
                return found

    async def _offset(self, tp: TopicPartition, timestamp: int) -> int:
        one = {"partition_index": tp.partition, "current_leader_epoch": -1, "timestamp": timestamp}
        fields = {
            "replica_id": DEBUGGER,
            "isolation_level": 0,
            "topics": [{"name": tp.topic, "partitions": [one]}],
        }
        answer = (await self._connection.request(LIST_OFFSETS, fields)).topics[0].partitions[0]
        if answer.error_code != ErrorCode.none:
            raise RequestError(answer.error_code, f"{tp}: {answer.error_code.name}")
        return int(answer.offset)

    async def _fetch(self, tp: TopicPartition, offset: int) -> Any:
        one = {
            "partition": tp.partition,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "partition_max_bytes": FETCH_BYTES,
        }
        fields = {
            "replica_id": -1,
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": FETCH_BYTES,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "forgotten_topics_data": [],
            "topics": [{"topic": tp.topic, "partitions": [one]}],
        }
        answer = (await self._connection.request(FETCH, fields)).responses[0].partitions[0]
        if answer.error_code != ErrorCode.none:
            raise RequestError(answer.error_code, f"{tp} at {offset}: {answer.error_code.name}")
        return answer


async def compare(
    addresses: Mapping[NodeId, Address],
    replicas: Mapping[TopicPartition, Iterable[NodeId]],
    *,
    timeout_s: float,
) -> None:
    """Wait until every replica has the same offsets and watermark, then compare the bytes below it."""
    wanted = sorted({node_id for nodes in replicas.values() for node_id in nodes})
    opened = await asyncio.gather(*(ReplicaReader.open(addresses[node_id]) for node_id in wanted))
    readers = dict(zip(wanted, opened, strict=True))
    deadline = asyncio.get_running_loop().time() + timeout_s
    try:
        for tp, nodes in sorted(replicas.items()):
            await _compare_one(tp, {node_id: readers[node_id] for node_id in nodes}, deadline)
    finally:
        for reader in readers.values():
            reader.close()


async def _compare_one(tp: TopicPartition, readers: Mapping[NodeId, ReplicaReader], deadline: float) -> None:
    """Again, if a node does not answer for its replica for a moment: leadership may move meanwhile."""
    while True:
        view = await _same_view(tp, readers, deadline)
        try:
            return await _compare_bytes(tp, readers, view)
        except RequestError:
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(POLL_SECONDS)


async def _compare_bytes(
    tp: TopicPartition, readers: Mapping[NodeId, ReplicaReader], view: ReplicaView
) -> None:
    if view.log_start_offset == view.high_watermark:
        return
    bounds = (view.log_start_offset, view.high_watermark)
    first: tuple[NodeId, list[_Batch]] | None = None
    for node_id, reader in readers.items():
        batches = await reader.batches(tp, *bounds)
        if first is None:
            first = (node_id, batches)
        elif batches != first[1]:
            pairs = zip(first[1], batches, strict=False)
            at = next((ours.base_offset for ours, theirs in pairs if ours != theirs), "the end")
            raise ReplicasDiffer(f"{tp}: nodes {first[0]} and {node_id} hold different bytes from {at} on")


async def _same_view(
    tp: TopicPartition, readers: Mapping[NodeId, ReplicaReader], deadline: float
) -> ReplicaView:
    loop = asyncio.get_running_loop()
    while True:
        views: dict[NodeId, ReplicaView | str] = {}
        for node_id, reader in readers.items():
            try:
                views[node_id] = await reader.view(tp)
            except RequestError as error:
                views[node_id] = str(error)
        found = set(views.values())
        if len(found) == 1:
            (view,) = found
            if isinstance(view, ReplicaView) and view.high_watermark == view.log_end_offset:
                return view
        if loop.time() > deadline:
            listed = "; ".join(f"node {node_id}: {view}" for node_id, view in views.items())
            raise ReplicasDiffer(f"{tp}: the replicas do not come to the same state: {listed}")
        await asyncio.sleep(POLL_SECONDS)
