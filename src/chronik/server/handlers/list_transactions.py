"""ListTransactions: the transactional ids that this broker coordinates, by state, producer, age, name."""

from __future__ import annotations

from typing import Any

from chronik.groups.consumer_group import compile_topic_regex
from chronik.model import ErrorCode
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.transactions.transaction import TxnState
from chronik.wire.api import ApiKey


@handles(ApiKey.LIST_TRANSACTIONS, versions=(0, 2), unavailable=ErrorCode.coordinator_not_available)
async def list_transactions(request: Any, ctx: RequestContext) -> Reply:
    known = {state.label for state in TxnState}
    unknown = [name for name in request.state_filters if name not in known]
    states = set(request.state_filters) - set(unknown)
    producers = set(request.producer_id_filters)
    longer_than_ms = getattr(request, "duration_filter", -1)
    pattern = getattr(request, "transactional_id_pattern", None)
    regex = compile_topic_regex(pattern) if pattern else None
    now_ms = ctx.services.now_ms()
    found = []
    for transactional_id, record in ctx.services.transactions.list():
        if request.state_filters and record.state.label not in states:
            continue
        if producers and record.producer_id not in producers:
            continue
        if longer_than_ms >= 0 and not 0 <= record.started_ms < now_ms - longer_than_ms:
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
