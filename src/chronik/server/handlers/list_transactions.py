"""ListTransactions: the transactional ids that this broker coordinates, by state, producer, age, name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.groups.patterns import compile_pattern
from chronik.model import ErrorCode
from chronik.security.acls import Operation, ResourceType
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import shown
from chronik.transactions.transaction import TxnState
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.list_transactions.v2.request import ListTransactionsRequest


@handles(
    ApiKey.LIST_TRANSACTIONS,
    versions=(0, 2),
    needs=shown("transaction_states", "transactional_id", Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
    unavailable=ErrorCode.coordinator_not_available,
)
async def list_transactions(request: ListTransactionsRequest, ctx: RequestContext) -> Reply:
    known = {state.label for state in TxnState}
    unknown = [name for name in request.state_filters if name not in known]
    states = set(request.state_filters) - set(unknown)
    producers = set(request.producer_id_filters)
    # As in Kafka, an id without an open transaction has start time -1, so every duration filter matches it.
    longer_than_ms = request.duration_filter
    pattern = request.transactional_id_pattern
    regex = compile_pattern(pattern) if pattern else None
    now_ms = ctx.services.now_ms()
    found = []
    for transactional_id, record in ctx.services.transactions.list():
        if request.state_filters and record.state.label not in states:
            continue
        if producers and record.producer_id not in producers:
            continue
        if longer_than_ms >= 0 and now_ms - record.started_ms <= longer_than_ms:
            continue
        if regex is not None and regex.fullmatch(transactional_id) is None:
            continue
        found.append(
            {
                "transactional_id": transactional_id,
                "producer_id": record.producer_id,
                "transaction_state": record.state.label,
            }
        )
    return reply(error_code=ErrorCode.none, unknown_state_filters=unknown, transaction_states=found)
