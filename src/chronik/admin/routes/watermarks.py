"""How far a topic is committed, told when it moves: for whoever follows a topic without polling."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from chronik.admin.context import AdminContext
from chronik.admin.endpoint import HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.admin.needs import on_topic
from chronik.admin.routes.topics import known_topic
from chronik.model import Int32, Int64, TopicPartition
from chronik.security.acls import Operation

WAIT_MS_MAX = 20_000


class WatermarksQuery(msgspec.Struct, frozen=True, kw_only=True):
    seen: Int64 | None = None
    """The `total` of an earlier answer: the call waits while it is still the same."""
    wait_ms: Int32 = WAIT_MS_MAX
    """How long it waits at most."""


class Watermarks(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    total: int
    """The sum of the high watermarks below: it grows whenever one of them moves."""
    high_watermarks: dict[str, int]
    """Per partition that has a replica on this node."""
    is_complete: bool
    """Every partition has one here. The call is not woken by those that have not."""
    is_deleted: bool = False
    """The topic was deleted while the call waited."""


@endpoint(
    "GET",
    "/admin/topics/{name}/watermarks",
    needs=on_topic(Operation.DESCRIBE),
    summary="High watermarks of a topic, when they move",
    query=WatermarksQuery,
    answer=Watermarks,
)
async def watermarks(call: HttpCall) -> Watermarks:
    """Answers at once without `seen`, else when records have been committed since."""
    query: WatermarksQuery = call.query
    if not 0 <= query.wait_ms <= WAIT_MS_MAX:
        raise HttpError(400, "invalid_query", f"wait_ms is 0 to {WAIT_MS_MAX}.")
    context, name = call.context, call.path["name"]
    found = _watermarks(context, name)
    if found.total == query.seen:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(query.wait_ms / 1000):
                await context.watermark_waits.moved(name)
        watermarks.admit_again(call)
        if name not in context.state.topics:
            return msgspec.structs.replace(found, is_deleted=True)
        found = _watermarks(context, name)
    return found


def _watermarks(context: AdminContext, name: str) -> Watermarks:
    topic = known_topic(context, name)
    here = {
        one.partition: replica.high_watermark
        for one in topic.partitions
        if (replica := context.services.replicas.get(TopicPartition(name, one.partition))) is not None
    }
    return Watermarks(
        topic=name,
        total=sum(here.values()),
        high_watermarks={str(number): offset for number, offset in here.items()},
        is_complete=len(here) == len(topic.partitions),
    )
