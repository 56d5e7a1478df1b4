"""ElectLeaders: give leadership to preferred replicas, or to any replica at all (KIP-460)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from chronik.cluster.preferred_leaders import elect_preferred, elect_unclean
from chronik.metadata.commands import ChangePartition
from chronik.metadata.state import ClusterState
from chronik.metadata.values import PartitionRegistration, Topic
from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_cluster
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.elect_leaders.v2.request import ElectLeadersRequest

_PREFERRED: Final = 0
_UNCLEAN: Final = 1

Elect = Callable[[ClusterState, Topic, PartitionRegistration], ChangePartition]


def _on_error(request: ElectLeadersRequest, code: ErrorCode, message: str | None) -> Reply:
    asked = [] if request.topic_partitions is None else request.topic_partitions
    results = {
        TopicPartition(topic.topic, number): (code, message) for topic in asked for number in topic.partitions
    }
    return _reply(results, code)


@handles(ApiKey.ELECT_LEADERS, versions=(0, 2), needs=on_cluster(Operation.ALTER), on_error=_on_error)
async def elect_leaders(request: ElectLeadersRequest, ctx: RequestContext) -> Reply:
    election_type = request.election_type
    if election_type not in (_PREFERRED, _UNCLEAN):
        raise RequestError(ErrorCode.invalid_request, f"Unknown election type {election_type}.")
    elect: Elect = elect_preferred if election_type == _PREFERRED else elect_unclean
    state = ctx.services.state
    results: dict[TopicPartition, tuple[ErrorCode, str | None]] = {}
    elections: list[tuple[TopicPartition, ChangePartition]] = []
    for tp in _asked(request, state):
        try:
            elections.append((tp, _plan(state, tp, elect)))
            results[tp] = ErrorCode.none, None
        except RequestError as error:
            # A request for all partitions does not list those that need no election.
            if request.topic_partitions is not None or error.code != ErrorCode.election_not_needed:
                results[tp] = error.code, error.message
    timeout_s = max(0.0, request.timeout.total_seconds())
    for tp, refused in await ctx.services.metadata.submit_each(elections, timeout_s=timeout_s):
        results[tp] = refused.code, refused.message
    return _reply(results, ErrorCode.none)


def _asked(request: ElectLeadersRequest, state: ClusterState) -> list[TopicPartition]:
    if request.topic_partitions is None:
        return [
            TopicPartition(name, number)
            for name, topic in sorted(state.topics.items())
            for number in range(len(topic.partitions))
        ]
    return [
        TopicPartition(topic.topic, number)
        for topic in request.topic_partitions
        for number in topic.partitions
    ]


def _plan(state: ClusterState, tp: TopicPartition, elect: Elect) -> ChangePartition:
    topic, partition = state.topics.get(tp.topic), state.partition(tp)
    if topic is None or partition is None:
        raise RequestError(ErrorCode.unknown_topic_or_partition, f"There is no {tp}.")
    return elect(state, topic, partition)


def _reply(results: dict[TopicPartition, tuple[ErrorCode, str | None]], code: ErrorCode) -> Reply:
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp, (error_code, message) in results.items():
        topics.setdefault(tp.topic, []).append(
            {"partition_id": tp.partition, "error_code": error_code, "error_message": message}
        )
    return reply(
        error_code=code,
        replica_election_results=[
            {"topic": name, "partition_result": partitions} for name, partitions in topics.items()
        ],
    )
