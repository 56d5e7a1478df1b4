"""AddOffsetsToTxn: commits of a group's offsets become part of a transaction."""

from __future__ import annotations

from typing import Any

from chronik.groups.coordinator import OFFSETS_TOPIC
from chronik.model import ErrorCode, RequestError
from chronik.server.coordinators import ensure_internal_topic
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.fencing import fenced_code
from chronik.transactions.coordinator import ProducerIdentity
from chronik.wire.api import ApiKey

_KNOWS_FENCED = 2


@handles(ApiKey.ADD_OFFSETS_TO_TXN, versions=(0, 4), unavailable=ErrorCode.coordinator_not_available)
async def add_offsets_to_txn(request: Any, ctx: RequestContext) -> Reply:
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
