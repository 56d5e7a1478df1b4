"""DescribeQuorum: who votes on the metadata log and how far each one is (KIP-595)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chronik.cluster.status import MemberStatus, RaftStatus
from chronik.metadata.state import ClusterState
from chronik.model import METADATA_TOPIC, ErrorCode
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_cluster
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest

NAMES: Final = frozenset({"__cluster_metadata", METADATA_TOPIC})
"""Topic names for the metadata log: the one that Kafka clients use, and our own."""
LISTENER: Final = "CONTROLLER"


@handles(
    ApiKey.DESCRIBE_QUORUM,
    versions=(0, 2),
    needs=on_cluster(Operation.DESCRIBE),
    unavailable=ErrorCode.not_leader_or_follower,
)
async def describe_quorum(request: DescribeQuorumRequest, ctx: RequestContext) -> Reply:
    status = await ctx.services.quorum()
    now_ms = ctx.services.now_ms()
    return reply(
        error_code=ErrorCode.none,
        topics=[
            {
                "topic_name": topic.topic_name,
                "partitions": [
                    _partition(status, now_ms, one.partition_index)
                    if topic.topic_name in NAMES and one.partition_index == 0
                    else _unknown(one.partition_index)
                    for one in topic.partitions
                ],
            }
            for topic in request.topics
        ],
        nodes=_nodes(status, ctx.services.state),
    )


def _partition(status: RaftStatus, now_ms: int, index: int) -> dict[str, Any]:
    voters = [one for one in status.followers if one.is_voter]
    observers = [one for one in status.followers if not one.is_voter]
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "leader_id": status.leader_id,
        "leader_epoch": status.term,
        "high_watermark": status.last_committed_index,
        "current_voters": [_leader(status, now_ms), *(_replica(one, now_ms) for one in voters)],
        "observers": [_replica(one, now_ms) for one in observers],
    }


def _leader(status: RaftStatus, now_ms: int) -> dict[str, Any]:
    return {
        "replica_id": status.node_id,
        "log_end_offset": status.last_log_index,
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
    }


def _replica(one: MemberStatus, now_ms: int) -> dict[str, Any]:
    heard_ms = -1 if one.last_contact_ms is None else now_ms - one.last_contact_ms
    return {
        "replica_id": one.node_id,
        "log_end_offset": one.match_index,
        "last_fetch_timestamp": heard_ms,
        "last_caught_up_timestamp": heard_ms if one.lag_entries <= 0 else -1,
    }


def _unknown(index: int) -> dict[str, Any]:
    return {
        "partition_index": index,
        "error_code": ErrorCode.unknown_topic_or_partition,
        "leader_id": -1,
        "leader_epoch": -1,
        "high_watermark": -1,
        "current_voters": [],
        "observers": [],
    }


def _nodes(status: RaftStatus, state: ClusterState) -> list[dict[str, Any]]:
    members = [status.node_id, *(one.node_id for one in status.followers)]
    nodes = []
    for node_id in members:
        broker = state.brokers.get(node_id)
        raft = None if broker is None else broker.endpoints.get("raft")
        listeners = [] if raft is None else [{"name": LISTENER, "host": raft.host, "port": raft.port}]
        nodes.append({"node_id": node_id, "listeners": listeners})
    return nodes
