"""The group coordinator: finds the shard and the group, asks the machine, answers when it is durable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple
from uuid import UUID

from chronik.client_state import ClientState
from chronik.coordinators.coordinator import ShardedCoordinator
from chronik.coordinators.journal import Journal
from chronik.coordinators.shards import Replicas
from chronik.groups.classic_group import ClassicGroup, State
from chronik.groups.classic_messages import Join, JoinResult, Leave, Persist, Sync, SyncResult
from chronik.groups.committing import (
    FetchedOffset,
    OffsetCommit,
    commit_offsets,
    delete_offsets,
    expire_offsets,
    fetch_offsets,
    forget_topic,
)
from chronik.groups.consumer_group import ConsumerGroup
from chronik.groups.consumer_messages import ConsumerHeartbeat, HeartbeatResult
from chronik.groups.growth_bytes import heartbeat_growth_bytes, join_growth_bytes
from chronik.groups.matching import TopicMatching
from chronik.groups.shard import AnyGroup, CoordinatorConfig, GroupShard
from chronik.groups.subscriptions import Topics, TopicSize
from chronik.log_lines import RepeatingLine
from chronik.metadata.store import MetadataStore
from chronik.model import ErrorCode, RequestError, TopicPartition

log = logging.getLogger(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    kind: str


class GroupCoordinator(ShardedCoordinator[GroupShard, CoordinatorConfig]):
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        replicas: Replicas,
        config: Callable[[], CoordinatorConfig],
        now_ms: Callable[[], int],
        new_uuid: Callable[[], UUID],
        client_state: ClientState,
    ) -> None:
        """`now_ms` is the wall clock, used for timestamps in records. Timers use the event loop's clock."""
        super().__init__(OFFSETS_TOPIC, metadata=metadata, replicas=replicas, config=config, now_ms=now_ms)
        self._new_uuid = new_uuid
        self._topics: Topics | None = None
        self._topics_index = -1
        self._matching = TopicMatching(self._view)
        self._client_state = client_state
        self._no_room = RepeatingLine(
            log, logging.WARNING, "group %s: no room for %d bytes: members of groups hold %d of %d"
        )

    def _build(self, journal: Journal) -> GroupShard:
        return GroupShard(journal, self._config, self._now_ms, self._client_state)

    # -- finding ----------------------------------------------------------------------------------

    async def _shard(self, group_id: str) -> GroupShard:
        if not group_id:
            raise RequestError(ErrorCode.invalid_group_id, "The group id is empty.")
        return await self._shard_of(group_id)

    def _view(self) -> Topics:
        """The cluster's topics as KIP-848 groups see them. Rebuilt only when the metadata has moved."""
        state = self._metadata.state
        if self._topics is None or self._topics_index != state.applied_index:
            by_name = {
                topic.name: TopicSize(topic.topic_id, len(topic.partitions))
                for topic in state.topics.values()
            }
            self._topics_index = state.applied_index
            if self._topics is None or self._topics.by_name != by_name:
                self._topics = Topics(state.applied_index, by_name)
        return self._topics

    def _check_room(self, group_id: str, size_bytes: int) -> None:
        """RequestError if the groups have no memory left for `size_bytes` more. Clients retry on this error:
        memory is freed as the sessions of silent members expire."""
        share = self._client_state.groups
        if size_bytes > 0 and not share.has_room(size_bytes):
            share.note_refusal()
            self._no_room(None, group_id[:80], size_bytes, share.held_bytes, share.bytes_max)
            raise RequestError(ErrorCode.coordinator_not_available, "There is no room for another member.")

    # -- classic groups ---------------------------------------------------------------------------

    def new_member_id(self, prefix: str) -> str:
        return f"{prefix}-{self._new_uuid()}"

    async def join(self, group_id: str, join: Join) -> JoinResult:
        shard = await self._shard(group_id)
        bounds = self.config.classic
        if not bounds.session_timeout_ms_min <= join.session_timeout_ms <= bounds.session_timeout_ms_max:
            raise RequestError(ErrorCode.invalid_session_timeout)
        if join.member_id and group_id not in shard.groups:
            raise RequestError(ErrorCode.unknown_member_id)
        self._check_room(group_id, join_growth_bytes(shard.groups.get(group_id), join))
        group = shard.classic(group_id)
        answer: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        shard.perform(group, group.join(join, answer, now_ms=shard.now_ms()))
        return await answer

    async def sync(self, group_id: str, sync: Sync) -> SyncResult:
        shard = await self._shard(group_id)
        group = self._classic_member_group(shard, group_id)
        assigned = sum(len(member.assignment) for member in group.members.values())
        self._check_room(group_id, sum(len(one) for _, one in sync.assignments) - assigned)
        answer: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        shard.perform(group, group.sync(sync, answer, now_ms=shard.now_ms()))
        return await answer

    async def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> None:
        shard = await self._shard(group_id)
        group = self._classic_member_group(shard, group_id)
        group.heartbeat(member_id, instance_id, generation, now_ms=shard.now_ms())

    async def leave(self, group_id: str, leaves: list[Leave]) -> list[ErrorCode]:
        shard = await self._shard(group_id)
        group = shard.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return await self._remove_members(shard, group, leaves)
        if group is None:
            return [ErrorCode.unknown_member_id for _ in leaves]
        codes, effects = group.leave(leaves, now_ms=shard.now_ms())
        shard.perform(group, effects)
        if any(isinstance(effect, Persist) for effect in effects):
            # Without members. If this were lost, the next member would wait for those that left.
            await shard.journal.settled()
        return codes

    async def _remove_members(
        self, shard: GroupShard, group: ConsumerGroup, leaves: list[Leave]
    ) -> list[ErrorCode]:
        """An operator removes members (removeMembersFromConsumerGroup) of a KIP-848 group."""
        codes: list[ErrorCode] = []
        gone: list[str] = []
        for leave in leaves:
            try:
                member_id = group.find_leaving(leave.member_id, leave.instance_id)
            except RequestError as error:
                codes.append(error.code)
                continue
            codes.append(ErrorCode.none)
            if member_id not in gone:
                gone.append(member_id)
        group.remove(gone)
        shard.account(group.group_id)
        await shard.write_dirty(group)
        return codes

    def _classic_member_group(self, shard: GroupShard, group_id: str) -> ClassicGroup:
        group = shard.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            raise RequestError(ErrorCode.unknown_member_id)
        return group

    # -- KIP-848 groups ---------------------------------------------------------------------------

    async def consumer_heartbeat(self, group_id: str, beat: ConsumerHeartbeat) -> HeartbeatResult:
        shard = await self._shard(group_id)
        self._check_room(group_id, heartbeat_growth_bytes(shard.groups.get(group_id), beat))
        topics = await self._matching.topics_for(shard, group_id, beat.topic_regex)
        group = shard.consumer(group_id, create=beat.member_epoch == 0)
        try:
            result = group.heartbeat(beat, topics, now_ms=shard.now_ms(), new_member_id=str(self._new_uuid()))
        finally:
            if not group.members and not group.epoch:
                shard.groups.pop(group_id, None)  # the very first member was refused
            shard.account(group_id)
        shard.rearm(group_id)
        await shard.write_dirty(group)
        return result

    # -- offsets ----------------------------------------------------------------------------------

    async def commit(self, commit: OffsetCommit) -> frozenset[TopicPartition]:
        """The partitions for which there is no room; see `commit_offsets`."""
        return await commit_offsets(await self._shard_of(commit.group_id), commit)

    async def fetch(
        self,
        group_id: str,
        wanted: Iterable[TopicPartition] | None,
        *,
        require_stable: bool,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> list[FetchedOffset]:
        shard = await self._shard_of(group_id)
        group = shard.groups.get(group_id)
        # Members of classic groups may name themselves and their generation here: Kafka does not look.
        if isinstance(group, ConsumerGroup):
            group.check_fetch(member_id, member_epoch)
        return fetch_offsets(shard, group_id, wanted, require_stable=require_stable)

    async def delete_offsets(
        self, group_id: str, tps: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        shard = await self._shard(group_id)
        topics = await self._matching.topics_for(shard, group_id)
        return await delete_offsets(shard, group_id, tps, topics)

    def end_transaction(self, tp: TopicPartition, producer_id: int, *, commit: bool) -> None:
        """A transaction marker was written to this partition of the offsets topic."""
        shard = self._shards.get_now(tp.partition)
        if tp.topic == OFFSETS_TOPIC and shard is not None:
            shard.end_transaction(producer_id, commit=commit)

    # -- looking and deleting -----------------------------------------------------------------------

    async def describe(self, group_id: str) -> AnyGroup:
        """RequestError(group_id_not_found) if there is none."""
        return (await self._shard_of(group_id)).find(group_id)

    def list(self) -> list[ListedGroup]:
        if self._shards.are_loading:
            raise RequestError(ErrorCode.coordinator_load_in_progress)
        found = []
        for shard in self._shards:
            with_offsets = {group_id for group_id, offsets in shard.offsets.items() if not offsets.is_empty}
            for group_id in shard.groups.keys() | with_offsets:
                found.append(_listed(shard.find(group_id)))
        return found

    def consumer_groups(self) -> Iterator[ConsumerGroup]:
        """The groups coordinated here whose partitions the broker assigns."""
        for shard in self._shards:
            yield from (group for group in shard.groups.values() if isinstance(group, ConsumerGroup))

    def committed(self) -> Iterator[tuple[str, TopicPartition, int]]:
        """Group, partition and offset of everything committed to groups coordinated here."""
        for shard in self._shards:
            for group_id, offsets in shard.offsets.items():
                for tp, committed in offsets:
                    yield group_id, tp, committed.offset

    async def delete(self, group_id: str) -> None:
        await (await self._shard(group_id)).delete(group_id)

    # -- forgetting -------------------------------------------------------------------------------

    def _expire(self, shard: GroupShard) -> None:
        expire_offsets(shard, self._matching.topics_now(shard))

    def _on_topic_deleted(self, topic: str) -> None:
        for shard in self._shards:
            forget_topic(shard, topic)


def _listed(group: AnyGroup) -> ListedGroup:
    if isinstance(group, ConsumerGroup):
        return ListedGroup(group.group_id, "consumer", group.state_name(), "consumer")
    state = State.EMPTY if group.state is State.DEAD else group.state
    return ListedGroup(group.group_id, group.protocol_type or "", state.value, "classic")
