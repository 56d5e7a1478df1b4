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

import enum
import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from chronik.groups.assignors import ASSIGNORS, Partition, Partitions
from chronik.groups.member import MEMBER_OVERHEAD_BYTES
from chronik.groups.subscriptions import Topics, Visible, held_matches, subscription_bytes, texts_bytes
from chronik.model import ErrorCode, RequestError, invariant

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
NOTHING: Partitions = frozenset()
PARTITION_BYTES: Final = 150
"""A partition in the assignment of a member."""


class MemberState(enum.IntEnum):
    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


class Part(enum.Enum):
    """The kinds of records that a group is made of; MEMBER, TARGET and CURRENT exist per member."""

    GROUP = 3
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8


class DirtyPart(NamedTuple):
    part: Part
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupConfig:
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    group_size_max: int = 10_000
    member_bytes_max: int = 1024 * 1024
    """Topic names of one member."""
    assignors: tuple[str, ...] = tuple(ASSIGNORS)
    """Those that members may ask for; the first one is the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """One request; None means: as before."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    visible: Visible | None = None
    """Which topics the member may see; None where everybody sees all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResult:
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Partitions | None


@dataclass(slots=True, kw_only=True)
class ConsumerMember:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    topic_regex: str | None = None
    server_assignor: str | None = None
    rebalance_timeout_ms: int = 300_000
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NOTHING
    revoking: Partitions = NOTHING
    """Partitions to revoke. They go to no other member before this one reports that it gave them up."""
    deadline_ms: int = 0
    revoke_deadline_ms: int | None = None
    visible: Visible | None = None
    """As its last heartbeat said; not in the log. None where all is seen, and before the first heartbeat."""
    seen: frozenset[str] | None = None
    """The matches of its regex that the target was computed with; None if that was before a replay."""

    def size_bytes(self) -> int:
        """What it makes a node remember, about."""
        texts = (self.member_id, self.instance_id, self.rack_id, self.client_id, self.topic_regex)
        return (
            MEMBER_OVERHEAD_BYTES
            + texts_bytes(*texts, self.client_host, self.server_assignor)
            + subscription_bytes(self.topic_names)
            + PARTITION_BYTES * (len(self.assigned) + len(self.revoking))
        )


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
            raise RequestError(ErrorCode.invalid_request, f"member epoch {beat.member_epoch} means nothing")
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
                    ErrorCode.invalid_request, "a joining member names the partitions it owns: none"
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

    # -- targets ----------------------------------------------------------------------------------

    def _subscribed(self, member: ConsumerMember, topics: Topics) -> set[str]:
        """The existing topics that the member wants: those it names and those its regex matches, as far as it
        may see them."""
        names = {name for name in member.topic_names if name in topics.by_name}
        if member.topic_regex:
            names |= self._matches(member, topics)
        return names

    def _matches(self, member: ConsumerMember, topics: Topics) -> frozenset[str]:
        matched = topics.matched[member.topic_regex or ""]
        if member.visible is not None:
            return member.visible(matched)
        return held_matches(matched, self.target, topics) if self._is_filtered else matched

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
        seen = sorted((name, *topics.by_name[name]) for name in self.subscribed_names(topics))
        digest = hashlib.blake2b(repr(seen).encode(), digest_size=7).digest()
        changed = int.from_bytes(digest, "big") != self.metadata_hash
        if changed:
            self.metadata_hash = int.from_bytes(digest, "big")
            self.dirty.add(DirtyPart(Part.GROUP, ""))
        return changed

    def _bump_epoch(self) -> None:
        self._topics_version = None
        if self.epoch == self.assignment_epoch:  # else a new target is due anyway
            self.epoch += 1
            self.dirty.add(DirtyPart(Part.GROUP, ""))

    def assignor(self) -> str:
        votes = Counter(m.server_assignor for m in self.members.values() if m.server_assignor is not None)
        return votes.most_common(1)[0][0] if votes else self.config.assignors[0]

    def _compute_target(self, topics: Topics) -> None:
        self._have_topics_changed(topics)
        subscriptions = {
            member.member_id: frozenset(
                topics.by_name[name].topic_id for name in self._subscribed(member, topics)
            )
            for member in self.members.values()
        }
        for member in self.members.values():
            is_seen = self._is_filtered and member.topic_regex
            member.seen = self._matches(member, topics) if is_seen else None
        wanted = frozenset().union(*subscriptions.values()) if subscriptions else frozenset()
        counts = {
            info.topic_id: info.partition_count for info in topics.by_name.values() if info.topic_id in wanted
        }
        target = ASSIGNORS[self.assignor()](subscriptions, counts, self.target)
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
            invariant(owner == member.member_id, "a partition got into two hands")
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
        """May this member commit offsets? Raises RequestError."""
        if member_epoch < 0 and not self.members:
            return
        self._check_member(member_id, member_epoch, knows_member_epochs)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """May this member read offsets? A request that names no member (admin tools) always may."""
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
        return frozenset().union(*(self._subscribed(member, topics) for member in self.members.values()))

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
                invariant(owner == member.member_id, "a partition got into two hands")
