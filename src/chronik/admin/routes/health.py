"""Is the node alive, and does it serve clients?"""

from __future__ import annotations

import msgspec

from chronik import __version__
from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.admin.scrape import is_ready, why_not_ready
from chronik.model import NodeId
from chronik.server.gate import NOTHING


class Health(msgspec.Struct, frozen=True):
    status: str
    node_id: NodeId
    version: str
    up_seconds: float


@endpoint(
    "GET",
    "/health",
    needs=NOTHING,
    summary="The process is alive",
    answer=Health,
    always=True,
    access=HttpAccess.HEALTH,
)
async def health(call: HttpCall) -> Health:
    """Answers as long as the event loop turns, whatever the state of the cluster."""
    context = call.context
    return Health("ok", context.node_id, __version__, round(context.up_seconds, 3))


@endpoint(
    "GET",
    "/ready",
    needs=NOTHING,
    summary="The node serves clients",
    answer=Health,
    always=True,
    access=HttpAccess.HEALTH,
)
async def ready(call: HttpCall) -> Health:
    """503 with the reason until the node is registered, somebody leads the metadata log, and the node's
    replicas have caught up since it started: then the next node may be stopped."""
    if not is_ready(call.context):
        raise HttpError(503, "not_ready", why_not_ready(call.context))
    return Health("ready", call.context.node_id, __version__, round(call.context.up_seconds, 3))
