"""UnregisterBroker: removes a broker that is gone. It registers again if it starts again.

A broker that is alive is refused: clients would lose it, and with the last one the whole cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.metadata.commands import UnregisterBroker
from chronik.model import ErrorCode
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_cluster
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest


@handles(ApiKey.UNREGISTER_BROKER, versions=(0, 0), needs=on_cluster(Operation.ALTER))
async def unregister_broker(request: UnregisterBrokerRequest, ctx: RequestContext) -> Reply:
    command = UnregisterBroker(broker_id=request.broker_id, fenced_only=True)
    await ctx.services.metadata.submit(command)
    return reply(error_code=ErrorCode.none)
