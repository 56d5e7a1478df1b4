"""AddOffsetsToTxn: commits of a group's offsets become part of a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.groups.coordinator import OFFSETS_TOPIC
from chronik.model import ErrorCode, ProducerIdentity, RequestError
from chronik.security.acls import Operation
from chronik.server.coordinators import ensure_internal_topic
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.errors import fenced_code
from chronik.server.gate import all_of, on_group, on_transaction
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest

_KNOWS_FENCED = 2


@handles(
    ApiKey.ADD_OFFSETS_TO_TXN,
    versions=(0, 4),
    needs=all_of(on_transaction(Operation.WRITE), on_group(Operation.READ)),
    unavailable=ErrorCode.coordinator_not_available,
)
async def add_offsets_to_txn(request: AddOffsetsToTxnRequest, ctx: RequestContext) -> Reply:
    services = ctx.services
    await ensure_internal_topic(services, OFFSETS_TOPIC, services.groups.config.topic_partitions)
    try:
        await services.transactions.add_partitions(
            request.transactional_id,
            ProducerIdentity(request.producer_id, request.producer_epoch),
            [services.groups.partition_for(request.group_id)],
        )
    except RequestError as error:
        raise RequestError(fenced_code(error.code, ctx.api_version >= _KNOWS_FENCED), error.message) from None
    return reply(error_code=ErrorCode.none)
