"""Committing, fetching, deleting and expiring the offsets of one shard's groups."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from chronik.groups.consumer_group import ConsumerGroup, Topics
from chronik.groups.group import Group, State
from chronik.groups.offsets import Committed
from chronik.groups.records import Key, OffsetKey, encode_committed
from chronik.groups.shard import AnyGroup, GroupShard
from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.records.fields import FieldReader
from chronik.replication.journal import Producer, Written


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit:
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    """The member epoch, for members of KIP-848 groups."""
    offsets: Mapping[TopicPartition, Committed]
    producer: Producer | None = None
    """Set for commits that are part of a transaction."""
    knows_member_epochs: bool = True
    """OffsetCommit v9 and later; older clients would not understand stale_member_epoch."""


class FetchedOffset(NamedTuple):
    tp: TopicPartition
    committed: Committed | None
    error: ErrorCode


async def commit_offsets(shard: GroupShard, commit: OffsetCommit) -> None:
    """Durable when this returns; RequestError if the group does not allow it or it cannot be written."""
    _check(shard, commit)
    records: list[tuple[Key, bytes | None]] = [
        (OffsetKey(commit.group_id, tp), encode_committed(committed))
        for tp, committed in commit.offsets.items()
    ]
    if not records:
        return
    offsets = shard.offsets_of(commit.group_id)
    if commit.producer is None:
        base_offset = await shard.write(records)
        for place, (tp, committed) in enumerate(commit.offsets.items()):
            offsets.commit(tp, committed._replace(record_offset=base_offset + place))
        return
    _check_producer(shard, commit.producer)
    answer: asyncio.Future[Written] = asyncio.get_running_loop().create_future()

    def done(written: Written) -> None:
        if not answer.done():
            answer.set_result(written)

    base_offset = shard.append(records, done, producer=commit.producer)
    if base_offset >= 0:
        # Unstable from the moment they are in the log, whether the client ever hears of it or not.
        for place, (tp, committed) in enumerate(commit.offsets.items()):
            pending = committed._replace(record_offset=base_offset + place)
            offsets.pend(commit.producer.producer_id, tp, pending)
    error = (await answer).error
    if error is not ErrorCode.none:
        raise RequestError(error)


def _check(shard: GroupShard, commit: OffsetCommit) -> None:
    group = shard.groups.get(commit.group_id)
    if group is None:
        if commit.generation >= 0:
            # A member of a group that does not exist (any more).
            raise RequestError(ErrorCode.illegal_generation)
        return
    if isinstance(group, Group):
        group.check_commit(
            commit.member_id,
            commit.instance_id,
            commit.generation,
            now_ms=shard.now_ms(),
            is_transactional=commit.producer is not None,
        )
        return
    if commit.producer is not None and commit.generation < 0 and not commit.member_id:
        return
    try:
        group.check_commit(commit.member_id, commit.generation)
    except RequestError as error:
        if error.code is ErrorCode.stale_member_epoch and not commit.knows_member_epochs:
            raise RequestError(ErrorCode.illegal_generation) from error
        raise


def _check_producer(shard: GroupShard, producer: Producer) -> None:
    producers = shard.journal.partition.log.producers
    entry = None if producers is None else producers.get(producer.producer_id)
    if entry is not None and entry.producer_epoch > producer.producer_epoch:
        raise RequestError(ErrorCode.invalid_producer_epoch)


def fetch_offsets(
    shard: GroupShard, group_id: str, wanted: Iterable[TopicPartition] | None, *, require_stable: bool
) -> list[FetchedOffset]:
    """`wanted` None: everything that was committed."""
    offsets = shard.offsets_of_existing(group_id)
    tps = [tp for tp, _ in offsets] if wanted is None else list(wanted)
    found = []
    for tp in tps:
        if require_stable and offsets.is_unstable(tp):
            found.append(FetchedOffset(tp, None, ErrorCode.unstable_offset_commit))
        else:
            found.append(FetchedOffset(tp, offsets.get(tp), ErrorCode.none))
    return found


async def delete_offsets(
    shard: GroupShard, group_id: str, tps: Iterable[TopicPartition], topics: Topics
) -> dict[TopicPartition, ErrorCode]:
    group = shard.find(group_id)
    read = _topics_read(group, topics)
    result: dict[TopicPartition, ErrorCode] = {}
    for tp in tps:
        is_read = read is None or tp.topic in read
        result[tp] = ErrorCode.group_subscribed_to_topic if is_read else ErrorCode.none
    gone = [tp for tp, code in result.items() if code is ErrorCode.none]
    offsets = shard.offsets_of(group_id)
    known = [tp for tp in gone if offsets.get(tp) is not None]
    if known:
        await shard.write([(OffsetKey(group_id, tp), None) for tp in known])
        for tp in known:
            offsets.delete(tp)
    return result


def expire_offsets(shard: GroupShard, topics: Topics) -> None:
    """Write tombstones for what is too old; groups without members and offsets go as well."""
    for group_id in list(shard.offsets):
        offsets = shard.offsets[group_id]
        group = shard.groups.get(group_id)
        read = frozenset() if group is None else _topics_read(group, topics)
        if group is None or not group.members:
            since = (
                shard.wall_ms() - (shard.now_ms() - group.state_since_ms) if isinstance(group, Group) else 0
            )
            empty_since_ms: int | None = since
        else:
            empty_since_ms = None
        gone = offsets.expired(
            now_ms=shard.wall_ms(),
            retention_ms=shard.config.offsets_retention_ms,
            empty_since_ms=empty_since_ms,
            is_subscribed=lambda topic, read=read: read is None or topic in read,  # type: ignore[misc]
        )
        _forget(shard, group_id, gone)
    for group_id, group in list(shard.groups.items()):
        if _is_done_with(group) and shard.offsets_of_existing(group_id).is_empty:
            shard.forget(group_id)
    for group_id in [key for key, offsets in shard.offsets.items() if offsets.is_empty]:
        del shard.offsets[group_id]


def _is_done_with(group: AnyGroup) -> bool:
    if isinstance(group, ConsumerGroup):
        return not group.members
    return group.state is State.EMPTY and group.next_deadline_ms() is None


def forget_topic(shard: GroupShard, topic: str) -> None:
    """A topic was deleted: what was committed for it means nothing for one of the same name."""
    for group_id, offsets in list(shard.offsets.items()):
        _forget(shard, group_id, [tp for tp, _ in offsets if tp.topic == topic])


def _forget(shard: GroupShard, group_id: str, gone: list[TopicPartition]) -> None:
    offsets = shard.offsets[group_id]

    def done(written: Written) -> None:
        if written.error is ErrorCode.none:
            for tp in gone:
                offsets.delete(tp)

    if gone:
        shard.append([(OffsetKey(group_id, tp), None) for tp in gone], done)


def _topics_read(group: AnyGroup, topics: Topics) -> frozenset[str] | None:
    """Topics that members of the group are subscribed to; None: cannot be told, so all may be."""
    if isinstance(group, ConsumerGroup):
        return frozenset(name for name in topics.by_name if group.is_subscribed_to(name, topics))
    if group.state is State.EMPTY:
        return frozenset()
    if group.protocol_type != "consumer":
        return None
    names: set[str] = set()
    for member in group.members.values():
        for _, metadata in member.protocols:
            try:
                fields = FieldReader(metadata)
                fields.int16()
                names.update(fields.array(fields.string))
            except (ValueError, struct.error):
                return None
    return frozenset(names)
