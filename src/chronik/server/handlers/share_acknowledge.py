"""ShareAcknowledge (KIP-932): there are no share groups. Without this refusal a consumer would wait for
ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.model import ErrorCode, RequestError
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles
from chronik.server.gate import on_group
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.share_acknowledge.v2.request import ShareAcknowledgeRequest


@handles(ApiKey.SHARE_ACKNOWLEDGE, versions=(1, 2), needs=on_group(Operation.READ))
async def share_acknowledge(request: ShareAcknowledgeRequest, ctx: RequestContext) -> Reply:
    raise RequestError(ErrorCode.unsupported_version, "Share groups are not offered.")
