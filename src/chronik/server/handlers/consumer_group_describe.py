"""ConsumerGroupDescribe: epochs, members and assignments of KIP-848 groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chronik.groups.assignors import Partitions
from chronik.groups.consumer_group import ConsumerGroup
from chronik.groups.consumer_member import ConsumerMember
from chronik.model import ErrorCode, RequestError
from chronik.security.acls import Operation, ResourceType
from chronik.server.access import Access
from chronik.server.authorized import group_operations
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import all_of, asks, each
from chronik.server.handlers.consumer_group_heartbeat import grouped
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest

_MEMBER_TYPE_CONSUMER = 1
HIDDEN: Final = "The group has described topic(s) that the client is not authorized to describe."


def _on_error(request: ConsumerGroupDescribeRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(groups=[_failed(group_id, code, message) for group_id in request.group_ids])


def _failed(group_id: str, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": message,
        "group_id": group_id,
        "group_state": "",
        "group_epoch": -1,
        "assignment_epoch": -1,
        "assignor_name": "",
        "members": [],
    }


@handles(
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    versions=(0, 1),
    needs=all_of(
        each("group_ids", None, Operation.DESCRIBE, ResourceType.GROUP),
        asks((Operation.DESCRIBE, ResourceType.TOPIC)),
    ),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
)
async def consumer_group_describe(request: ConsumerGroupDescribeRequest, ctx: RequestContext) -> Reply:
    groups = []
    for group_id in request.group_ids:
        try:
            group = await ctx.services.groups.describe(group_id)
            if not isinstance(group, ConsumerGroup):
                raise RequestError(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")
            described = _describe(group, ctx)
        except RequestError as error:
            described = _failed(group_id, error.code, error.message)
        if not _may_see_topics(described, ctx.access):
            groups.append(_failed(group_id, ErrorCode.topic_authorization_failed, HIDDEN))
            continue
        described["authorized_operations"] = group_operations(
            ctx.access, group_id, request.include_authorized_operations
        )
        groups.append(described)
    return reply(groups=groups)


def _may_see_topics(described: dict[str, Any], access: Access) -> bool:
    """As in Apache Kafka: nothing is shown of a group that reads a topic which may not be described."""
    names = {
        topic["topic_name"]
        for member in described["members"]
        for field in ("assignment", "target_assignment")
        for topic in member[field]["topic_partitions"]
    }
    return all(access.permits(Operation.DESCRIBE, ResourceType.TOPIC, name) for name in sorted(names))


def _describe(group: ConsumerGroup, ctx: RequestContext) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "group_id": group.group_id,
        "group_state": group.state_name(),
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor(),
        "members": [
            _member(member, group.target.get(member.member_id, frozenset()), ctx)
            for member in group.members.values()
        ],
    }


def _member(member: ConsumerMember, target: Partitions, ctx: RequestContext) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": list(member.topic_names),
        "subscribed_topic_regex": member.topic_regex,
        "assignment": _assignment(member.assigned, ctx),
        "target_assignment": _assignment(target, ctx),
        "member_type": _MEMBER_TYPE_CONSUMER,
    }


def _assignment(partitions: Partitions, ctx: RequestContext) -> dict[str, Any]:
    names = ctx.services.state.topic_names
    return {
        "topic_partitions": [
            {**topic, "topic_name": names[topic["topic_id"]]}
            for topic in grouped(partitions)
            if topic["topic_id"] in names  # deleted meanwhile
        ]
    }
