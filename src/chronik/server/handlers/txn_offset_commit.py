"""TxnOffsetCommit: a group's offsets, which count when the transaction does."""

from __future__ import annotations

from typing import Any, Final

from chronik.groups.committing import OffsetCommit
from chronik.groups.offsets import Committed
from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.replication.journal import Producer
from chronik.server.dispatch import Reply, RequestContext, error_of, handles
from chronik.server.handlers.offset_commit import answer, check_offset
from chronik.transactions.coordinator import ProducerIdentity
from chronik.wire.api import ApiKey

_ADDS_BY_ITSELF: Final = 5
_TOLD_AS: Final = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.producer_fenced: ErrorCode.invalid_producer_epoch,
}


def _on_error(request: Any, code: ErrorCode, message: str | None) -> Reply:
    return answer(request, lambda topic, partition: code)


@handles(
    ApiKey.TXN_OFFSET_COMMIT,
    versions=(0, 5),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
)
async def txn_offset_commit(request: Any, ctx: RequestContext) -> Reply:
    services = ctx.services
    codes: dict[TopicPartition, ErrorCode] = {}
    offsets: dict[TopicPartition, Committed] = {}
    now_ms = services.now_ms()
    for topic in request.topics:
        for one in topic.partitions:
            tp = TopicPartition(topic.name, one.partition_index)
            metadata = one.committed_metadata or ""
            codes[tp] = check_offset(
                services.state, tp, metadata, services.groups.config.offset_metadata_bytes_max
            )
            if codes[tp] is ErrorCode.none:
                epoch = getattr(one, "committed_leader_epoch", -1)
                offsets[tp] = Committed(one.committed_offset, epoch, metadata, now_ms)
    try:
        await _commit(request, ctx, offsets)
    except Exception as error:
        failed, _ = error_of(error, ErrorCode.coordinator_not_available)
        if failed is ErrorCode.unknown_server_error:
            raise
        failed = _TOLD_AS.get(failed, failed)
        codes = {tp: failed if code is ErrorCode.none else code for tp, code in codes.items()}
    return answer(request, lambda topic, partition: codes[TopicPartition(topic.name, partition)])


async def _commit(request: Any, ctx: RequestContext, offsets: dict[TopicPartition, Committed]) -> None:
    services = ctx.services
    if not request.group_id or not request.transactional_id:
        raise RequestError(ErrorCode.invalid_group_id if not request.group_id else ErrorCode.invalid_request)
    await services.gate.admit(
        request.transactional_id,
        ProducerIdentity(request.producer_id, request.producer_epoch),
        [services.groups.partition_for(request.group_id)],
        adds=ctx.api_version >= _ADDS_BY_ITSELF,
    )
    await services.groups.commit(
        OffsetCommit(
            group_id=request.group_id,
            member_id=getattr(request, "member_id", ""),
            instance_id=getattr(request, "group_instance_id", None),
            generation=getattr(request, "generation_id", -1),
            offsets=offsets,
            producer=Producer(request.producer_id, request.producer_epoch),
        )
    )
