"""EndTxn: commit or abort. From version 5 on the producer goes on with a new epoch (KIP-890)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.model import ErrorCode, ProducerIdentity, RequestError
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.errors import fenced_code
from chronik.server.gate import on_transaction
from chronik.transactions.transaction import V2
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.end_txn.v5.request import EndTxnRequest

_KNOWS_FENCED = 2
_RAISES_EPOCH = 5


def _on_error(request: EndTxnRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(error_code=code, producer_id=-1, producer_epoch=-1)


@handles(
    ApiKey.END_TXN,
    versions=(0, 5),
    needs=on_transaction(Operation.WRITE),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
)
async def end_txn(request: EndTxnRequest, ctx: RequestContext) -> Reply:
    try:
        identity = await ctx.services.transactions.end(
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            commit=request.committed,
            version=V2 if ctx.api_version >= _RAISES_EPOCH else 0,
        )
    except RequestError as error:
        raise RequestError(fenced_code(error.code, ctx.api_version >= _KNOWS_FENCED), error.message) from None
    return reply(
        error_code=ErrorCode.none,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
    )
