"""AddPartitionsToTxn: adds partitions to a transaction. Versions from 4 on are for brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from chronik.model import ErrorCode, ProducerIdentity, TopicPartition
from chronik.security.acls import CLUSTER_NAME, Operation, ResourceType
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.errors import error_of, fenced_code
from chronik.server.gate import asks
from chronik.transactions.transaction import V2
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.add_partitions_to_txn.v3.request import (
        AddPartitionsToTxnRequest as AddPartitionsToTxnRequestV3,
    )
    from kio.schema.add_partitions_to_txn.v3.request import AddPartitionsToTxnTopic as TopicV3
    from kio.schema.add_partitions_to_txn.v5.request import (
        AddPartitionsToTxnRequest as AddPartitionsToTxnRequestV5,
    )
    from kio.schema.add_partitions_to_txn.v5.request import AddPartitionsToTxnTopic as TopicV5

    Topics: TypeAlias = tuple[TopicV3, ...] | tuple[TopicV5, ...]
    Request: TypeAlias = AddPartitionsToTxnRequestV3 | AddPartitionsToTxnRequestV5

_KNOWS_FENCED = 2


def _on_error(request: Request, code: ErrorCode, message: str | None) -> Reply:
    if hasattr(request, "transactions"):
        return reply(error_code=code)
    return reply(results_by_topic_v3_and_below=_results(request.v3_and_below_topics, lambda tp: code))


def _results(topics: Topics, code_of: Callable[[TopicPartition], ErrorCode]) -> list[dict[str, Any]]:
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
    needs=asks(
        (Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        (Operation.WRITE, ResourceType.TOPIC),
        (Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
    ),
    decoded_as=(3, 5),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
)
async def add_partitions_to_txn(request: Request, ctx: RequestContext) -> Reply:
    if not hasattr(request, "transactions"):
        ctx.access.require(
            Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.v3_and_below_transactional_id
        )
        codes = await _add(
            ctx,
            request.v3_and_below_transactional_id,
            ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            request.v3_and_below_topics,
        )
        return reply(results_by_topic_v3_and_below=_results(request.v3_and_below_topics, codes.__getitem__))
    # Only brokers ask this way.
    ctx.access.require(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
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


def _wrong(ctx: RequestContext, tp: TopicPartition) -> ErrorCode | None:
    if not ctx.access.permits(Operation.WRITE, ResourceType.TOPIC, tp.topic):
        return ErrorCode.topic_authorization_failed
    return ErrorCode.unknown_topic_or_partition if ctx.services.state.partition(tp) is None else None


async def _add(
    ctx: RequestContext,
    transactional_id: str,
    producer: ProducerIdentity,
    topics: Topics,
    *,
    verify_only: bool = False,
    version: int = 0,
) -> dict[TopicPartition, ErrorCode]:
    """One code per partition; either all are added or none."""
    tps = [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]
    wrong = {tp: code for tp in tps if (code := _wrong(ctx, tp)) is not None}
    if wrong:
        return {tp: wrong.get(tp, ErrorCode.operation_not_attempted) for tp in tps}
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
