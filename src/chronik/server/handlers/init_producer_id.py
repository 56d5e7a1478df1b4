"""InitProducerId: an identity for an idempotent or transactional producer; fences its former selves."""

from __future__ import annotations

from typing import Any

from chronik.model import ErrorCode, RequestError
from chronik.server.coordinators import ensure_internal_topic
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.fencing import fenced_code
from chronik.transactions.coordinator import TRANSACTIONS_TOPIC
from chronik.wire.api import ApiKey

_KNOWS_FENCED = 4


def _on_error(request: Any, code: ErrorCode, message: str | None) -> Reply:
    return reply(error_code=code, producer_id=-1, producer_epoch=-1)


@handles(
    ApiKey.INIT_PRODUCER_ID,
    versions=(0, 6),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
)
async def init_producer_id(request: Any, ctx: RequestContext) -> Reply:
    transactions = ctx.services.transactions
    producer_id = getattr(request, "producer_id", -1)
    producer_epoch = getattr(request, "producer_epoch", -1)
    if (producer_id < 0) != (producer_epoch < 0):
        raise RequestError(ErrorCode.invalid_request, "Producer id and epoch go together.")
    if request.transactional_id is not None:
        await ensure_internal_topic(ctx.services, TRANSACTIONS_TOPIC, transactions.config.topic_partitions)
    try:
        identity = await transactions.init_producer_id(
            request.transactional_id,
            int(request.transaction_timeout.total_seconds() * 1000),
            producer_id,
            producer_epoch,
        )
    except RequestError as error:
        raise RequestError(fenced_code(error.code, ctx.api_version >= _KNOWS_FENCED), error.message) from None
    return reply(
        error_code=ErrorCode.none,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        ongoing_txn_producer_id=-1,
        ongoing_txn_producer_epoch=-1,
    )
