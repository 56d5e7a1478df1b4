"""TxnOffsetCommit: a group's offsets, which take effect when the transaction commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chronik.groups.committing import OffsetCommit
from chronik.groups.offsets import OffsetAndMetadata
from chronik.model import ErrorCode, ProducerIdentity, RequestError, TopicPartition
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles
from chronik.server.errors import error_of
from chronik.server.gate import all_of, each_topic, on_group, on_transaction
from chronik.server.handlers.offset_commit import answer, check_offset
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest

_ADDS_BY_ITSELF: Final = 5
_CODE_FOR_CLIENTS: Final = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.producer_fenced: ErrorCode.invalid_producer_epoch,
}


def _on_error(request: TxnOffsetCommitRequest, code: ErrorCode, message: str | None) -> Reply:
    return answer(request.topics, lambda topic, partition: code)


@handles(
    ApiKey.TXN_OFFSET_COMMIT,
    versions=(0, 5),
    needs=all_of(on_transaction(Operation.WRITE), on_group(Operation.READ), each_topic(Operation.READ)),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
)
async def txn_offset_commit(request: TxnOffsetCommitRequest, ctx: RequestContext) -> Reply:
    services = ctx.services
    codes: dict[TopicPartition, ErrorCode] = {}
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    now_ms = services.now_ms()
    for topic in request.topics:
        for one in topic.partitions:
            tp = TopicPartition(topic.name, one.partition_index)
            metadata = one.committed_metadata or ""
            codes[tp] = check_offset(
                services.state, tp, metadata, services.groups.config.offset_metadata_bytes_max
            )
            if codes[tp] is ErrorCode.none:
                epoch = one.committed_leader_epoch
                offsets[tp] = OffsetAndMetadata(one.committed_offset, epoch, metadata, now_ms)
    try:
        await _commit(request, ctx, offsets)
    except Exception as error:
        failed, _ = error_of(error, ErrorCode.coordinator_not_available)
        if failed is ErrorCode.unknown_server_error:
            raise
        failed = _CODE_FOR_CLIENTS.get(failed, failed)
        codes = {tp: failed if code is ErrorCode.none else code for tp, code in codes.items()}
    return answer(request.topics, lambda topic, partition: codes[TopicPartition(topic.name, partition)])


async def _commit(
    request: TxnOffsetCommitRequest, ctx: RequestContext, offsets: dict[TopicPartition, OffsetAndMetadata]
) -> None:
    services = ctx.services
    if not request.group_id or not request.transactional_id:
        raise RequestError(ErrorCode.invalid_group_id if not request.group_id else ErrorCode.invalid_request)
    await services.transaction_verifier.verify(
        request.transactional_id,
        ProducerIdentity(request.producer_id, request.producer_epoch),
        [services.groups.partition_for(request.group_id)],
        adds=ctx.api_version >= _ADDS_BY_ITSELF,
    )
    await services.groups.commit(
        OffsetCommit(
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            offsets=offsets,
            producer=ProducerIdentity(request.producer_id, request.producer_epoch),
        )
    )
