"""OffsetCommit: a group remembers how far it has read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar
from uuid import UUID

from chronik.groups.committing import OffsetCommit
from chronik.groups.offsets import OffsetAndMetadata
from chronik.metadata.state import ClusterState
from chronik.model import ErrorCode, TopicPartition
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.errors import error_of
from chronik.server.gate import all_of, each_topic, on_group
from chronik.wire.api import ApiKey
from chronik.wire.schema import in_ms

if TYPE_CHECKING:
    from kio.schema.offset_commit.v4.request import OffsetCommitRequest as OffsetCommitRequestV4
    from kio.schema.offset_commit.v4.request import OffsetCommitRequestTopic as TopicV4
    from kio.schema.offset_commit.v9.request import OffsetCommitRequest as OffsetCommitRequestV9
    from kio.schema.offset_commit.v9.request import OffsetCommitRequestTopic as TopicV9
    from kio.schema.offset_commit.v10.request import OffsetCommitRequest as OffsetCommitRequestV10
    from kio.schema.offset_commit.v10.request import OffsetCommitRequestTopic as TopicV10
    from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequestTopic

    Topic: TypeAlias = TopicV4 | TopicV9 | TopicV10 | TxnOffsetCommitRequestTopic
    Request: TypeAlias = OffsetCommitRequestV4 | OffsetCommitRequestV9 | OffsetCommitRequestV10

TopicT = TypeVar("TopicT", bound="Topic")


class NamedTopic(Protocol):
    @property
    def name(self) -> str: ...


class TopicWithId(Protocol):
    @property
    def topic_id(self) -> UUID | None: ...


def _on_error(request: Request, code: ErrorCode, message: str | None) -> Reply:
    return answer(request.topics, lambda topic, partition: code)


def answer(topics: Iterable[TopicT], code_of: Callable[[TopicT, int], ErrorCode]) -> Reply:
    """The same shape as the request, with one code per partition."""
    return reply(
        topics=[
            {
                **_identity(topic),
                "partitions": [
                    {
                        "partition_index": one.partition_index,
                        "error_code": code_of(topic, one.partition_index),
                    }
                    for one in topic.partitions
                ],
            }
            for topic in topics
        ]
    )


def _identity(topic: Topic) -> dict[str, str | UUID | None]:
    return {"name": topic.name} if hasattr(topic, "name") else {"topic_id": topic.topic_id}


def topic_name(state: ClusterState, topic: NamedTopic | TopicWithId) -> str | None:
    """The topic's name, from version 10 on by its id; None if there is no such id."""
    if hasattr(topic, "name"):
        return str(topic.name)
    found = None if topic.topic_id is None else state.topic_by_id(topic.topic_id)
    return None if found is None else found.name


def check_offset(state: ClusterState, tp: TopicPartition, metadata: str, bytes_max: int) -> ErrorCode:
    if state.partition(tp) is None:
        return ErrorCode.unknown_topic_or_partition
    if len(metadata.encode()) > bytes_max:
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none


@handles(
    ApiKey.OFFSET_COMMIT,
    versions=(2, 10),
    needs=all_of(on_group(Operation.READ), each_topic(Operation.READ)),
    decoded_as=(4, 9, 10),
    on_error=_on_error,
    unavailable=ErrorCode.coordinator_not_available,
)
async def offset_commit(request: Request, ctx: RequestContext) -> Reply:
    services = ctx.services
    now_ms = services.now_ms()
    # Versions 2 to 4 may set a retention time; -1 means the broker's default.
    retention_ms = -1
    if hasattr(request, "retention_time"):
        retention_ms = in_ms(request.retention_time)
    codes: dict[tuple[int, int], ErrorCode] = {}
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    tp_keys: dict[TopicPartition, tuple[int, int]] = {}
    for topic in request.topics:
        name = topic_name(services.state, topic)
        for one in topic.partitions:
            if name is None:
                codes[id(topic), one.partition_index] = ErrorCode.unknown_topic_id
                continue
            tp = TopicPartition(name, one.partition_index)
            metadata = one.committed_metadata or ""
            code = check_offset(
                services.state, tp, metadata, services.groups.config.offset_metadata_bytes_max
            )
            codes[id(topic), one.partition_index] = code
            if code is ErrorCode.none:
                tp_keys[tp] = (id(topic), one.partition_index)
                offsets[tp] = OffsetAndMetadata(
                    one.committed_offset,
                    one.committed_leader_epoch if hasattr(one, "committed_leader_epoch") else -1,
                    metadata,
                    now_ms,
                    expire_timestamp_ms=-1 if retention_ms < 0 else now_ms + retention_ms,
                )
    try:
        no_room = await services.groups.commit(
            OffsetCommit(
                group_id=request.group_id,
                member_id=request.member_id,
                instance_id=request.group_instance_id if hasattr(request, "group_instance_id") else None,
                generation=request.generation_id_or_member_epoch,
                offsets=offsets,
                knows_member_epochs=ctx.api_version >= 9,
            )
        )
    except Exception as error:
        failed, _ = error_of(error, ErrorCode.coordinator_not_available)
        if failed is ErrorCode.unknown_server_error:
            raise
        codes = {key: failed if code is ErrorCode.none else code for key, code in codes.items()}
        return answer(request.topics, lambda topic, partition: codes[id(topic), partition])
    for tp in no_room:
        codes[tp_keys[tp]] = ErrorCode.invalid_commit_offset_size
    return answer(request.topics, lambda topic, partition: codes[id(topic), partition])
