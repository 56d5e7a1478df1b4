"""The groups whose state is in one partition of `__consumer_offsets`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from chronik.client_state import ClientState
from chronik.coordinators.journal import AppendResult, Journal
from chronik.groups.classic_group import ClassicGroup, State
from chronik.groups.classic_messages import Answer, ClassicGroupConfig, Effect, Persist
from chronik.groups.consumer_group import ConsumerGroup
from chronik.groups.consumer_messages import ConsumerGroupConfig, DirtyPart, Part
from chronik.groups.offsets import GROUP_BYTES, GroupOffsets
from chronik.groups.records import (
    GroupKey,
    Key,
    OffsetKey,
    PartKey,
    apply_part,
    decode_committed,
    decode_group,
    decode_key,
    encode_group,
    encode_key,
    encode_part,
)
from chronik.metadata.broker_config import broker_value
from chronik.metadata.group_config import group_value
from chronik.model import ErrorCode, ProducerIdentity, RequestError
from chronik.records.batch import BatchHeader, Buffer
from chronik.records.reader import Record, read_marker, read_records

log = logging.getLogger(__name__)

AnyGroup: TypeAlias = ClassicGroup | ConsumerGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    classic: ClassicGroupConfig
    consumer: ConsumerGroupConfig
    topic_partitions: int
    offset_metadata_bytes_max: int
    offsets_retention_ms: int
    expiry_interval_ms: int
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What single groups have instead, by group id."""

    def consumer_of(self, group_id: str) -> ConsumerGroupConfig:
        """For this consumer group: its own values over the broker's."""
        own = self.group_configs.get(group_id)
        if not own:
            return self.consumer
        return replace(
            self.consumer,
            session_timeout_ms=group_value(
                "consumer.session.timeout.ms", own, self.consumer.session_timeout_ms
            ),
            heartbeat_interval_ms=group_value(
                "consumer.heartbeat.interval.ms", own, self.consumer.heartbeat_interval_ms
            ),
        )

    @staticmethod
    def resolve(
        layers: tuple[Mapping[str, str], ...],
        *,
        topic_partitions: int,
        group_configs: Mapping[str, Mapping[str, str]] | None = None,
    ) -> CoordinatorConfig:
        """Read the values from this broker's configs, strongest layer first."""
        return CoordinatorConfig(
            classic=ClassicGroupConfig(
                session_timeout_ms_min=broker_value("group.min.session.timeout.ms", layers),
                session_timeout_ms_max=broker_value("group.max.session.timeout.ms", layers),
                initial_rebalance_delay_ms=broker_value("group.initial.rebalance.delay.ms", layers),
                group_size_max=broker_value("group.max.size", layers),
            ),
            consumer=ConsumerGroupConfig(
                session_timeout_ms=broker_value("group.consumer.session.timeout.ms", layers),
                heartbeat_interval_ms=broker_value("group.consumer.heartbeat.interval.ms", layers),
                group_size_max=broker_value("group.consumer.max.size", layers),
                assignors=broker_value("group.consumer.assignors", layers),
            ),
            topic_partitions=topic_partitions,
            offset_metadata_bytes_max=broker_value("offset.metadata.max.bytes", layers),
            offsets_retention_ms=broker_value("offsets.retention.minutes", layers) * 60_000,
            expiry_interval_ms=broker_value("offsets.retention.check.interval.ms", layers),
            group_configs=group_configs or {},
        )


class GroupShard:
    """State, replay and timers. The pure groups decide; this performs what they say."""

    def __init__(
        self,
        journal: Journal,
        config: Callable[[], CoordinatorConfig],
        now_ms: Callable[[], int],
        client_state: ClientState,
    ) -> None:
        self.journal = journal
        self._config = config
        self.groups: dict[str, AnyGroup] = {}
        self.offsets: dict[str, GroupOffsets] = {}
        self._wall_ms = now_ms
        self._timers: dict[str, tuple[int, asyncio.TimerHandle]] = {}
        self._closed = False
        self._sizes: dict[str, int] = {}
        self._group_bytes = client_state.groups.hold()
        self.offset_bytes = client_state.committed_offsets.hold()

    @property
    def config(self) -> CoordinatorConfig:
        """The config that holds now."""
        return self._config()

    # -- time: machines run on the loop's clock, which never jumps; records carry the wall clock ------

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def wall_ms(self) -> int:
        return self._wall_ms()

    def _to_wall(self, loop_ms: int) -> int:
        return self._wall_ms() - (self.now_ms() - loop_ms)

    def _to_loop(self, wall_ms: int) -> int:
        return self.now_ms() - (self._wall_ms() - wall_ms)

    # -- replay -----------------------------------------------------------------------------------

    def apply(self, header: BatchHeader, batch: Buffer) -> None:
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None:
                self.end_transaction(header.producer_id, commit=marker.is_commit)
            return
        producer_id = header.producer_id if header.is_transactional else None
        for record in read_records(batch):
            try:
                self._apply_record(record, producer_id)
            except ValueError as error:
                log.error("%s: record %d is skipped: %s", self.journal.partition.tp, record.offset, error)

    def _apply_record(self, record: Record, producer_id: int | None) -> None:
        key = decode_key(record.key or b"")
        match key:
            case OffsetKey(group_id, tp):
                offsets = self.offsets_of(group_id)
                if record.value is None:
                    offsets.delete(tp)
                    return
                committed = decode_committed(record.value, record_offset=record.offset)
                if producer_id is None:
                    offsets.commit(tp, committed)
                else:
                    offsets.pend(producer_id, tp, committed)
            case GroupKey(group_id):
                if record.value is None:
                    if isinstance(self.groups.get(group_id), ClassicGroup):
                        del self.groups[group_id]
                    return
                saved = decode_group(record.value)
                saved = replace(saved, state_since_ms=self._to_loop(saved.state_since_ms))
                self.groups[group_id] = ClassicGroup.restore(
                    group_id, saved, self.config.classic, now_ms=self.now_ms()
                )
            case PartKey(group_id, part, _):
                if record.value is None and part is Part.GROUP:
                    if isinstance(self.groups.get(group_id), ConsumerGroup):
                        del self.groups[group_id]
                    return
                group = self.groups.get(group_id)
                if not isinstance(group, ConsumerGroup):
                    if record.value is None:
                        return
                    group = self.groups[group_id] = ConsumerGroup(group_id, self.config.consumer_of(group_id))
                apply_part(group, key, record.value)
            case None:
                pass

    def opened(self) -> None:
        for group_id, group in self.groups.items():
            if isinstance(group, ConsumerGroup):
                group.after_replay(now_ms=self.now_ms())
            self.rearm(group_id)
            self.account(group_id)
        if self.groups or self.offsets:
            found = len(self.groups.keys() | self.offsets.keys())
            log.info("%s: coordinating %d groups", self.journal.partition.tp, found)

    def close(self) -> None:
        self._closed = True
        self._group_bytes.release()
        self.offset_bytes.release()
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for group in self.groups.values():
            if isinstance(group, ClassicGroup):
                self._answer(group.close(ErrorCode.not_coordinator, now_ms=self.now_ms()))

    # -- finding ----------------------------------------------------------------------------------

    def offsets_of(self, group_id: str) -> GroupOffsets:
        offsets = self.offsets.get(group_id)
        if offsets is None:
            self.offset_bytes.add(GROUP_BYTES + len(group_id))
            offsets = self.offsets[group_id] = GroupOffsets(self.offset_bytes)
        return offsets

    def drop_offsets(self, group_id: str) -> None:
        """Forget a group's offsets, here only: tombstones are the caller's business."""
        offsets = self.offsets.pop(group_id, None)
        if offsets is not None:
            offsets.clear()
            self.offset_bytes.add(-GROUP_BYTES - len(group_id))

    def offsets_of_existing(self, group_id: str) -> GroupOffsets:
        offsets = self.offsets.get(group_id)
        return GroupOffsets() if offsets is None else offsets

    def find(self, group_id: str) -> AnyGroup:
        """An existing group; one that has only offsets is an empty classic one."""
        group = self.groups.get(group_id)
        if group is None:
            if self.offsets_of_existing(group_id).is_empty:
                raise RequestError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
            group = ClassicGroup(group_id, self.config.classic, now_ms=self.now_ms())
        return group

    def classic(self, group_id: str) -> ClassicGroup:
        """The classic group of this id, created if missing. Replaces an empty KIP-848 group."""
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            if group.members:
                raise RequestError(
                    ErrorCode.inconsistent_group_protocol, f"Group {group_id} uses the consumer protocol."
                )
            self.append([(key, None) for key in self._keys_of(group)], lambda written: None)
            del self.groups[group_id]
            group = None
        if group is None:
            group = self.groups[group_id] = ClassicGroup(group_id, self.config.classic, now_ms=self.now_ms())
        group.config = self.config.classic
        return group

    def consumer(self, group_id: str, *, create: bool) -> ConsumerGroup:
        group = self.groups.get(group_id)
        if isinstance(group, ClassicGroup):
            if group.state is not State.EMPTY:
                raise RequestError(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")
            if create:
                self._stop_timer(group_id)
                del self.groups[group_id]
                self.append([(GroupKey(group_id), None)], lambda written: None)
            group = None
        if group is None:
            if not create:
                raise RequestError(ErrorCode.group_id_not_found, f"Consumer group {group_id} not found.")
            group = self.groups[group_id] = ConsumerGroup(group_id, self.config.consumer_of(group_id))
        group.config = self.config.consumer_of(group_id)
        return group

    # -- writing ----------------------------------------------------------------------------------

    def append(
        self,
        records: Sequence[tuple[Key, bytes | None]],
        done: Callable[[AppendResult], None],
        *,
        producer: ProducerIdentity | None = None,
    ) -> int:
        encoded = [(encode_key(key), value) for key, value in records]
        return self.journal.append(encoded, done, producer=producer)

    async def write(
        self, records: Sequence[tuple[Key, bytes | None]], *, producer: ProducerIdentity | None = None
    ) -> int:
        encoded = [(encode_key(key), value) for key, value in records]
        return await self.journal.write(encoded, producer=producer)

    async def write_dirty(self, group: ConsumerGroup) -> None:
        """Write the dirty parts of the group and wait until they are durable. Failed ones stay dirty."""
        dirty = set(group.dirty)
        if not dirty:
            return
        group.dirty.clear()
        try:
            await self.write(self._encode_dirty(group, dirty))
        except RequestError:
            group.dirty |= dirty
            raise

    def _encode_dirty(
        self, group: ConsumerGroup, dirty: Iterable[DirtyPart]
    ) -> list[tuple[Key, bytes | None]]:
        keys = [
            PartKey(group.group_id, part, member_id) for part, member_id in sorted(dirty, key=_dirty_order)
        ]
        return [(key, encode_part(group, key)) for key in keys]

    def _keys_of(self, group: AnyGroup) -> list[Key]:
        """All records that the group may have."""
        if isinstance(group, ClassicGroup):
            return [GroupKey(group.group_id)]
        members = sorted(set(group.members) | set(group.target))
        per_member = (Part.CURRENT, Part.TARGET, Part.MEMBER)
        keys: list[Key] = [PartKey(group.group_id, part, member) for member in members for part in per_member]
        return [*keys, PartKey(group.group_id, Part.TARGET_EPOCH), PartKey(group.group_id, Part.GROUP)]

    async def delete(self, group_id: str) -> None:
        """Forget an empty group and its offsets."""
        group = self.find(group_id)
        if isinstance(group, ClassicGroup) and group.state is not State.EMPTY:
            raise RequestError(ErrorCode.non_empty_group)
        if isinstance(group, ConsumerGroup) and group.members:
            raise RequestError(ErrorCode.non_empty_group)
        offsets = self.offsets_of_existing(group_id)
        keys: list[Key] = [OffsetKey(group_id, tp) for tp, _ in offsets]
        keys += self._keys_of(group)
        self.groups.pop(group_id, None)
        self.drop_offsets(group_id)
        self._stop_timer(group_id)
        self.account(group_id)
        if isinstance(group, ClassicGroup):
            self._answer(group.close(ErrorCode.coordinator_not_available, now_ms=self.now_ms()))
        await self.write([(key, None) for key in keys])

    def forget(self, group_id: str) -> None:
        """Drop an empty group that has no offsets."""
        group = self.groups.pop(group_id)
        self._stop_timer(group_id)
        self.account(group_id)
        self.append([(key, None) for key in self._keys_of(group)], lambda written: None)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        for offsets in self.offsets.values():
            offsets.end_transaction(producer_id, commit=commit)

    def account(self, group_id: str) -> None:
        """Count again what a group takes, since it changed."""
        group = self.groups.get(group_id)
        size = 0 if group is None else group.size_bytes()
        self._group_bytes.add(size - self._sizes.pop(group_id, 0))
        if group is not None:
            self._sizes[group_id] = size

    # -- performing what a classic group says ---------------------------------------------------------

    def perform(self, group: ClassicGroup, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                self._persist(group, effect)
        self._answer(effects)
        self.rearm(group.group_id)
        if group.is_unused and self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
        self.account(group.group_id)

    def _persist(self, group: ClassicGroup, persist: Persist) -> None:
        def done(written: AppendResult) -> None:
            if not self._closed:
                self.perform(
                    group, group.persisted(persist.number, now_ms=self.now_ms(), error=written.error)
                )

        saved = replace(persist.saved, state_since_ms=self._to_wall(persist.saved.state_since_ms))
        self.append([(GroupKey(group.group_id), encode_group(saved))], done)

    def _answer(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                token = effect.token
                if isinstance(token, asyncio.Future) and not token.done():
                    token.set_result(effect.result)

    # -- timers -----------------------------------------------------------------------------------

    def rearm(self, group_id: str) -> None:
        """Wake up when the group's next deadline comes; an earlier timer just finds nothing to do."""
        group = self.groups.get(group_id)
        deadline_ms = None if group is None else group.next_deadline_ms()
        present = self._timers.get(group_id)
        if deadline_ms is None or self._closed:
            self._stop_timer(group_id)
            return
        if present is not None:
            if present[0] <= deadline_ms:
                return
            present[1].cancel()
        delay_s = max(deadline_ms - self.now_ms(), 0) / 1000
        timer = asyncio.get_running_loop().call_later(delay_s + 0.001, self._on_timer, group_id)
        self._timers[group_id] = (deadline_ms, timer)

    def _stop_timer(self, group_id: str) -> None:
        present = self._timers.pop(group_id, None)
        if present is not None:
            present[1].cancel()

    def _on_timer(self, group_id: str) -> None:
        self._timers.pop(group_id, None)
        group = self.groups.get(group_id)
        if self._closed or group is None:
            return
        if isinstance(group, ClassicGroup):
            self.perform(group, group.advance(now_ms=self.now_ms()))
            return
        gone = group.advance(now_ms=self.now_ms())
        if gone:
            log.info("group %s: members %s sent no heartbeat in time", group_id, ", ".join(gone))
            dirty = set(group.dirty)
            group.dirty.clear()

            def done(written: AppendResult) -> None:
                if written.error is not ErrorCode.none:
                    group.dirty |= dirty

            self.append(self._encode_dirty(group, dirty), done)
            self.account(group_id)
        self.rearm(group_id)


def _dirty_order(dirty: DirtyPart) -> tuple[str, int]:
    """Members before what refers to them."""
    return dirty.member_id, dirty.part.value
