"""The classic consumer group as a pure state machine.

    EMPTY       --join-->                PREPARING    gathering members until all joined or time is up
    PREPARING   --all joined, time-->    COMPLETING   new generation; the leader works out the assignment
    PREPARING   --nobody left-->         EMPTY
    COMPLETING  --assignment durable-->  STABLE
    COMPLETING, STABLE --change-->       PREPARING    somebody joined, left, expired or changed subscription
    any         --close-->               DEAD

Every function takes the time; waiting requests are tokens that come back in an `Answer`. The assignment
is handed out only after `persisted`, so that no coordinator that takes over can give the same generation
a second meaning. The broker never looks into subscriptions or assignments, which is why eager and
cooperative rebalancing are the same to it.

KIP-345 static members, KIP-394 ids before joining, KIP-814 static leaders that need not assign.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from chronik.groups.classic_member import MEMBER_OVERHEAD_BYTES, Member, protocols_bytes
from chronik.groups.classic_messages import (
    Answer,
    ClassicGroupConfig,
    Effect,
    Join,
    JoinedMember,
    JoinResult,
    Leave,
    Persist,
    SavedGroup,
    Sync,
    SyncResult,
    Token,
)
from chronik.groups.roster import Roster
from chronik.model import ErrorCode, RequestError, invariant


class State(enum.Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


NEXT: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING, State.DEAD}),
    State.PREPARING: frozenset({State.COMPLETING, State.EMPTY, State.DEAD}),
    State.COMPLETING: frozenset({State.STABLE, State.PREPARING, State.DEAD}),
    State.STABLE: frozenset({State.PREPARING, State.DEAD}),
    State.DEAD: frozenset({State.DEAD}),
}


@dataclass(slots=True)
class _WaitingAnswers:
    """Answers that wait for a record to be durable."""

    answers: list[Answer] = field(default_factory=list)
    generation: int | None = None
    """Set when the record carries the assignment of this generation."""


class ClassicGroup:
    """One classic group. See the module's docstring."""

    def __init__(self, group_id: str, config: ClassicGroupConfig, *, now_ms: int) -> None:
        self.group_id = group_id
        self.config = config
        self.state = State.EMPTY
        self.state_since_ms = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self._roster = Roster()
        self.members = self._roster.members
        self._join_deadline_ms: int | None = None
        self._initial_left_ms: int | None = None
        """Time by which the first rebalance of an empty group may still be extended; else None."""
        self._member_added = False
        self._sync_deadline_ms: int | None = None
        self._held: dict[int, _WaitingAnswers] = {}
        self._persist_number = 0

    # -- joining ----------------------------------------------------------------------------------

    def join(self, join: Join, token: Token, *, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        try:
            self._check_join(join)
            if not join.member_id:
                self._join_unknown(join, token, effects, now_ms)
            else:
                self._join_known(join, token, effects, now_ms)
        except RequestError as error:
            effects.append(Answer(token, JoinResult(error=error.code, member_id=join.member_id)))
        return effects

    def _check_join(self, join: Join) -> None:
        if self.state is State.DEAD:
            raise RequestError(ErrorCode.coordinator_not_available)
        low, high = self.config.session_timeout_ms_min, self.config.session_timeout_ms_max
        if not low <= join.session_timeout_ms <= high:
            raise RequestError(ErrorCode.invalid_session_timeout)
        if not join.protocol_type or not join.protocols:
            raise RequestError(ErrorCode.inconsistent_group_protocol)
        if protocols_bytes(join.protocols) > self.config.member_bytes_max:
            raise RequestError(ErrorCode.invalid_request)
        self._roster.check_join(join, self.protocol_type, self.config.group_size_max)

    def _join_unknown(self, join: Join, token: Token, effects: list[Effect], now_ms: int) -> None:
        if join.instance_id is not None:
            if self._roster.static_id(join.instance_id) is not None:
                self._replace_static(join, token, effects, now_ms)
            else:
                self._add_member(join, join.new_member_id, token, effects, now_ms)
        elif join.requires_known_member_id:
            self._roster.await_join(join.new_member_id, now_ms + join.session_timeout_ms)
            result = JoinResult(error=ErrorCode.member_id_required, member_id=join.new_member_id)
            effects.append(Answer(token, result))
        else:
            self._add_member(join, join.new_member_id, token, effects, now_ms)

    def _join_known(self, join: Join, token: Token, effects: list[Effect], now_ms: int) -> None:
        if self._roster.take_pending(join.member_id):
            self._add_member(join, join.member_id, token, effects, now_ms)
            return
        member = self._member(join.member_id, join.instance_id)
        if self.state is State.STABLE:
            unchanged = member.protocols == join.protocols and member.member_id != self.leader
        else:
            unchanged = self.state is State.COMPLETING and member.protocols == join.protocols
        if unchanged:
            # A retry after a lost response, or a follower that rejoins: answer with the present generation.
            member.deadline_ms = now_ms + member.session_timeout_ms
            effects.append(Answer(token, self._joined(member)))
            return
        member.update(join)
        self._wait_for_join(member, join, token, effects, now_ms)

    def _add_member(
        self, join: Join, member_id: str, token: Token, effects: list[Effect], now_ms: int
    ) -> None:
        if not self.members:
            self.protocol_type = join.protocol_type
        member = Member.joining(join, member_id)
        self._roster.add(member)
        if self.leader is None:
            self.leader = member_id
        self._member_added = True
        self._wait_for_join(member, join, token, effects, now_ms)

    def _replace_static(self, join: Join, token: Token, effects: list[Effect], now_ms: int) -> None:
        """A static member came back under a new id: its old self is fenced, its place is kept (KIP-345)."""
        static_id = self._roster.static_id(join.instance_id)
        invariant(static_id is not None, "a static member without an instance id")
        member = self.members[str(static_id)]
        old_id, old_protocols = member.member_id, member.protocols
        effects += member.refuse_waiting(ErrorCode.fenced_instance_id)
        self._roster.rename(member, join.new_member_id)
        was_leader = self.leader == old_id
        if was_leader:
            self.leader = member.member_id
        member.update(join)
        member.deadline_ms = now_ms + member.session_timeout_ms
        same_subscription = dict(old_protocols).get(self.protocol or "") == member.metadata(self.protocol)
        if (
            self.state is not State.STABLE
            or not same_subscription
            or self._roster.choose_protocol() != self.protocol
        ):
            self._wait_for_join(member, join, token, effects, now_ms)
            return
        result = self._joined(member)
        if was_leader:
            # The group is stable, so this leader must not assign. Clients older than KIP-814 cannot skip the
            # assignment: their response names the old id as leader.
            if join.supports_skipping_assignment:
                result = self._joined(member, skip_assignment=True)
            else:
                result = JoinResult(
                    member_id=member.member_id,
                    generation=self.generation,
                    protocol_type=self.protocol_type,
                    protocol=self.protocol,
                    leader=old_id,
                )
        held = self._persist(effects)
        held.answers.append(Answer(token, result))

    def _wait_for_join(
        self, member: Member, join: Join, token: Token, effects: list[Effect], now_ms: int
    ) -> None:
        if member.join_token is not None:
            # A second JoinGroup of this member: only the newest one waits for the generation.
            again = JoinResult(error=ErrorCode.rebalance_in_progress, member_id=member.member_id)
            effects.append(Answer(member.join_token, again))
        member.join_token = token
        wait_ms = self.config.new_member_join_timeout_ms if member.is_new else member.session_timeout_ms
        member.deadline_ms = now_ms + wait_ms
        if self.state is not State.PREPARING:
            self._prepare_rebalance(effects, now_ms)
        self._try_complete_join(effects, now_ms)

    # -- rebalancing ------------------------------------------------------------------------------

    def _prepare_rebalance(self, effects: list[Effect], now_ms: int) -> None:
        was_empty = self.state is State.EMPTY
        for member in self.members.values():
            if member.sync_token is not None:
                effects.append(Answer(member.sync_token, SyncResult(error=ErrorCode.rebalance_in_progress)))
                member.sync_token = None
                member.deadline_ms = now_ms + member.session_timeout_ms
        self._move(State.PREPARING, now_ms)
        self._sync_deadline_ms = None
        timeout_ms = self._roster.rebalance_timeout_ms()
        if was_empty and self.config.initial_rebalance_delay_ms > 0:
            delay_ms = min(self.config.initial_rebalance_delay_ms, timeout_ms)
            self._initial_left_ms = max(timeout_ms - delay_ms, 0)
            self._join_deadline_ms = now_ms + delay_ms
            self._member_added = False
        else:
            self._join_deadline_ms = now_ms + timeout_ms

    def _try_complete_join(self, effects: list[Effect], now_ms: int) -> None:
        if self.state is not State.PREPARING or self._initial_left_ms is not None or self._roster.has_pending:
            return
        if all(member.join_token is not None for member in self.members.values()):
            self._complete_join(effects, now_ms)

    def _join_time_is_up(self, effects: list[Effect], now_ms: int) -> None:
        if self._initial_left_ms and self._member_added:
            # Members still stream in: draw the first rebalance out a little, within its time-out.
            delay_ms = min(self.config.initial_rebalance_delay_ms, self._initial_left_ms)
            self._initial_left_ms -= delay_ms
            self._join_deadline_ms = now_ms + delay_ms
            self._member_added = False
            return
        self._complete_join(effects, now_ms)

    def _complete_join(self, effects: list[Effect], now_ms: int) -> None:
        self._initial_left_ms = None
        for member in [m for m in self.members.values() if m.join_token is None and m.instance_id is None]:
            self._forget(member, effects)
        joined = [member for member in self.members.values() if member.join_token is not None]
        if self.members and not joined:
            # Only static members, none back yet: wait until they return or their sessions expire.
            self._join_deadline_ms = now_ms + self._roster.rebalance_timeout_ms()
            return
        self._join_deadline_ms = None
        self.generation += 1
        if not self.members:
            self.protocol = self.leader = None
            self._move(State.EMPTY, now_ms)
            self._persist(effects)
            return
        leader = self.members.get(self.leader or "")
        if leader is None or leader.join_token is None:
            self.leader = joined[0].member_id
        self.protocol = self._roster.choose_protocol()
        self._move(State.COMPLETING, now_ms)
        self._sync_deadline_ms = now_ms + self._roster.rebalance_timeout_ms()
        for member in self.members.values():
            member.assignment = b""
            member.has_synced = False
        for member in joined:
            effects.append(Answer(member.join_token, self._joined(member)))
            member.join_token = None
            member.is_new = False
            member.deadline_ms = now_ms + member.session_timeout_ms

    def _joined(self, member: Member, *, skip_assignment: bool = False) -> JoinResult:
        members: tuple[JoinedMember, ...] = ()
        if member.member_id == self.leader:
            members = tuple(
                JoinedMember(
                    member_id=other.member_id,
                    instance_id=other.instance_id,
                    metadata=other.metadata(self.protocol),
                )
                for other in self.members.values()
            )
        return JoinResult(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader or "",
            members=members,
            skip_assignment=skip_assignment,
        )

    # -- syncing ----------------------------------------------------------------------------------

    def sync(self, sync: Sync, token: Token, *, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        try:
            member = self._member(sync.member_id, sync.instance_id)
            self._check_generation(sync.generation)
            if sync.protocol_type not in (None, self.protocol_type) or sync.protocol not in (
                None,
                self.protocol,
            ):
                raise RequestError(ErrorCode.inconsistent_group_protocol)
            if self.state is State.PREPARING:
                raise RequestError(ErrorCode.rebalance_in_progress)
            if any(len(assignment) > self.config.member_bytes_max for _, assignment in sync.assignments):
                raise RequestError(ErrorCode.invalid_request)
        except RequestError as error:
            return [Answer(token, SyncResult(error=error.code))]
        member.deadline_ms = now_ms + member.session_timeout_ms
        member.has_synced = True
        if self.state is State.STABLE:
            return [Answer(token, self._synced(member))]
        if member.sync_token is not None:
            effects.append(Answer(member.sync_token, SyncResult(error=ErrorCode.rebalance_in_progress)))
        member.sync_token = token
        if member.member_id == self.leader and not self._is_assignment_under_way():
            assignments = dict(sync.assignments)
            for other in self.members.values():
                other.assignment = assignments.get(other.member_id, b"")
            self._persist(effects).generation = self.generation
        return effects

    def _synced(self, member: Member) -> SyncResult:
        return SyncResult(
            protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment
        )

    def _is_assignment_under_way(self) -> bool:
        return any(held.generation == self.generation for held in self._held.values())

    def _persist(self, effects: list[Effect]) -> _WaitingAnswers:
        self._persist_number += 1
        held = self._held[self._persist_number] = _WaitingAnswers()
        effects.append(Persist(self._persist_number, self.saved()))
        return held

    def persisted(self, number: int, *, now_ms: int, error: ErrorCode = ErrorCode.none) -> list[Effect]:
        """The record of this `Persist` is durable, or `error` says why it is not."""
        held = self._held.pop(number, None)
        if held is None:
            return []
        effects: list[Effect] = list(held.answers)
        if error is not ErrorCode.none:
            effects = [
                Answer(answer.token, JoinResult(error=error, member_id=answer.result.member_id))
                for answer in held.answers
                if isinstance(answer.result, JoinResult)
            ]
        if held.generation != self.generation or self.state is not State.COMPLETING:
            return effects
        if error is ErrorCode.none:
            self._move(State.STABLE, now_ms)
        for member in self.members.values():
            if member.sync_token is None:
                continue
            result = self._synced(member) if error is ErrorCode.none else SyncResult(error=error)
            effects.append(Answer(member.sync_token, result))
            member.sync_token = None
            member.deadline_ms = now_ms + member.session_timeout_ms
        if error is not ErrorCode.none:
            self._prepare_rebalance(effects, now_ms)
        return effects

    # -- staying and leaving ----------------------------------------------------------------------

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, *, now_ms: int) -> None:
        """Raises RequestError; rebalance_in_progress tells the member to join again."""
        member = self._member(member_id, instance_id)
        self._check_generation(generation)
        member.deadline_ms = now_ms + member.session_timeout_ms
        if self.state is State.PREPARING:
            raise RequestError(ErrorCode.rebalance_in_progress)

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        now_ms: int,
        is_transactional: bool = False,
    ) -> None:
        """Raise RequestError if this member may not commit offsets."""
        if self.state is State.DEAD:
            raise RequestError(ErrorCode.coordinator_not_available)
        anonymous = generation < 0 and not member_id and instance_id is None
        if generation < 0 and (self.state is State.EMPTY or (is_transactional and anonymous)):
            return
        if anonymous:
            raise RequestError(ErrorCode.unknown_member_id)
        member = self._member(member_id, instance_id)
        self._check_generation(generation)
        if self.state is State.COMPLETING and not is_transactional:
            raise RequestError(ErrorCode.rebalance_in_progress)
        member.deadline_ms = now_ms + member.session_timeout_ms

    def leave(self, leaves: Iterable[Leave], *, now_ms: int) -> tuple[list[ErrorCode], list[Effect]]:
        """One error code per member that wants to leave, in order."""
        effects: list[Effect] = []
        codes = []
        for leave in leaves:
            try:
                self._leave(leave, effects)
                codes.append(ErrorCode.none)
            except RequestError as error:
                codes.append(error.code)
        if ErrorCode.none in codes:
            self._members_changed(effects, now_ms)
        return codes, effects

    def _leave(self, leave: Leave, effects: list[Effect]) -> None:
        if self.state is State.DEAD:
            raise RequestError(ErrorCode.coordinator_not_available)
        if self._roster.take_pending(leave.member_id):
            return
        member_id = leave.member_id or self._roster.static_id(leave.instance_id) or ""
        self._forget(self._member(member_id, leave.instance_id), effects)

    def _members_changed(self, effects: list[Effect], now_ms: int) -> None:
        if self.state in (State.COMPLETING, State.STABLE):
            self._prepare_rebalance(effects, now_ms)
        self._try_complete_join(effects, now_ms)

    def _forget(self, member: Member, effects: list[Effect]) -> None:
        effects += member.refuse_waiting(ErrorCode.unknown_member_id)
        self._roster.remove(member)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    # -- time -------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """When `advance` has something to do, unless something happens before."""
        deadlines = self._roster.deadlines_ms()
        deadlines += [ms for ms in (self._join_deadline_ms, self._sync_deadline_ms) if ms is not None]
        return min(deadlines, default=None)

    def advance(self, *, now_ms: int) -> list[Effect]:
        """Do what is due: expire members, end a rebalance that took too long."""
        effects: list[Effect] = []
        self._roster.expire_pending(now_ms)
        changed = self._expire_sessions(effects, now_ms)
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now_ms:
            self._sync_deadline_ms = None
            for member in [m for m in self.members.values() if not m.has_synced]:
                self._forget(member, effects)
                changed = True
        if changed:
            self._members_changed(effects, now_ms)
        else:
            self._try_complete_join(effects, now_ms)
        if self._join_deadline_ms is not None and self._join_deadline_ms <= now_ms:
            self._join_time_is_up(effects, now_ms)
        return effects

    def _expire_sessions(self, effects: list[Effect], now_ms: int) -> bool:
        changed = False
        for member in [m for m in self.members.values() if m.deadline_ms <= now_ms]:
            waits = member.join_token is not None or member.sync_token is not None
            if waits and not member.is_new:
                member.deadline_ms = now_ms + member.session_timeout_ms
            else:
                self._forget(member, effects)
                changed = True
        return changed

    def close(self, code: ErrorCode, *, now_ms: int) -> list[Effect]:
        """The group was deleted or has a new coordinator: answer all waiting requests with `code`."""
        effects: list[Effect] = []
        for held in self._held.values():
            effects += [
                Answer(answer.token, JoinResult(error=code))
                for answer in held.answers
                if isinstance(answer.result, JoinResult)
            ]
        self._held.clear()
        for member in self.members.values():
            effects += member.refuse_waiting(code)
        self._join_deadline_ms = self._sync_deadline_ms = None
        self._move(State.DEAD, now_ms)
        return effects

    # -- saving -----------------------------------------------------------------------------------

    def saved(self) -> SavedGroup:
        return SavedGroup(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            state_since_ms=self.state_since_ms,
            members=tuple(member.saved(self.protocol) for member in self.members.values()),
        )

    @classmethod
    def restore(
        cls, group_id: str, saved: SavedGroup, config: ClassicGroupConfig, *, now_ms: int
    ) -> ClassicGroup:
        """The group from its record. Every member starts with a full session time-out."""
        group = cls(group_id, config, now_ms=saved.state_since_ms)
        group.generation = saved.generation
        group.protocol_type = saved.protocol_type or None
        group.protocol, group.leader = saved.protocol, saved.leader
        for member in saved.members:
            group._roster.add(Member.restore(member, saved.protocol, now_ms=now_ms))
        group.state = State.STABLE if group.members else State.EMPTY
        return group

    def size_bytes(self) -> int:
        """What the group makes a node remember, about."""
        return MEMBER_OVERHEAD_BYTES + len(self.group_id) + self._roster.size_bytes()

    def static_id(self, instance_id: str | None) -> str | None:
        """Id of the member that has this instance id."""
        return self._roster.static_id(instance_id)

    @property
    def is_unused(self) -> bool:
        """No member ever joined. Member ids that were only handed out (KIP-394) do not count."""
        return not self.members and not self._roster.has_pending and self.generation == 0

    # -- small parts ------------------------------------------------------------------------------

    def _member(self, member_id: str, instance_id: str | None) -> Member:
        if self.state is State.DEAD:
            raise RequestError(ErrorCode.coordinator_not_available)
        return self._roster.member(member_id, instance_id)

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise RequestError(ErrorCode.illegal_generation)

    def _move(self, state: State, now_ms: int) -> None:
        invariant(state in NEXT[self.state], f"group moved from {self.state} to {state}")
        self.state = state
        self.state_since_ms = now_ms
