"""The consumer group of KIP-848 as a pure state machine, driven by ConsumerGroupHeartbeat.

Three epochs say how far everybody is:
- the group epoch grows whenever members, subscriptions or topics change;
- the assignment epoch is the group epoch for which the target assignment was computed;
- a member's epoch is the assignment epoch it has reached.

A member moves towards its target step by step, one step per heartbeat:

    STABLE      has what the target of its epoch says
    UNREVOKED   was told to give partitions up and has not yet said that it did
    UNRELEASED  waits for partitions that others have not given up yet

A partition is given to a member only when nobody else holds it, whether assigned or still to be revoked
(`_owners`), so no partition is ever in two hands. What changed is noted in `dirty`; the coordinator
writes those records and answers after they are durable.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chronik.groups.assignors import Partition, Partitions
from chronik.groups.classic_member import MEMBER_OVERHEAD_BYTES
from chronik.groups.consumer_member import NOTHING, PARTITION_BYTES, ConsumerMember, MemberState
from chronik.groups.consumer_messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupConfig,
    ConsumerHeartbeat,
    DirtyPart,
    HeartbeatResult,
    Part,
)
from chronik.groups.consumer_target import (
    choose_assignor,
    compute_target,
    regex_matches,
    subscribed_names,
    topics_hash,
)
from chronik.groups.subscriptions import Topics, held_matches, subscription_bytes
from chronik.model import ErrorCode, RequestError, invariant


@dataclass(slots=True)
class ConsumerGroup:
    """One group. See the module's docstring."""

    group_id: str
    config: ConsumerGroupConfig
    epoch: int = 0
    assignment_epoch: int = 0
    metadata_hash: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    target: dict[str, Partitions] = field(default_factory=dict)
    dirty: set[DirtyPart] = field(default_factory=set)
    _static: dict[str, str] = field(default_factory=dict)
    _owners: dict[Partition, str] = field(default_factory=dict)
    _topics_version: int | None = None
    _is_filtered: bool = False
    """Whether ACLs decide what members see, as the last heartbeat said."""

    # -- the heartbeat ----------------------------------------------------------------------------

    def heartbeat(
        self, beat: ConsumerHeartbeat, topics: Topics, *, now_ms: int, new_member_id: str = ""
    ) -> HeartbeatResult:
        """Raises RequestError; otherwise write `dirty`, then answer."""
        if beat.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return self._leave(beat, now_ms)
        self._check(beat)
        member = self._find_or_add(beat, new_member_id)
        before = (member.epoch, member.assigned)
        is_new = self._update(member, beat)
        if is_new or self._is_other_seen(member, topics) or self._have_topics_changed(topics):
            self._bump_epoch()
        if self.epoch > self.assignment_epoch:
            self._compute_target(topics)
        self._reconcile(member, beat.owned)
        member.deadline_ms = now_ms + self.config.session_timeout_ms
        if member.state is not MemberState.UNREVOKED:
            member.revoke_deadline_ms = None
        elif member.revoke_deadline_ms is None:
            member.revoke_deadline_ms = now_ms + member.rebalance_timeout_ms
        is_full = beat.member_epoch == JOIN_EPOCH or (
            beat.rebalance_timeout_ms != -1
            and beat.owned is not None
            and (beat.topic_names is not None or beat.topic_regex is not None)
        )
        tell = is_full or member.assigned != before[1]
        return HeartbeatResult(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self.config.heartbeat_interval_ms,
            assignment=member.assigned if tell else None,
        )

    def _check(self, beat: ConsumerHeartbeat) -> None:
        if beat.member_epoch < STATIC_LEAVE_EPOCH:
            raise RequestError(ErrorCode.invalid_request, f"member epoch {beat.member_epoch} is not valid")
        if beat.server_assignor is not None and beat.server_assignor not in self.config.assignors:
            known = ", ".join(self.config.assignors)
            raise RequestError(
                ErrorCode.unsupported_assignor, f"{beat.server_assignor} is not one of {known}"
            )
        if subscription_bytes(beat.topic_names) > self.config.member_bytes_max:
            raise RequestError(ErrorCode.invalid_request, "too many topic names for one member")
        if beat.member_epoch == JOIN_EPOCH:
            if beat.rebalance_timeout_ms < 0:
                raise RequestError(ErrorCode.invalid_request, "joining needs a rebalance timeout")
            # Empty ones are taken: such a member belongs to the group and reads nothing.
            if beat.topic_names is None and beat.topic_regex is None:
                raise RequestError(ErrorCode.invalid_request, "joining needs topic names or a regex")
            if beat.owned is None or beat.owned:
                raise RequestError(
                    ErrorCode.invalid_request, "a joining member must say that it owns no partitions"
                )

    def _find_or_add(self, beat: ConsumerHeartbeat, new_member_id: str) -> ConsumerMember:
        if beat.instance_id is not None:
            return self._find_or_add_static(beat, beat.instance_id, new_member_id)
        member = self.members.get(beat.member_id)
        if beat.member_epoch != JOIN_EPOCH:
            if member is None:
                raise RequestError(ErrorCode.unknown_member_id)
            self._check_epoch(member, beat)
            return member
        if member is None:
            return self._add(beat.member_id or new_member_id, None)
        self._start_over(member)
        return member

    def _find_or_add_static(
        self, beat: ConsumerHeartbeat, instance_id: str, new_member_id: str
    ) -> ConsumerMember:
        static_id = self._static.get(instance_id)
        if beat.member_epoch != JOIN_EPOCH:
            if static_id is None:
                raise RequestError(ErrorCode.unknown_member_id)
            if static_id != beat.member_id:
                raise RequestError(ErrorCode.fenced_instance_id)
            member = self.members[static_id]
            self._check_epoch(member, beat)
            return member
        member_id = beat.member_id or new_member_id
        if static_id is None:
            return self._add(member_id, instance_id)
        member = self.members[static_id]
        if static_id == member_id:
            self._start_over(member)
            return member
        if member.epoch != STATIC_LEAVE_EPOCH:
            raise RequestError(
                ErrorCode.unreleased_instance_id, f"instance {instance_id} is still used by {static_id}"
            )
        return self._take_over(member, member_id)

    def _add(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        if len(self.members) >= self.config.group_size_max:
            raise RequestError(ErrorCode.group_max_size_reached)
        member = ConsumerMember(member_id=member_id, instance_id=instance_id)
        self.members[member_id] = member
        if instance_id is not None:
            self._static[instance_id] = member_id
        self._touch(member, Part.MEMBER, Part.CURRENT)
        self._bump_epoch()
        return member

    def _take_over(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member is back with a new id: it gets the place and the target of its old self."""
        target = self.target.get(old.member_id)
        subscription = (old.topic_names, old.topic_regex, old.server_assignor)
        instance_id = old.instance_id
        invariant(instance_id is not None, "a static member without an instance id")
        self._remove(old)
        member = ConsumerMember(member_id=member_id, instance_id=instance_id)
        member.topic_names, member.topic_regex, member.server_assignor = subscription
        self.members[member_id] = member
        self._static[str(instance_id)] = member_id
        self._touch(member, Part.MEMBER, Part.CURRENT)
        if target is not None:
            self.target[member_id] = target
            self._touch(member, Part.TARGET)
        return member

    def _start_over(self, member: ConsumerMember) -> None:
        """A fenced member rejoins: it says that it owns nothing, so nothing of it is held back."""
        self._hold(member, NOTHING, NOTHING)
        member.epoch = member.previous_epoch = JOIN_EPOCH
        member.state = MemberState.STABLE
        self._touch(member, Part.CURRENT)

    def _check_epoch(self, member: ConsumerMember, beat: ConsumerHeartbeat) -> None:
        if beat.member_epoch == member.epoch:
            return
        # The answer that raised the epoch may have been lost: then the member still has the previous one.
        is_retry = beat.member_epoch == member.previous_epoch and (
            beat.owned is None or beat.owned <= member.assigned
        )
        if beat.member_epoch > member.epoch or not is_retry:
            raise RequestError(
                ErrorCode.fenced_member_epoch,
                f"member {member.member_id} has epoch {beat.member_epoch}, expected {member.epoch}",
            )

    def _update(self, member: ConsumerMember, beat: ConsumerHeartbeat) -> bool:
        """Copy the request's fields to the member. True if the subscription changed: a new target is due."""
        old = (member.topic_names, member.topic_regex, member.server_assignor)
        rest = (member.rack_id, member.rebalance_timeout_ms, member.client_id, member.client_host)
        if beat.topic_names is not None:
            member.topic_names = tuple(sorted(set(beat.topic_names)))
        if beat.topic_regex is not None:
            member.topic_regex = beat.topic_regex or None
        if beat.server_assignor is not None:
            member.server_assignor = beat.server_assignor
        if beat.rack_id is not None:
            member.rack_id = beat.rack_id
        if beat.rebalance_timeout_ms != -1:
            member.rebalance_timeout_ms = beat.rebalance_timeout_ms
        member.client_id, member.client_host = beat.client_id, beat.client_host
        member.visible, self._is_filtered = beat.visible, beat.visible is not None
        changed = old != (member.topic_names, member.topic_regex, member.server_assignor)
        if changed or rest != (
            member.rack_id,
            member.rebalance_timeout_ms,
            member.client_id,
            member.client_host,
        ):
            self._touch(member, Part.MEMBER)
        return changed

    # -- the target -------------------------------------------------------------------------------

    def _matches(self, member: ConsumerMember, topics: Topics) -> frozenset[str]:
        return regex_matches(member, topics, self.target, is_filtered=self._is_filtered)

    def _is_other_seen(self, member: ConsumerMember, topics: Topics) -> bool:
        """Whether the target was computed with other matches than this member may see now."""
        if not member.topic_regex or member.visible is None:
            return False
        seen = self._matches(member, topics)
        if member.seen is None:
            member.seen = held_matches(topics.matched[member.topic_regex], self.target, topics)
        return seen is not member.seen and seen != member.seen

    def _have_topics_changed(self, topics: Topics) -> bool:
        if topics.version == self._topics_version:
            return False
        self._topics_version = topics.version
        present = topics_hash(self.subscribed_names(topics), topics)
        changed = present != self.metadata_hash
        if changed:
            self.metadata_hash = present
            self.dirty.add(DirtyPart(Part.GROUP, ""))
        return changed

    def _bump_epoch(self) -> None:
        self._topics_version = None
        if self.epoch == self.assignment_epoch:  # else a new target is due anyway
            self.epoch += 1
            self.dirty.add(DirtyPart(Part.GROUP, ""))

    def assignor(self) -> str:
        return choose_assignor(self.members.values(), self.config.assignors[0])

    def _compute_target(self, topics: Topics) -> None:
        self._have_topics_changed(topics)
        names = self._names_by_member(topics)
        for member in self.members.values():
            is_seen = self._is_filtered and member.topic_regex
            member.seen = self._matches(member, topics) if is_seen else None
        target = compute_target(self.assignor(), names, topics, self.target)
        for member_id, partitions in target.items():
            if self.target.get(member_id) != partitions:
                self.dirty.add(DirtyPart(Part.TARGET, member_id))
        self.target = target
        self.assignment_epoch = self.epoch
        self.dirty.add(DirtyPart(Part.TARGET_EPOCH, ""))

    # -- reconciliation ---------------------------------------------------------------------------

    def _reconcile(self, member: ConsumerMember, owned: Partitions | None) -> None:
        if member.state is MemberState.UNREVOKED:
            if owned is None or owned & member.revoking:
                return
        elif member.state is MemberState.STABLE and member.epoch == self.assignment_epoch:
            return
        before = (member.epoch, member.state, member.assigned, member.revoking)
        self._step(member, owned)
        if before != (member.epoch, member.state, member.assigned, member.revoking):
            self._touch(member, Part.CURRENT)

    def _step(self, member: ConsumerMember, owned: Partitions | None) -> None:
        target = self.target.get(member.member_id, NOTHING)
        keep = member.assigned & target
        revoke = member.assigned - target
        if revoke and (owned is None or owned & revoke):
            self._hold(member, keep, revoke)
            member.state = MemberState.UNREVOKED
            return
        missing = target - keep
        free = frozenset(
            partition
            for partition in missing
            if self._owners.get(partition, member.member_id) == member.member_id
        )
        self._hold(member, keep | free, NOTHING)
        member.state = MemberState.STABLE if free == missing else MemberState.UNRELEASED
        if member.epoch != self.assignment_epoch:
            member.previous_epoch = member.epoch
            member.epoch = self.assignment_epoch

    def _hold(self, member: ConsumerMember, assigned: Partitions, revoking: Partitions) -> None:
        """The only place where partitions change hands."""
        for partition in (member.assigned | member.revoking) - (assigned | revoking):
            del self._owners[partition]
        for partition in assigned | revoking:
            owner = self._owners.setdefault(partition, member.member_id)
            invariant(owner == member.member_id, "a partition belongs to two members")
        member.assigned, member.revoking = assigned, revoking

    # -- leaving ----------------------------------------------------------------------------------

    def _leave(self, beat: ConsumerHeartbeat, now_ms: int) -> HeartbeatResult:
        member_id = beat.member_id
        if beat.instance_id is not None:
            static_id = self._static.get(beat.instance_id)
            if static_id is None:
                raise RequestError(ErrorCode.unknown_member_id)
            if static_id != member_id:
                raise RequestError(ErrorCode.fenced_instance_id)
        elif beat.member_epoch == STATIC_LEAVE_EPOCH:
            raise RequestError(
                ErrorCode.invalid_request, "only a static member can leave for a while (epoch -2)"
            )
        member = self.members.get(member_id)
        if member is None:
            raise RequestError(ErrorCode.unknown_member_id)
        if beat.member_epoch == STATIC_LEAVE_EPOCH:
            # The member keeps its target until it rejoins or its session expires, but owns no partitions.
            self._hold(member, NOTHING, NOTHING)
            member.epoch = STATIC_LEAVE_EPOCH
            member.state = MemberState.STABLE
            member.revoke_deadline_ms = None
            member.deadline_ms = now_ms + self.config.session_timeout_ms
            self._touch(member, Part.CURRENT)
        else:
            self._remove(member)
            self._bump_epoch()
        return HeartbeatResult(
            member_id=member_id, member_epoch=beat.member_epoch, heartbeat_interval_ms=0, assignment=None
        )

    def _remove(self, member: ConsumerMember) -> None:
        self._hold(member, NOTHING, NOTHING)
        del self.members[member.member_id]
        self.target.pop(member.member_id, None)
        if member.instance_id is not None:
            self._static.pop(member.instance_id, None)
        self._touch(member, Part.MEMBER, Part.TARGET, Part.CURRENT)

    def remove(self, member_ids: list[str]) -> None:
        """Members that an operator removed."""
        for member_id in member_ids:
            self._remove(self.members[member_id])
        if member_ids:
            self._bump_epoch()

    # -- time -------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        deadlines = [member.deadline_ms for member in self.members.values()]
        deadlines += [m.revoke_deadline_ms for m in self.members.values() if m.revoke_deadline_ms is not None]
        return min(deadlines, default=None)

    def advance(self, *, now_ms: int) -> list[str]:
        """Remove members that were not heard of, or did not give partitions up in time. Which?"""
        gone = [
            member
            for member in self.members.values()
            if member.deadline_ms <= now_ms
            or (member.revoke_deadline_ms is not None and member.revoke_deadline_ms <= now_ms)
        ]
        for member in gone:
            self._remove(member)
        if gone:
            self._bump_epoch()
        return [member.member_id for member in gone]

    # -- looking ----------------------------------------------------------------------------------

    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        stable = all(
            member.state is MemberState.STABLE and member.epoch == self.assignment_epoch
            for member in self.members.values()
        )
        return "Stable" if stable else "Reconciling"

    def check_commit(self, member_id: str, member_epoch: int, *, knows_member_epochs: bool = True) -> None:
        """Raise RequestError if this member may not commit offsets."""
        if member_epoch < 0 and not self.members:
            return
        self._check_member(member_id, member_epoch, knows_member_epochs)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raise RequestError if this member may not read offsets. A request that names no member (admin
        tools) always may."""
        if member_id is not None or member_epoch >= 0:
            self._check_member(member_id or "", member_epoch)

    def _check_member(self, member_id: str, member_epoch: int, knows_member_epochs: bool = True) -> None:
        member = self.members.get(member_id)
        if member is None:
            raise RequestError(ErrorCode.unknown_member_id)
        if not knows_member_epochs:
            raise RequestError(
                ErrorCode.unsupported_version,
                "OffsetCommit version 9 or above must be used by members of KIP-848 groups.",
            )
        if member_epoch != member.epoch:
            raise RequestError(
                ErrorCode.stale_member_epoch, f"epoch {member_epoch}, the member is at {member.epoch}"
            )

    def find_leaving(self, member_id: str, instance_id: str | None) -> str:
        """The member that LeaveGroup means, by its id or by its instance id. Raises RequestError."""
        if instance_id is None:
            if member_id not in self.members:
                raise RequestError(ErrorCode.unknown_member_id)
            return member_id
        static_id = self._static.get(instance_id)
        if static_id is None:
            raise RequestError(ErrorCode.unknown_member_id)
        if member_id not in ("", static_id):
            raise RequestError(ErrorCode.fenced_instance_id)
        return static_id

    def size_bytes(self) -> int:
        """What clients make a node remember by this group, about."""
        members = sum(member.size_bytes() for member in self.members.values())
        targets = PARTITION_BYTES * sum(map(len, self.target.values()))
        return MEMBER_OVERHEAD_BYTES + len(self.group_id) + members + targets

    def patterns(self) -> set[str]:
        """The regular expressions of its members."""
        return {member.topic_regex for member in self.members.values() if member.topic_regex}

    def subscribed_names(self, topics: Topics) -> frozenset[str]:
        """The existing topics that members want."""
        return frozenset().union(*self._names_by_member(topics).values())

    def _names_by_member(self, topics: Topics) -> dict[str, frozenset[str]]:
        return subscribed_names(self.members.values(), topics, self.target, is_filtered=self._is_filtered)

    def _touch(self, member: ConsumerMember, *parts: Part) -> None:
        self.dirty.update(DirtyPart(part, member.member_id) for part in parts)

    # -- restoring --------------------------------------------------------------------------------

    def after_replay(self, *, now_ms: int) -> None:
        """Replay is complete: compute derived state and start a full session for every member."""
        self._static = {m.instance_id: m.member_id for m in self.members.values() if m.instance_id}
        self._owners.clear()
        self.dirty.clear()
        self._topics_version = None
        for member in self.members.values():
            member.deadline_ms = now_ms + self.config.session_timeout_ms
            if member.state is MemberState.UNREVOKED:
                member.revoke_deadline_ms = now_ms + member.rebalance_timeout_ms
            for partition in member.assigned | member.revoking:
                owner = self._owners.setdefault(partition, member.member_id)
                invariant(owner == member.member_id, "a partition belongs to two members")
