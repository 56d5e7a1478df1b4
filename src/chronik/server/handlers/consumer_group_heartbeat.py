"""ConsumerGroupHeartbeat: the whole protocol of KIP-848 groups for their members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chronik.groups.assignors import Partitions
from chronik.groups.consumer_messages import ConsumerHeartbeat
from chronik.model import ErrorCode, RequestError
from chronik.security.acls import Operation, ResourceType
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import all_of, asks, on_group
from chronik.wire.api import ApiKey
from chronik.wire.schema import in_ms

if TYPE_CHECKING:
    from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest, TopicPartitions


@handles(
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    versions=(0, 1),
    needs=all_of(on_group(Operation.READ), asks((Operation.DESCRIBE, ResourceType.TOPIC))),
    unavailable=ErrorCode.coordinator_not_available,
)
async def consumer_group_heartbeat(request: ConsumerGroupHeartbeatRequest, ctx: RequestContext) -> Reply:
    # From version 1 on members choose their id themselves (KIP-1082).
    if not request.member_id and (request.member_epoch != 0 or ctx.api_version >= 1):
        raise RequestError(ErrorCode.invalid_request, "The member id is empty.")
    if request.instance_id == "" or request.rack_id == "":
        raise RequestError(ErrorCode.invalid_request, "An instance id or rack id is null or not empty.")
    names = request.subscribed_topic_names
    for topic in names or ():
        ctx.access.require(Operation.DESCRIBE, ResourceType.TOPIC, topic)
    beat = ConsumerHeartbeat(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=in_ms(request.rebalance_timeout),
        topic_names=None if names is None else tuple(names),
        topic_regex=request.subscribed_topic_regex,
        visible=None if ctx.access.is_open else ctx.access.visible,
        server_assignor=request.server_assignor,
        owned=_owned(request.topic_partitions),
        client_id=ctx.client_id or "",
        client_host=f"/{ctx.connection.peer_host}",
    )
    result = await ctx.services.groups.consumer_heartbeat(request.group_id, beat)
    assignment = None
    if result.assignment is not None:
        assignment = {"topic_partitions": grouped(result.assignment)}
    return reply(
        error_code=ErrorCode.none,
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval=result.heartbeat_interval_ms,
        assignment=assignment,
    )


def _owned(topics: tuple[TopicPartitions, ...] | None) -> Partitions | None:
    if topics is None:
        return None
    # The zero id is decoded as None. No topic has it.
    return frozenset(
        (topic.topic_id, index)
        for topic in topics
        if topic.topic_id is not None
        for index in topic.partitions
    )


def grouped(partitions: Partitions) -> list[dict[str, Any]]:
    """Partitions grouped by topic, in the fields of the protocol."""
    topics = sorted({topic for topic, _ in partitions})
    return [
        {
            "topic_id": topic,
            "partitions": sorted(index for owner, index in partitions if owner == topic),
        }
        for topic in topics
    ]
