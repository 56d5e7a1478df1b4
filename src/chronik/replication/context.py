"""What a partition needs from the rest of its node, as small interfaces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from chronik.model import NodeId
from chronik.replication.remote import NO_REMOTE_LOGS, RemoteLogs
from chronik.replication.watermark_events import WatermarkEvents
from chronik.tasks import Tasks

if TYPE_CHECKING:
    from chronik.links.link import Link
    from chronik.replication.replica import Replica
    from chronik.storage.log_parts import SegmentDamage


class Feed(Protocol):
    """Sends a leader's batches and watermarks to its followers."""

    def followers_changed(self, partition: Replica) -> None:
        """The partition's leader epoch, its followers or its role changed."""

    def appended(self, partition: Replica) -> None:
        """Batches were appended, or the log start moved: followers have to be told."""

    def watermark_moved(self, partition: Replica) -> None:
        """The high watermark moved: followers have to be told."""

    def check_watermark(self, partition: Replica) -> None:
        """Called every so often: send the high watermark again to followers that may have missed it."""

    def is_feeding(self, partition: Replica, peer: NodeId) -> bool:
        """Whether a follower is connected and gets every batch."""


class Acks(Protocol):
    """Tells the leader what a follower has."""

    def send_soon(self, partition: Replica) -> None:
        """More of the log is on disk, or the log starts later."""

    def reset(self, partition: Replica, feeder: Link) -> None:
        """Batches that arrived were lost: refuse, so that the leader sends OPEN and these batches again."""


class IsrProposals(Protocol):
    """Proposes changes of partitions that this node leads, as metadata commands."""

    def propose(self, partition: Replica, isr: tuple[NodeId, ...]) -> None:
        """Ask for another ISR; `Replica.isr_proposal_settled` is called when that is decided."""

    def propose_new_epoch(self, partition: Replica) -> None:
        """Ask for a new leader epoch until there is one."""


class Repairing(Protocol):
    """Removes a damaged replica from the lead and the ISR, so that it can copy the log again."""

    def begin(self, partition: Replica, damage: SegmentDamage) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaContext:
    """What all partitions of a node share."""

    node_id: NodeId
    feed: Feed
    acks: Acks
    isr_proposals: IsrProposals
    repairs: Repairing
    is_alive: Callable[[NodeId], bool]
    """Whether the cluster counts a node as alive."""
    tasks: Tasks
    watermark_events: WatermarkEvents
    remote_logs: RemoteLogs = NO_REMOTE_LOGS
