"""One member of a consumer group of KIP-848, as its group sees it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from chronik.groups.assignors import Partitions
from chronik.groups.classic_member import MEMBER_OVERHEAD_BYTES
from chronik.groups.subscriptions import Visible, subscription_bytes, texts_bytes

NOTHING: Partitions = frozenset()
PARTITION_BYTES: Final = 150
"""A partition in the assignment of a member."""


class MemberState(enum.IntEnum):
    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


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
    """What the member may see, as its last heartbeat said; not in the log. None if it may see all, and before
    the first heartbeat."""
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
