"""InitProducerId: gives a producer its id and epoch. Fences those with an older epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.model import ErrorCode, RequestError
from chronik.security.acls import CLUSTER_NAME, Operation, ResourceType
from chronik.server.access import Access
from chronik.server.coordinators import ensure_internal_topic
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.errors import fenced_code
from chronik.server.gate import asks
from chronik.transactions.coordinator import TRANSACTIONS_TOPIC
from chronik.wire.api import ApiKey
from chronik.wire.schema import in_ms

if TYPE_CHECKING:
    from kio.schema.init_producer_id.v6.request import InitProducerIdRequest

_KNOWS_FENCED = 4


def _on_error(request: InitProducerIdRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(error_code=code, producer_id=-1, producer_epoch=-1)


def _check_access(transactional_id: str | None, access: Access) -> None:
    if transactional_id is not None:
        access.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    elif not access.on_cluster(Operation.IDEMPOTENT_WRITE) and not access.allows_any(
        Operation.WRITE, ResourceType.TOPIC
    ):
        access.note_refusal(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)
        raise RequestError(ErrorCode.cluster_authorization_failed)


@handles(
    ApiKey.INIT_PRODUCER_ID,
    versions=(0, 6),
    needs=asks(
        (Operation.WRITE, ResourceType.TRANSACTIONAL_ID), (Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
    ),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
)
async def init_producer_id(request: InitProducerIdRequest, ctx: RequestContext) -> Reply:
    transactions = ctx.services.transactions
    producer_id = request.producer_id
    producer_epoch = request.producer_epoch
    if (producer_id < 0) != (producer_epoch < 0):
        raise RequestError(ErrorCode.invalid_request, "Producer id and epoch go together.")
    _check_access(request.transactional_id, ctx.access)
    if request.transactional_id is not None:
        await ensure_internal_topic(ctx.services, TRANSACTIONS_TOPIC, transactions.config.topic_partitions)
    try:
        identity = await transactions.init_producer_id(
            request.transactional_id,
            in_ms(request.transaction_timeout),
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
