"""WriteTxnMarkers: ends a transaction in partitions led here. Sent by coordinators and tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from chronik.model import ErrorCode, TopicPartition
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_cluster
from chronik.transactions.markers import Marker
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WriteTxnMarkersRequest


def _on_error(request: WriteTxnMarkersRequest, code: ErrorCode, message: str | None) -> Reply:
    return reply(markers=[_result(one, lambda tp: code) for one in request.markers])


def _result(marker: WritableTxnMarker, code_of: Callable[[TopicPartition], ErrorCode]) -> dict[str, Any]:
    return {
        "producer_id": marker.producer_id,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": index, "error_code": code_of(TopicPartition(topic.name, index))}
                    for index in topic.partition_indexes
                ],
            }
            for topic in marker.topics
        ],
    }


@handles(
    ApiKey.WRITE_TXN_MARKERS,
    versions=(1, 2),
    needs=on_cluster(Operation.CLUSTER_ACTION, Operation.ALTER),
    on_error=_on_error,
    unavailable=ErrorCode.not_leader_or_follower,
)
async def write_txn_markers(request: WriteTxnMarkersRequest, ctx: RequestContext) -> Reply:
    results = []
    for one in request.markers:
        marker = Marker(
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            coordinator_epoch=one.coordinator_epoch,
            is_commit=one.transaction_result,
            version=one.transaction_version,
        )
        tps = [TopicPartition(topic.name, index) for topic in one.topics for index in topic.partition_indexes]
        codes = await ctx.services.transactions.markers.write_local(marker, tps)
        results.append(_result(one, codes.__getitem__))
    return reply(markers=results)
