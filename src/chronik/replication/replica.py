"""One replica of a partition: its role, how far it and the others are, and the high watermark.

Reports end here: the disk's (`on_durable`), the followers' (`follower_acknowledged`), the leader's
(`leader_reported`). They move the watermark; when it moves, waiting producers and fetches are answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from uuid import UUID

from chronik.links.link import Link
from chronik.metadata.commands import RemoteLog
from chronik.metadata.topic_config import TopicConfig
from chronik.metadata.values import PartitionRegistration as Assignment
from chronik.model import (
    NO_EPOCH,
    NO_LEADER,
    ErrorCode,
    NodeId,
    RequestError,
    StorageError,
    TopicPartition,
    is_internal_topic,
)
from chronik.replication.context import ReplicaContext
from chronik.replication.isr import is_caught_up, lagging_followers
from chronik.replication.progress import FollowerProgress
from chronik.replication.remote import log_start
from chronik.replication.waiters import AckWaiters
from chronik.replication.watermark_rule import follower_watermark, leader_watermark
from chronik.replication.writers import Writers
from chronik.storage.log import LogConfig, PartitionLog
from chronik.storage.log_parts import SegmentDamage

log = logging.getLogger(__name__)


class Replica:
    """One partition's replica on this node. It neither leads nor follows until the first `assign`."""

    __slots__ = (
        "_acks",
        "_committed_waiters",
        "_context",
        "_durable_waiters",
        "_events",
        "_feed",
        "_followers",
        "_leader_may_lack",
        "_next_log_start",
        "_pending_isr",
        "_reset_from",
        "_start_waiters",
        "_watchers",
        "config",
        "feeder",
        "halted_epoch",
        "high_watermark",
        "is_damaged",
        "is_internal",
        "isr",
        "lacks_replicas",
        "leader_epoch",
        "leader_epoch_start_offset",
        "leader_high_watermark",
        "leader_id",
        "leader_log_start",
        "log",
        "node_id",
        "partition_epoch",
        "read_bytes",
        "remote",
        "replicas",
        "topic_id",
        "tp",
        "was_relaxed",
        "writers",
    )

    def __init__(
        self,
        *,
        tp: TopicPartition,
        topic_id: UUID,
        log: PartitionLog,
        config: TopicConfig,
        context: ReplicaContext,
        high_watermark: int = 0,
    ) -> None:
        self.tp = tp
        self.is_internal = is_internal_topic(tp.topic)
        """Whether only coordinators may write to it (`append_internal`)."""
        self.topic_id = topic_id
        self.node_id = context.node_id
        self.log = log
        self.config = config
        self.was_relaxed = config.durability.is_relaxed and not self.is_internal
        """Whether a power cut may have taken committed records, now or under an earlier config."""
        self.leader_id = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = NO_EPOCH
        self.replicas: tuple[NodeId, ...] = ()
        self.isr: tuple[NodeId, ...] = ()
        self.remote: RemoteLog | None = None
        """What the object store has of this log, as the metadata log says; None if it never had anything."""
        self.lacks_replicas = False
        """Whether the ISR is smaller than min.insync.replicas."""
        self._followers: dict[NodeId, FollowerProgress] = {}
        self._pending_isr: tuple[NodeId, ...] | None = None
        self.feeder: Link | None = None
        """Follower: the link to the leader, for batches and acknowledgements. None until `follow`."""
        self.leader_high_watermark = 0
        """Follower: the leader's high watermark, as of its last message."""
        self._leader_may_lack = False
        """Follower: whether the leader may lack committed records: it, or one since the last followed,
        was elected without being in sync, or how is unknown."""
        self.leader_log_start = 0
        """Follower: where the leader's log starts, as of its last message in this epoch."""
        self._next_log_start = 0
        """Follower: the log start offset that a deletion under way will set; 0 if none is under way."""
        self.read_bytes = 0
        """Bytes that Fetch read here for clients since the node started. A request that goes on waiting for
        more reads them again."""
        self.halted_epoch = NO_EPOCH - 1
        """Leader: the epoch in which an append failed on disk. Requests are refused until the next epoch."""
        self.is_damaged = False
        """Whether this disk lost records that another replica has. The replica leaves the lead and the ISR,
        and copies them from the new leader."""
        self._reset_from = -1
        """Damaged: the offset from which the log must be copied again; -1 until it is known."""
        self._context = context
        self._feed = context.feed
        self._acks = context.acks
        self._events = context.watermark_events
        self.leader_epoch_start_offset = 0
        self.writers = Writers()
        """Leader: who wrote what was appended in this leader epoch."""
        self.high_watermark = max(high_watermark, log.log_start_offset)
        """Every record before this offset is on every in-sync replica. Rises only in `_move_watermark`;
        falls only in `_forget_watermark_behind`."""
        self._durable_waiters = AckWaiters()
        self._committed_waiters = AckWaiters()
        self._start_waiters = AckWaiters()
        self._watchers: dict[Callable[[], None], None] = {}
        log.subscribe(self)

    # --- roles -------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.node_id

    @property
    def followers(self) -> Mapping[NodeId, FollowerProgress]:
        """Leader: what each follower has reported in this leader epoch. Empty unless this node leads."""
        return self._followers

    @property
    def pending_isr(self) -> tuple[NodeId, ...] | None:
        """Leader: an ISR that was proposed and is not decided yet."""
        return self._pending_isr

    def assign(self, assignment: Assignment) -> None:
        """Take over leader, epoch and ISR as the metadata log has them now."""
        if assignment.partition_epoch < self.partition_epoch:
            return
        if assignment.partition_epoch > self.partition_epoch:
            # The proposal named the old partition epoch: either this change is it, or it will be refused.
            self._pending_isr = None
        if assignment.leader_epoch != self.leader_epoch:
            self._note_election(assignment)
            self._followers.clear()
            self.writers.forget()
            self.feeder = None
            self.leader_log_start = 0
            self.leader_epoch_start_offset = self.log.log_end_offset
            self._fail_waiters(RequestError(ErrorCode.not_leader_or_follower, f"{self.tp} has a new leader"))
        self.leader_id = assignment.leader
        self.leader_epoch = assignment.leader_epoch
        self.partition_epoch = assignment.partition_epoch
        self.replicas = assignment.replicas
        self.isr = assignment.isr
        if assignment.remote is not None:
            self._take_remote(assignment.remote)
        self._count_replicas()
        self._set_followers(assignment.replicas if self.is_leader else ())
        self._feed.followers_changed(self)
        if self.is_leader:
            self._move_watermark()
        self._check_low_watermark()
        self._wake_watchers()

    def _note_election(self, assignment: Assignment) -> None:
        """A leader out of the ISR has every committed record. One that was elected though it was not in sync,
        and is the whole ISR now, may lack some. How it was elected is unknown if this node missed changes."""
        leader = assignment.leader
        if leader == self.node_id:
            self._leader_may_lack = False
            # What earlier leaders said does not count for the records that this one appends.
            self.leader_high_watermark = min(self.leader_high_watermark, self.log.log_end_offset)
        elif self.leader_epoch != NO_EPOCH:
            is_unclean = assignment.isr == (leader,) and leader not in self.isr
            if is_unclean or assignment.partition_epoch > self.partition_epoch + 1:
                self._leader_may_lack = True

    def _take_remote(self, remote: RemoteLog) -> None:
        """The metadata log has the newest one. A leader whose log ends before that of the store, as only an
        unclean election lets it, goes on behind the store's end: that is the longer log."""
        self.remote = remote
        if self.is_leader and self.log.log_end_offset < remote.end_offset:
            line = "%s: starts at %d, where the remote log ends: the local one ended at %d"
            log.warning(line, self.tp, remote.end_offset, self.log.log_end_offset)
            self.log.restart_at(remote.end_offset)
            self.leader_epoch_start_offset = remote.end_offset
            self.high_watermark = max(self.high_watermark, remote.end_offset)

    @property
    def is_tiered(self) -> bool:
        """Whether segments go to the object store, or are there."""
        remote = self.remote
        return self.config.remote_storage_enable or (
            remote is not None and remote.start_offset < remote.end_offset
        )

    @property
    def log_start_offset(self) -> int:
        """Where the whole log starts; `log.log_start_offset` is where it starts on the local disk."""
        remote = self.remote
        local = self.log.log_start_offset
        return local if remote is None else log_start(remote, local)

    def _set_followers(self, replicas: tuple[NodeId, ...]) -> None:
        if replicas:
            self.feeder = None
        wanted = {replica for replica in replicas if replica != self.node_id}
        for gone in set(self._followers) - wanted:
            del self._followers[gone]
        for peer in sorted(wanted - set(self._followers)):
            now = asyncio.get_running_loop().time()
            self._followers[peer] = FollowerProgress(self.log.log_end_offset, now)

    def close(self, error: RequestError) -> None:
        """The partition was removed from this node: stop leading and following, and fail all waiters."""
        self.leader_id = NO_LEADER
        self.is_damaged = False
        self._followers.clear()
        self.writers.forget()
        self.feeder = None
        self._pending_isr = None
        self._feed.followers_changed(self)
        self._fail_waiters(error)
        self._wake_watchers()

    def remove(self, error: RequestError) -> None:
        """Close it, and make its leader send OPEN again: the next replica may start with an empty log."""
        self._reset_feeder()
        self.close(error)

    def reconfigure(self, config: TopicConfig, log_config: LogConfig) -> None:
        self.config = config
        self.was_relaxed = self.was_relaxed or (config.durability.is_relaxed and not self.is_internal)
        self.log.reconfigure(log_config)
        self._count_replicas()

    def _count_replicas(self) -> None:
        """A min.insync.replicas above the replication factor means all replicas, or nobody could write."""
        in_sync = len(self.isr)
        self.lacks_replicas = in_sync < self.config.min_insync_replicas and in_sync < len(self.replicas)

    # --- durability and the watermark ----------------------------------------------------------------

    def on_durable(self, end_offset: int) -> None:
        if self._durable_waiters:
            self._durable_waiters.serve(end_offset)
        if self.leader_id == self.node_id:
            self._move_watermark()
        else:
            if self.feeder is not None:
                self._acks.send_soon(self)
            if self.leader_high_watermark > self.high_watermark:
                self._move_watermark()
            if self.leader_log_start > self.log.log_start_offset:
                self._follow_log_start()

    def on_rejected(self, end_offset: int, error: StorageError) -> None:
        refusal = RequestError(ErrorCode.kafka_storage_error, str(error))
        self.writers.forget()  # the offsets of what the log dropped are given out again
        if self._followers:
            # Followers may have the batches that this disk refused: do not reuse their offsets in this epoch.
            self.halted_epoch = self.leader_epoch
            self._context.isr_proposals.propose_new_epoch(self)
        else:
            self._reset_feeder()
        self._durable_waiters.fail_behind(end_offset, refusal)
        self._committed_waiters.fail_behind(end_offset, refusal)

    # --- damage --------------------------------------------------------------------------------------

    def on_damaged(self, damage: SegmentDamage) -> bool:
        if not self.is_damaged and self._has_substitute():
            self.is_damaged = True
            self._context.repairs.begin(self, damage)
        return self.is_damaged

    def _has_substitute(self) -> bool:
        """Whether a live replica has everything that is committed."""
        is_alive = self._context.is_alive
        return any(member != self.node_id and is_alive(member) for member in self.isr)

    def repair_from(self, offset: int) -> None:
        self._reset_from = offset

    def repair_failed(self) -> None:
        """No other replica can take over: the lost records stay lost, and readers skip them. Or the damaged
        segment is gone."""
        self.is_damaged = False
        self._reset_from = -1

    def reset_at(self, assignment: Assignment) -> int | None:
        """The offset at which a damaged log is to be cut, if this assignment allows it.

        It does if the leader epoch is new and this replica neither leads nor is in the ISR: then no committed
        record depends on this log.
        """
        if self._reset_from < 0 or not self.is_damaged or assignment.leader_epoch <= self.leader_epoch:
            return None
        is_out = assignment.leader not in (self.node_id, NO_LEADER) and self.node_id not in assignment.isr
        return self._reset_from if is_out else None

    # --- what followers report -----------------------------------------------------------------------

    def follower_acknowledged(self, peer: NodeId, end_offset: int, log_start_offset: int, now: float) -> None:
        """Leader: a follower has everything before `end_offset` on disk."""
        progress = self._followers.get(peer)
        if progress is None:
            return
        progress.acknowledged(end_offset, self.log.log_end_offset, now)
        self._move_watermark()
        if log_start_offset != progress.log_start_offset:
            progress.log_start_offset = log_start_offset
            self._check_low_watermark()
        if peer not in self.isr:
            self._maybe_expand_isr(peer, progress)

    def follower_starts_at(self, peer: NodeId, offset: int) -> None:
        """Leader: a follower's log ends at `offset` now. It may have lost what it had acknowledged."""
        progress = self._followers.get(peer)
        if progress is not None:
            progress.starts_at(offset)

    def check_followers(self, now: float, lag_seconds_max: float) -> None:
        """Leader: remove lagging followers from the ISR. Repeats the checks that events normally trigger."""
        if not self._followers:
            return
        self._check_low_watermark()
        self._feed.check_watermark(self)
        end = self.log.log_end_offset
        lagging = lagging_followers(self.isr, self._followers, end, now, lag_seconds_max)
        for peer, progress in self._followers.items():
            if peer not in self.isr and self._feed.is_feeding(self, peer):
                self._maybe_expand_isr(peer, progress)
        if lagging and self._pending_isr is None:
            log.warning("%s: nodes %s lag and leave the ISR", self.tp, lagging)
            self._propose_isr(tuple(replica for replica in self.isr if replica not in lagging))

    def _maybe_expand_isr(self, peer: NodeId, progress: FollowerProgress) -> None:
        if (
            self._pending_isr is None
            and is_caught_up(progress, self.high_watermark, self.leader_epoch_start_offset)
            and self._context.is_alive(peer)
        ):
            self._propose_isr(tuple(r for r in self.replicas if r == peer or r in self.isr))

    def _propose_isr(self, isr: tuple[NodeId, ...]) -> None:
        self._pending_isr = isr
        self._context.isr_proposals.propose(self, isr)

    def isr_proposal_settled(self, isr: tuple[NodeId, ...]) -> None:
        """Leader: the cluster has decided about this proposal, or will refuse it."""
        if self._pending_isr is isr:
            self._pending_isr = None
            if self.is_leader:
                self._move_watermark()

    # --- following a leader --------------------------------------------------------------------------

    def stop_following(self, link: Link | None = None) -> None:
        """Follower: take no batches until `follow`; with a link, only if they come from there."""
        if link is None or self.feeder is link:
            self.feeder = None

    def follow(self, link: Link, offset: int, *, is_reset: bool) -> bool:
        """Follower: drop what the leader does not have, then take batches from `offset` on.

        False if the leader must not be followed from there.
        """
        log_ = self.log
        may_lack = self.was_relaxed or self._leader_may_lack
        if is_reset:
            log.warning("%s: emptied, starts at %d: the leader keeps nothing older", self.tp, offset)
            log_.restart_at(offset)
            self.high_watermark = max(self.high_watermark, log_.log_start_offset)
        elif offset < log_.log_end_offset:
            if offset < self.high_watermark and not may_lack:
                # Committed records are on every in-sync replica: a leader that was one of these has them.
                who = f"node {link.peer_id}, epoch {self.leader_epoch}"
                line = "%s: %s would have committed records dropped (%d < %d)"
                log.error(line, self.tp, who, offset, self.high_watermark)
                return False
            dropped = f"{offset} to {log_.log_end_offset - 1}"
            log.info("%s: dropping offsets %s, which node %d does not have", self.tp, dropped, link.peer_id)
            log_.truncate(offset)
        if offset > log_.log_end_offset:
            return False
        if may_lack:
            self._forget_watermark_behind(offset)
        self._leader_may_lack = False
        self.feeder = link
        self._acks.send_soon(self)
        return True

    def _forget_watermark_behind(self, offset: int) -> None:
        """Follower: the log goes on at `offset` with a leader that may lack committed records.

        All in-sync replicas of a relaxed topic may have lost power at once, or none of them was there to be
        elected: what an earlier leader said is committed behind this offset is not what the leader has there
        now.
        """
        self.leader_high_watermark = min(self.leader_high_watermark, offset)
        if self.high_watermark > offset:
            lost = f"{offset} to {self.high_watermark - 1}"
            why = "an unclean election" if self._leader_may_lack else "no replica in sync kept power"
            log.error("%s: offsets %s were committed and are lost: %s", self.tp, lost, why)
            self.high_watermark = offset

    def leader_reported(self, high_watermark: int, log_start_offset: int) -> None:
        """Follower: the leader's high watermark, and where its log starts."""
        if high_watermark > self.leader_high_watermark:
            self.leader_high_watermark = high_watermark
        if self.leader_high_watermark > self.high_watermark:
            self._move_watermark()
        self.leader_log_start = log_start_offset
        if log_start_offset > self.log.log_start_offset:
            self._follow_log_start()

    def _follow_log_start(self) -> None:
        """Follower: the leader deleted old records; so does this replica, once its watermark is that far."""
        offset = self.leader_log_start
        if offset <= self.high_watermark and offset != self._next_log_start:
            self._next_log_start = offset
            self._context.tasks.spawn(
                self._move_log_start(offset), f"moving the log start of {self.tp} to {offset}"
            )

    async def _move_log_start(self, offset: int) -> None:
        try:
            await self.log.advance_start(offset)
        finally:
            if self._next_log_start == offset:
                self._next_log_start = 0
        if self.feeder is not None:
            self._acks.send_soon(self)  # the leader waits for this log start

    def _reset_feeder(self) -> None:
        feeder, self.feeder = self.feeder, None
        if feeder is not None:
            self._acks.reset(self, feeder)

    # --- the watermark moves -------------------------------------------------------------------------

    def _move_watermark(self) -> None:
        """The only place where the watermark rises (S24).

        Leader: as far as every member of the ISR, present or proposed, allows. Follower: as far as the leader
        said, and as this disk has it.
        """
        own = self.log.durable_end_offset
        if self.leader_id == self.node_id:
            isr = self.isr if self._pending_isr is None else {*self.isr, *self._pending_isr}
            ends = {peer: one.acked_end for peer, one in self._followers.items() if one.acked_end >= 0}
            offset = leader_watermark(self.high_watermark, isr, self.node_id, own, ends)
        else:
            offset = follower_watermark(self.high_watermark, self.leader_high_watermark, own)
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        if self._followers:
            self._feed.watermark_moved(self)
        if self.log.producers is not None:
            self.log.producers.advance_high_watermark(offset)
        if self._committed_waiters:
            too_few = self._too_few() if self.lacks_replicas else None
            self._committed_waiters.serve(offset, too_few)
        if self._watchers:
            self._wake_watchers()
        if self._events.bus.wants_watermarks:
            self._events.moved(self)

    def _too_few(self) -> RequestError | None:
        """The error for acks=all if the ISR fell below min.insync.replicas after the append."""
        if self.leader_id != self.node_id:
            return None
        return RequestError(
            ErrorCode.not_enough_replicas_after_append, f"{self.tp} has {len(self.isr)} in-sync replicas"
        )

    def _fail_waiters(self, error: RequestError) -> None:
        for waiters in (self._durable_waiters, self._committed_waiters, self._start_waiters):
            waiters.fail_behind(-1, error)

    # --- readers and log starts ---------------------------------------------------------------------

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` when the high watermark or the assignment changes, or on `close`, until `unwatch`."""
        self._watchers[wake] = None

    def unwatch(self, wake: Callable[[], None]) -> None:
        self._watchers.pop(wake, None)

    def _wake_watchers(self) -> None:
        for wake in list(self._watchers):
            wake()

    @property
    def low_watermark(self) -> int:
        """Leader: the lowest log start offset of all live replicas."""
        is_alive = self._context.is_alive
        starts = [one.log_start_offset for peer, one in self._followers.items() if is_alive(peer)]
        return min([self.log.log_start_offset, *starts])

    def _check_low_watermark(self) -> None:
        """Leader: answer deletions that every live replica has now carried out."""
        if self._start_waiters:
            low_watermark = self.low_watermark
            for waiter in [one for one in self._start_waiters if one.next_offset <= low_watermark]:
                waiter.callback(None)
