"""AddPartitionsToTxn: partitions become part of a transaction. From version 4 on, brokers ask for clients."""

from __future__ import annotations

from typing import Any

from chronik.model import ErrorCode, TopicPartition
from chronik.server.dispatch import Reply, RequestContext, error_of, handles, reply
from chronik.server.fencing import fenced_code
from chronik.transactions.coordinator import ProducerIdentity
from chronik.transactions.transaction import V2
from chronik.wire.api import ApiKey

_KNOWS_FENCED = 2
_BATCHED = 4


def _on_error(request: Any, code: ErrorCode, message: str | None) -> Reply:
    if hasattr(request, "transactions"):
        return reply(error_code=code)
    return reply(results_by_topic_v3_and_below=_results(request.v3_and_below_topics, lambda tp: code))


def _results(topics: Any, code_of: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {
                    "partition_index": index,
                    "partition_error_code": code_of(TopicPartition(topic.name, index)),
                }
                for index in topic.partitions
            ],
        }
        for topic in topics
    ]


@handles(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    versions=(0, 5),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
)
async def add_partitions_to_txn(request: Any, ctx: RequestContext) -> Reply:
    if ctx.api_version < _BATCHED:
        codes = await _add(
            ctx,
            request.v3_and_below_transactional_id,
            ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            request.v3_and_below_topics,
        )
        return reply(results_by_topic_v3_and_below=_results(request.v3_and_below_topics, codes.__getitem__))
    results = []
    for one in request.transactions:
        producer = ProducerIdentity(one.producer_id, one.producer_epoch)
        codes = await _add(
            ctx, one.transactional_id, producer, one.topics, verify_only=one.verify_only, version=V2
        )
        results.append(
            {
                "transactional_id": one.transactional_id,
                "topic_results": _results(one.topics, codes.__getitem__),
            }
        )
    return reply(error_code=ErrorCode.none, results_by_transaction=results)


async def _add(
    ctx: RequestContext,
    transactional_id: str,
    producer: ProducerIdentity,
    topics: Any,
    *,
    verify_only: bool = False,
    version: int = 0,
) -> dict[TopicPartition, ErrorCode]:
    """One code per partition; either all are added or none."""
    tps = [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]
    missing = {tp for tp in tps if ctx.services.state.partition(tp) is None}
    if missing:
        return {
            tp: ErrorCode.unknown_topic_or_partition if tp in missing else ErrorCode.operation_not_attempted
            for tp in tps
        }
    transactions = ctx.services.transactions
    codes = dict.fromkeys(tps, ErrorCode.none)
    try:
        if verify_only:
            for tp in tps:
                await transactions.verify_partition(transactional_id, producer, tp)
        else:
            await transactions.add_partitions(transactional_id, producer, tps, version=version)
    except Exception as error:
        code, _ = error_of(error, ErrorCode.coordinator_not_available)
        if code is ErrorCode.unknown_server_error:
            raise
        codes = dict.fromkeys(tps, fenced_code(code, ctx.api_version >= _KNOWS_FENCED))
    return codes
