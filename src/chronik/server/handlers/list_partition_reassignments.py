"""ListPartitionReassignments: partitions whose replicas are on the move."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.model import ErrorCode
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_cluster
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions=(0, 0), needs=on_cluster(Operation.DESCRIBE))
async def list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, ctx: RequestContext
) -> Reply:
    state = ctx.services.state
    wanted: dict[str, frozenset[int] | None]
    if request.topics is None:
        wanted = dict.fromkeys(sorted(state.topics))
    else:
        wanted = {topic.name: frozenset(topic.partition_indexes) for topic in request.topics}
    topics = []
    for name, numbers in wanted.items():
        topic = state.topics.get(name)
        moving = [
            {
                "partition_index": partition.partition,
                "replicas": partition.replicas,
                "adding_replicas": partition.adding,
                "removing_replicas": partition.removing,
            }
            for partition in (topic.partitions if topic is not None else ())
            if (partition.adding or partition.removing)
            and (numbers is None or partition.partition in numbers)
        ]
        if moving:
            topics.append({"name": name, "partitions": moving})
    return reply(error_code=ErrorCode.none, topics=topics)
