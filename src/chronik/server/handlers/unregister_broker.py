"""UnregisterBroker: forget a broker that is gone; it is known again when it starts again."""

from __future__ import annotations

from typing import Any

from chronik.metadata.commands import UnregisterBroker
from chronik.model import ErrorCode
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.wire.api import ApiKey


@handles(ApiKey.UNREGISTER_BROKER, versions=(0, 0))
async def unregister_broker(request: Any, ctx: RequestContext) -> Reply:
    await ctx.services.metadata.submit(UnregisterBroker(broker_id=request.broker_id))
    return reply(error_code=ErrorCode.none)
