"""Transaction markers: the control batches that tell each partition how a transaction ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from chronik.log_lines import RepeatingLine
from chronik.metadata.store import MetadataStore
from chronik.model import NO_LEADER, ErrorCode, NodeId, RequestError, StorageError, TopicPartition
from chronik.records.writer import build_marker
from chronik.replication.partition import ACKS_ALL, Partition
from chronik.transactions.transaction import V2

log = logging.getLogger(__name__)
_markers_wait: Final = RepeatingLine(log, logging.WARNING, "markers of producer %d wait for %s")
_not_taken: Final = RepeatingLine(log, logging.INFO, "broker %d did not take markers: %s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    version: int = 0
    """Version of the transaction. From `V2` on, `producer_epoch` is the one after the transaction's own."""


Results = Mapping[TopicPartition, ErrorCode]

RETRY_S: Final = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)

_DONE: Final = frozenset(
    {
        ErrorCode.none,
        # The partition has seen a newer epoch of this producer: its transaction is over there already.
        ErrorCode.invalid_producer_epoch,
        ErrorCode.producer_fenced,
        ErrorCode.unsupported_for_message_format,
    }
)


class MarkerPeers(Protocol):
    """Other brokers, for partitions and coordinators that this node does not lead."""

    async def write_markers(self, node_id: NodeId, marker: Marker, tps: Iterable[TopicPartition]) -> Results:
        """Raises Unavailable when the broker cannot be asked."""
        ...


class Leaders(Protocol):
    def leader(self, tp: TopicPartition) -> Partition: ...


class MarkerWriter:
    def __init__(
        self,
        *,
        node_id: NodeId,
        metadata: MetadataStore,
        replicas: Leaders,
        peers: MarkerPeers,
        now_ms: Callable[[], int],
        on_marker: Callable[[TopicPartition, Marker], None],
    ) -> None:
        """`on_marker` hears of every marker that is durable in a partition of this node."""
        self._node_id = node_id
        self._metadata = metadata
        self._replicas = replicas
        self._peers = peers
        self._now_ms = now_ms
        self._on_marker = on_marker

    async def write_all(self, marker: Marker, tps: Iterable[TopicPartition]) -> None:
        """Returns when every partition has the marker, however long that takes."""
        left = dict.fromkeys(sorted(tps))
        attempt = 0
        while left:
            results = await self._write(marker, left)
            for tp, code in results.items():
                if code is ErrorCode.transaction_coordinator_fenced:
                    raise RequestError(
                        code, f"{tp} knows a newer coordinator of producer {marker.producer_id}"
                    )
                if code in _DONE:
                    left.pop(tp, None)
            if left:
                if attempt >= len(RETRY_S):
                    _markers_wait(marker.producer_id, marker.producer_id, _names(left))
                await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
                attempt += 1

    async def _write(self, marker: Marker, tps: Iterable[TopicPartition]) -> Results:
        """One attempt, all leaders at once."""
        results: dict[TopicPartition, ErrorCode] = {}
        by_leader: dict[NodeId, list[TopicPartition]] = {}
        for tp in tps:
            assignment = self._metadata.state.partition(tp)
            if assignment is None:
                results[tp] = ErrorCode.none  # deleted: nobody will ever read it
            elif assignment.leader == NO_LEADER:
                results[tp] = ErrorCode.leader_not_available
            else:
                by_leader.setdefault(assignment.leader, []).append(tp)
        for found in await asyncio.gather(
            *(self._ask(node, marker, mine) for node, mine in by_leader.items())
        ):
            results.update(found)
        return results

    async def _ask(self, node_id: NodeId, marker: Marker, tps: list[TopicPartition]) -> Results:
        if node_id == self._node_id:
            return await self.write_local(marker, tps)
        try:
            return await self._peers.write_markers(node_id, marker, tps)
        except Exception as error:
            _not_taken(node_id, node_id, error)
            return dict.fromkeys(tps, ErrorCode.network_exception)

    async def write_local(self, marker: Marker, tps: Iterable[TopicPartition]) -> Results:
        """Write to partitions that this node leads; one code each."""
        waiting = {tp: self._append(marker, tp) for tp in tps}
        return {tp: await future for tp, future in waiting.items()}

    def _append(self, marker: Marker, tp: TopicPartition) -> asyncio.Future[ErrorCode]:
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def acknowledged(error: RequestError | None) -> None:
            if error is None:
                self._on_marker(tp, marker)
            if not answer.done():
                answer.set_result(ErrorCode.none if error is None else error.code)

        try:
            partition = self._replicas.leader(tp)
            producers = partition.log.producers
            if producers is not None:
                producers.check_marker(
                    producer_id=marker.producer_id,
                    producer_epoch=marker.producer_epoch,
                    coordinator_epoch=marker.coordinator_epoch,
                    raises_epoch=marker.version >= V2,
                )
            now_ms = self._now_ms()
            batch = build_marker(
                commit=marker.is_commit,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                timestamp_ms=now_ms,
            )
            appended = partition.append_internal(batch, now_ms)
        except RequestError as error:
            answer.set_result(error.code)
        except StorageError:
            answer.set_result(ErrorCode.kafka_storage_error)
        else:
            partition.when_acked(appended.next_offset, ACKS_ALL, acknowledged)
        return answer


def _names(tps: Iterable[TopicPartition]) -> str:
    return ", ".join(sorted(str(tp) for tp in tps))
