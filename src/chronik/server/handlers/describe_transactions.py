"""DescribeTransactions: the state of transactional ids that this broker coordinates."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from chronik.model import ErrorCode
from chronik.security.acls import Operation, ResourceType
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.errors import error_of
from chronik.server.gate import each
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest

_NEVER: Final = datetime.fromtimestamp(0, UTC)


def _on_error(request: DescribeTransactionsRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(transaction_states=[_failed(one, code) for one in request.transactional_ids])


def _failed(transactional_id: str, code: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": code,
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout": 0,
        "transaction_start_time": _NEVER,
        "producer_id": -1,
        "producer_epoch": -1,
        "topics": [],
    }


@handles(
    ApiKey.DESCRIBE_TRANSACTIONS,
    versions=(0, 0),
    needs=each("transactional_ids", None, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
)
async def describe_transactions(request: DescribeTransactionsRequest, ctx: RequestContext) -> Reply:
    return reply(transaction_states=[await _describe(one, ctx) for one in request.transactional_ids])


async def _describe(transactional_id: str, ctx: RequestContext) -> dict[str, Any]:
    try:
        record = await ctx.services.transactions.describe(transactional_id)
    except Exception as error:
        code, _ = error_of(error, ErrorCode.coordinator_not_available)
        return _failed(transactional_id, code)
    topics = sorted(
        topic
        for topic in {tp.topic for tp in record.partitions}
        if ctx.access.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic)
    )
    return {
        "error_code": ErrorCode.none,
        "transactional_id": transactional_id,
        "transaction_state": record.state.label,
        "transaction_timeout": record.timeout_ms,
        "transaction_start_time": record.started_ms,
        "producer_id": record.producer_id,
        "producer_epoch": record.producer_epoch,
        "topics": [
            {
                "topic": topic,
                "partitions": sorted(tp.partition for tp in record.partitions if tp.topic == topic),
            }
            for topic in topics
        ],
    }
