"""Bytes by which a request makes a group grow in memory. A member that changes nothing adds none."""

from __future__ import annotations

from chronik.groups.classic_group import ClassicGroup
from chronik.groups.classic_member import Member
from chronik.groups.classic_messages import Join
from chronik.groups.consumer_group import ConsumerGroup
from chronik.groups.consumer_member import ConsumerMember
from chronik.groups.consumer_messages import JOIN_EPOCH, ConsumerHeartbeat
from chronik.groups.shard import AnyGroup
from chronik.groups.subscriptions import subscription_bytes, texts_bytes


def join_growth_bytes(group: AnyGroup | None, join: Join) -> int:
    """What a JoinGroup needs beyond what its member has already."""
    joining = Member.joining(join, join.member_id).size_bytes()
    present = None
    if isinstance(group, ClassicGroup):
        present = group.members.get(group.static_id(join.instance_id) or join.member_id)
    return joining if present is None else joining + len(present.assignment) - present.size_bytes()


def heartbeat_growth_bytes(group: AnyGroup | None, beat: ConsumerHeartbeat) -> int:
    """What a ConsumerGroupHeartbeat needs beyond what its member has already."""
    present = group.members.get(beat.member_id) if isinstance(group, ConsumerGroup) else None
    needed = 0
    if present is None:
        if beat.member_epoch != JOIN_EPOCH:
            return 0  # refused, or on its way out
        present = ConsumerMember(member_id=beat.member_id)
        needed = present.size_bytes()
    for new, old in (
        (beat.instance_id, present.instance_id),
        (beat.rack_id, present.rack_id),
        (beat.client_id, present.client_id),
        (beat.client_host, present.client_host),
        (beat.topic_regex, present.topic_regex),
        (beat.server_assignor, present.server_assignor),
    ):
        if new is not None:
            needed += texts_bytes(new) - texts_bytes(old)
    if beat.topic_names is not None:
        needed += subscription_bytes(beat.topic_names) - subscription_bytes(present.topic_names)
    return needed
