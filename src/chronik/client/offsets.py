"""ListOffsets over many partitions: which offset stands at a time, the beginning or the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chronik.client.apis import LIST_OFFSETS
from chronik.client.cluster import Cluster
from chronik.client.retry import is_retriable
from chronik.model import NO_EPOCH, ErrorCode, NodeId, RequestError, TopicPartition, Unavailable

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAt:
    offset: int
    """-1: no record is as young as the time asked for."""
    timestamp_ms: int
    leader_epoch: int


async def list_offsets(
    cluster: Cluster, at: Mapping[TopicPartition, int], *, read_committed: bool = False
) -> dict[TopicPartition, OffsetAt]:
    """The offset at a timestamp (or LATEST, EARLIEST, MAX_TIMESTAMP) for each partition."""
    found: dict[TopicPartition, OffsetAt] = {}
    retry = cluster.retry()

    async def ask_rest() -> None:
        rest = [tp for tp in at if tp not in found]
        by_leader: dict[NodeId, list[TopicPartition]] = {}
        for tp, leader_id in (await cluster.leaders(rest)).items():
            by_leader.setdefault(leader_id, []).append(tp)
        errors = await asyncio.gather(
            *(_ask(cluster, node, tps, at, read_committed, found) for node, tps in by_leader.items())
        )
        raise_worst(error for group in errors for error in group)

    if at:
        await retry.run(ask_rest)
    return found


async def _ask(
    cluster: Cluster,
    node_id: NodeId,
    tps: Sequence[TopicPartition],
    at: Mapping[TopicPartition, int],
    read_committed: bool,
    found: dict[TopicPartition, OffsetAt],
) -> list[Exception]:
    fields = {
        "replica_id": -1,
        "isolation_level": int(read_committed),
        "topics": [
            {
                "name": topic,
                "partitions": [{"partition_index": tp.partition, "timestamp": at[tp]} for tp in group],
            }
            for topic, group in by_topic(tps).items()
        ],
    }
    try:
        response = await cluster.send(node_id, LIST_OFFSETS, fields)
    except (RequestError, Unavailable) as error:
        cluster.forget_leaders(tp.topic for tp in tps)
        return [error]
    errors: list[Exception] = []
    for topic in response.topics:
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition_index)
            if partition.error_code != ErrorCode.none:
                errors.append(RequestError(partition.error_code, f"{tp}: {partition.error_code.name}"))
                cluster.forget_leaders([tp.topic])
                continue
            found[tp] = OffsetAt(
                offset=partition.offset,
                timestamp_ms=partition.timestamp,
                leader_epoch=getattr(partition, "leader_epoch", -1),
            )
    return errors


def by_topic(tps: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    grouped: dict[str, list[TopicPartition]] = {}
    for tp in tps:
        grouped.setdefault(tp.topic, []).append(tp)
    return grouped


def commit_fields(offsets: Mapping[TopicPartition, int], metadata: str = "") -> list[dict[str, object]]:
    """The topics of an OffsetCommit or a TxnOffsetCommit."""
    return [
        {
            "name": topic,
            "partitions": [
                {
                    "partition_index": tp.partition,
                    "committed_offset": offsets[tp],
                    "committed_leader_epoch": NO_EPOCH,
                    "committed_metadata": metadata,
                }
                for tp in tps
            ],
        }
        for topic, tps in by_topic(offsets).items()
    ]


def raise_worst(errors: Iterable[Exception]) -> None:
    """Raise the first error that a retry cannot heal, else the first one, else nothing."""
    first: Exception | None = None
    for error in errors:
        if not is_retriable(error):
            raise error
        first = first or error
    if first is not None:
        raise first
