"""Moving the committed offsets of a group that nobody is in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.admin.needs import on_group
from chronik.admin.routes.topics import known_topic
from chronik.client.groups import Groups
from chronik.client.offsets import EARLIEST, LATEST
from chronik.client.resetting import ResetTarget, resolve_reset
from chronik.model import ErrorCode, Int32, Int64, RequestError, TopicPartition
from chronik.security.acls import Operation, ResourceType
from chronik.server.gate import all_of, asks


class TopicChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: str
    partitions: list[Int32] | None = None
    """Null: all of the topic."""


class NewOffsets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    to: Literal["earliest", "latest", "offset", "time", "shift"]
    value: Int64 | None = None
    """The offset, the time in milliseconds since 1970, or how far to shift (negative: back)."""
    topics: list[TopicChoice] | None = None
    """Null: every partition that the group has committed."""
    dry_run: bool = False


class OffsetMove(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    before: int | None
    """Null: the group has not committed there."""
    after: int


class OffsetMoves(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str
    dry_run: bool
    offsets: list[OffsetMove]


@endpoint(
    "POST",
    "/admin/groups/{group_id}/offsets",
    needs=all_of(on_group(Operation.READ), asks((Operation.READ, ResourceType.TOPIC))),
    summary="Move the committed offsets of a group that has no members",
    body=NewOffsets,
    answer=OffsetMoves,
    access=HttpAccess.CHANGE,
    about=lambda body: [choice.topic for choice in body.topics or ()],
)
async def reset_offsets(call: HttpCall) -> OffsetMoves:
    """Offsets stay inside the logs. With `dry_run`, what would change."""
    wanted: NewOffsets = call.body
    group_id = call.path["group_id"]
    target = _target(wanted)
    cluster = call.context.loopback.cluster()
    groups = Groups(cluster)
    committed = {tp: at.offset for tp, at in (await groups.offsets(group_id)).items() if at.offset >= 0}
    tps = _chosen(call, wanted.topics, committed)
    if not tps:
        raise HttpError(409, "nothing_committed", f"Group {group_id!r} has committed nothing: name topics.")
    for topic in {tp.topic for tp in tps}:
        call.access.require(Operation.READ, ResourceType.TOPIC, topic)
    moved = await resolve_reset(cluster, target, tps, committed)
    if not wanted.dry_run:
        try:
            await groups.commit(group_id, moved)
        except RequestError as error:
            if error.code in (ErrorCode.unknown_member_id, ErrorCode.rebalance_in_progress):
                raise HttpError(
                    409, "non_empty_group", f"Group {group_id!r} has members: stop them first."
                ) from None
            raise
    return OffsetMoves(
        group_id=group_id,
        dry_run=wanted.dry_run,
        offsets=[
            OffsetMove(topic=tp.topic, partition=tp.partition, before=committed.get(tp), after=offset)
            for tp, offset in moved.items()
        ],
    )


def _target(wanted: NewOffsets) -> ResetTarget:
    if wanted.to in ("earliest", "latest"):
        return ResetTarget(at=EARLIEST if wanted.to == "earliest" else LATEST)
    if wanted.value is None or (wanted.to != "shift" and wanted.value < 0):
        raise HttpError(400, "invalid_body", f"`to` is {wanted.to!r}: give a fitting `value`.")
    match wanted.to:
        case "offset":
            return ResetTarget(offset=wanted.value)
        case "time":
            return ResetTarget(at=wanted.value)
        case _:
            return ResetTarget(shift=wanted.value)


def _chosen(
    call: HttpCall, choices: list[TopicChoice] | None, committed: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    if choices is None:
        return sorted(committed)
    if len({choice.topic for choice in choices}) < len(choices):
        raise HttpError(400, "invalid_body", "A topic is named twice.")
    chosen: dict[TopicPartition, None] = {}
    for choice in choices:
        call.access.require(Operation.READ, ResourceType.TOPIC, choice.topic)
        there = range(len(known_topic(call.context, choice.topic).partitions))
        for number in there if choice.partitions is None else choice.partitions:
            if number not in there:
                raise RequestError(
                    ErrorCode.unknown_topic_or_partition,
                    f"{choice.topic} has the partitions 0 to {there[-1]}, not {number}.",
                )
            chosen[TopicPartition(choice.topic, number)] = None
    return list(chosen)
