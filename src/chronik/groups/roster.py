"""Who belongs to a classic group: its members, their static ids (KIP-345) and the ids that are still to join
(KIP-394). What a change among them means for the generation is the group's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from chronik.groups.classic_member import MEMBER_OVERHEAD_BYTES, Member
from chronik.groups.classic_messages import Join
from chronik.model import ErrorCode, RequestError


class Roster:
    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}
        """Instance id to member id."""
        self._pending: dict[str, int] = {}
        """Ids that were given out and have not joined yet (KIP-394), with their deadline."""

    @property
    def members(self) -> Mapping[str, Member]:
        """The members, by id, in the order in which they joined."""
        return self._members

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def member(self, member_id: str, instance_id: str | None) -> Member:
        """Raises RequestError if there is none, or if another member has taken over the instance id."""
        if instance_id is not None:
            static_id = self._static.get(instance_id)
            if static_id is None:
                raise RequestError(ErrorCode.unknown_member_id)
            if static_id != member_id:
                raise RequestError(ErrorCode.fenced_instance_id)
        member = self._members.get(member_id)
        if member is None:
            raise RequestError(ErrorCode.unknown_member_id)
        return member

    def static_id(self, instance_id: str | None) -> str | None:
        """Id of the member that has this instance id."""
        return None if instance_id is None else self._static.get(instance_id)

    def check_join(self, join: Join, protocol_type: str | None, size_max: int) -> None:
        """Raises RequestError if this member shares no protocol with the others, or the group is full."""
        if self._members:
            names = {name for name, _ in join.protocols}
            others = [member for member in self._members.values() if member.member_id != join.member_id]
            common = all(names & {name for name, _ in member.protocols} for member in others)
            shared = names.intersection(*({name for name, _ in member.protocols} for member in others))
            if join.protocol_type != protocol_type or not common or not shared:
                raise RequestError(ErrorCode.inconsistent_group_protocol)
        known = join.member_id in self._members or join.member_id in self._pending
        replaces = join.instance_id is not None and join.instance_id in self._static
        size = len(self._members) + len(self._pending)
        if not known and not replaces and size >= size_max:
            raise RequestError(ErrorCode.group_max_size_reached)

    def choose_protocol(self) -> str:
        """Every member votes for the first of its protocols that all share; the most votes win."""
        sets = [{name for name, _ in member.protocols} for member in self._members.values()]
        shared = set.intersection(*sets)
        votes: Counter[str] = Counter()
        for member in self._members.values():
            votes[next(name for name, _ in member.protocols if name in shared)] += 1
        return votes.most_common(1)[0][0]

    def rebalance_timeout_ms(self) -> int:
        """The longest that a member asked for."""
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0)

    # -- changes ----------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id

    def remove(self, member: Member) -> None:
        del self._members[member.member_id]
        if member.instance_id is not None and self._static.get(member.instance_id) == member.member_id:
            del self._static[member.instance_id]

    def rename(self, member: Member, member_id: str) -> None:
        """A static member came back: it goes on under this id."""
        del self._members[member.member_id]
        member.member_id = member_id
        self.add(member)

    def await_join(self, member_id: str, deadline_ms: int) -> None:
        """This id was given out: whoever got it joins with it before the deadline."""
        self._pending[member_id] = deadline_ms

    def take_pending(self, member_id: str) -> bool:
        """Whether this id was still to join; it no longer is."""
        return self._pending.pop(member_id, None) is not None

    def expire_pending(self, now_ms: int) -> None:
        for member_id in [key for key, deadline_ms in self._pending.items() if deadline_ms <= now_ms]:
            del self._pending[member_id]

    # -- measures ---------------------------------------------------------------------------------

    def deadlines_ms(self) -> list[int]:
        """When each session, and each id that has not joined, ends."""
        return [*(member.deadline_ms for member in self._members.values()), *self._pending.values()]

    def size_bytes(self) -> int:
        """What it makes a node remember, about."""
        members = sum(member.size_bytes() for member in self._members.values())
        return members + sum(MEMBER_OVERHEAD_BYTES + len(one) for one in self._pending)
