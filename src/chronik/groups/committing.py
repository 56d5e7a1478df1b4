"""Committing, fetching, deleting and expiring the offsets of one shard's groups."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from chronik.coordinators.journal import AppendResult
from chronik.groups.classic_group import ClassicGroup, State
from chronik.groups.consumer_group import ConsumerGroup
from chronik.groups.offsets import GROUP_BYTES, OffsetAndMetadata
from chronik.groups.records import Key, OffsetKey, encode_committed
from chronik.groups.shard import AnyGroup, GroupShard
from chronik.groups.subscriptions import Topics
from chronik.log_lines import RepeatingLine
from chronik.model import ErrorCode, ProducerIdentity, RequestError, TopicPartition
from chronik.records.fields import FieldReader

log = logging.getLogger(__name__)
_no_room: Final = RepeatingLine(
    log, logging.WARNING, "group %s: no room for %d more committed offsets: they take %d of %d bytes"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit:
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    """The member epoch, for members of KIP-848 groups."""
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    producer: ProducerIdentity | None = None
    """Set for commits that are part of a transaction."""
    knows_member_epochs: bool = True
    """OffsetCommit v9 and later, which KIP-848 members must use."""


class FetchedOffset(NamedTuple):
    tp: TopicPartition
    committed: OffsetAndMetadata | None
    error: ErrorCode


async def commit_offsets(shard: GroupShard, commit: OffsetCommit) -> frozenset[TopicPartition]:
    """Durable when this returns; RequestError if the group does not allow it or it cannot be written.

    Returns the partitions for which there is no room: new ones, when clients have committed too much. Offsets
    of partitions that the group has already can always be replaced. A transaction commits all or nothing.
    """
    _check(shard, commit)
    taken, refused = _that_fit(shard, commit)
    if commit.producer is not None and refused:
        raise RequestError(ErrorCode.invalid_commit_offset_size)
    records: list[tuple[Key, bytes | None]] = [
        (OffsetKey(commit.group_id, tp), encode_committed(committed)) for tp, committed in taken.items()
    ]
    if not records:
        return refused
    if commit.producer is not None:
        await _pend(shard, commit, commit.producer, records)
        return refused
    # Many commits may wait for the log at once: what they will take is counted from now on.
    needed = shard.offsets_of_existing(commit.group_id).growth_bytes(taken, None)
    shard.offset_bytes.add(needed)
    try:
        base_offset = await shard.write(records)
    finally:
        shard.offset_bytes.add(-needed)
    offsets = shard.offsets_of(commit.group_id)
    for place, (tp, committed) in enumerate(taken.items()):
        offsets.commit(tp, committed._replace(record_offset=base_offset + place))
    return refused


def _that_fit(
    shard: GroupShard, commit: OffsetCommit
) -> tuple[Mapping[TopicPartition, OffsetAndMetadata], frozenset[TopicPartition]]:
    """The offsets for which there is room, and the partitions of the others."""
    share = shard.offset_bytes.share
    present = shard.offsets.get(commit.group_id)
    offsets = shard.offsets_of_existing(commit.group_id)
    producer_id = None if commit.producer is None else commit.producer.producer_id
    needed = offsets.growth_bytes(commit.offsets, producer_id)
    needed += GROUP_BYTES + len(commit.group_id) if present is None else 0
    if not needed or share.has_room(needed):
        return commit.offsets, frozenset()
    taken = {
        tp: committed
        for tp, committed in commit.offsets.items()
        if not offsets.growth_bytes({tp: committed}, producer_id)
    }
    share.note_refusal()
    _no_room(None, commit.group_id[:80], len(commit.offsets) - len(taken), share.held_bytes, share.bytes_max)
    return taken, frozenset(commit.offsets.keys() - taken.keys())


async def _pend(
    shard: GroupShard,
    commit: OffsetCommit,
    producer: ProducerIdentity,
    records: Sequence[tuple[Key, bytes | None]],
) -> None:
    _check_producer(shard, producer)
    answer: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()

    def done(written: AppendResult) -> None:
        if not answer.done():
            answer.set_result(written)

    base_offset = shard.append(records, done, producer=producer)
    if base_offset >= 0:
        # Unstable from the moment they are in the log, whether the client ever hears of it or not.
        offsets = shard.offsets_of(commit.group_id)
        for place, (tp, committed) in enumerate(commit.offsets.items()):
            offsets.pend(producer.producer_id, tp, committed._replace(record_offset=base_offset + place))
    error = (await answer).error
    if error is not ErrorCode.none:
        raise RequestError(error)


def _check(shard: GroupShard, commit: OffsetCommit) -> None:
    """The checks of Kafka's OffsetMetadataManager and its two kinds of groups."""
    is_transactional = commit.producer is not None
    try:
        group = shard.find(commit.group_id)
    except RequestError:
        if commit.generation < 0:
            return
        # A member of a group that does not exist (any more).
        knows = commit.knows_member_epochs and not is_transactional
        raise RequestError(ErrorCode.group_id_not_found if knows else ErrorCode.illegal_generation) from None
    if isinstance(group, ClassicGroup):
        group.check_commit(
            commit.member_id,
            commit.instance_id,
            commit.generation,
            now_ms=shard.now_ms(),
            is_transactional=is_transactional,
        )
        return
    is_anonymous = commit.generation == -1 and not commit.member_id and commit.instance_id is None
    if is_transactional and is_anonymous:
        return
    try:
        group.check_commit(
            commit.member_id,
            commit.generation,
            knows_member_epochs=commit.knows_member_epochs or is_transactional,
        )
    except RequestError as error:
        if error.code is ErrorCode.stale_member_epoch and is_transactional:
            raise RequestError(ErrorCode.illegal_generation) from error
        raise


def _check_producer(shard: GroupShard, producer: ProducerIdentity) -> None:
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
    offsets = shard.offsets_of_existing(group_id)
    known = [tp for tp in gone if offsets.get(tp) is not None]
    if known:
        await shard.write([(OffsetKey(group_id, tp), None) for tp in known])
        for tp in known:
            offsets.delete(tp)
    return result


def expire_offsets(shard: GroupShard, topics: Topics) -> None:
    """Write tombstones for expired offsets. Groups left without members and offsets are deleted too."""
    for group_id in list(shard.offsets):
        offsets = shard.offsets[group_id]
        group = shard.groups.get(group_id)
        read = frozenset() if group is None else _topics_read(group, topics)
        if group is None or not group.members:
            since = (
                shard.wall_ms() - (shard.now_ms() - group.state_since_ms)
                if isinstance(group, ClassicGroup)
                else 0
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
        shard.drop_offsets(group_id)


def _is_done_with(group: AnyGroup) -> bool:
    if isinstance(group, ConsumerGroup):
        return not group.members
    return group.state is State.EMPTY and group.next_deadline_ms() is None


def forget_topic(shard: GroupShard, topic: str) -> None:
    """Delete the committed offsets of a deleted topic: they must not apply to a new topic of that name."""
    for group_id, offsets in list(shard.offsets.items()):
        _forget(shard, group_id, [tp for tp, _ in offsets if tp.topic == topic])


def _forget(shard: GroupShard, group_id: str, gone: list[TopicPartition]) -> None:
    offsets = shard.offsets[group_id]

    def done(written: AppendResult) -> None:
        if written.error is ErrorCode.none:
            for tp in gone:
                offsets.delete(tp)

    if gone:
        shard.append([(OffsetKey(group_id, tp), None) for tp in gone], done)


def _topics_read(group: AnyGroup, topics: Topics) -> frozenset[str] | None:
    """Topics that members of the group are subscribed to. None if unknown: any topic may be among them."""
    if isinstance(group, ConsumerGroup):
        if not group.patterns() <= topics.matched.keys():
            return None
        return group.subscribed_names(topics)
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
