"""ElectLeaders: give leadership to preferred replicas, or to any replica at all (KIP-460)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from chronik.cluster.leadership import elect_preferred, elect_unclean
from chronik.metadata.commands import Batch, ChangePartition
from chronik.metadata.state import ClusterState
from chronik.metadata.values import Partition, Topic
from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.wire.api import ApiKey

_PREFERRED: Final = 0
_UNCLEAN: Final = 1

Elect = Callable[[ClusterState, Topic, Partition], ChangePartition]


def _on_error(request: Any, code: ErrorCode, message: str | None) -> Reply:
    asked = [] if request.topic_partitions is None else request.topic_partitions
    results = {
        TopicPartition(topic.topic, number): (code, message) for topic in asked for number in topic.partitions
    }
    return _reply(results, code)


@handles(ApiKey.ELECT_LEADERS, versions=(0, 2), on_error=_on_error)
async def elect_leaders(request: Any, ctx: RequestContext) -> Reply:
    election_type = getattr(request, "election_type", _PREFERRED)
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
            # Who asks for all partitions is told of those that were elected, and of failures.
            if request.topic_partitions is not None or error.code != ErrorCode.election_not_needed:
                results[tp] = error.code, error.message
    if elections:
        batch = Batch(commands=tuple(change for _, change in elections))
        timeout_s = max(0.0, request.timeout.total_seconds())
        outcome = await ctx.services.metadata.submit(batch, timeout_s=timeout_s)
        for (tp, _), part in zip(elections, outcome.parts, strict=True):
            if part.refused is not None:
                results[tp] = part.refused.code, part.refused.message
    return _reply(results, ErrorCode.none)


def _asked(request: Any, state: ClusterState) -> list[TopicPartition]:
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
