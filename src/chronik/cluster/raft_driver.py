"""Performs what the Raft core asks for: persists, sends, applies. The core decides, this file does.

Every input (a message, a tick, a proposal, a finished write) is followed by taking all the core has ready.
Proposals of one turn of the loop share one write and one message per follower. Who does not lead sends
its commands to the one that does.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Iterator
from typing import Final, Protocol

import msgspec

from chronik.cluster.early_campaign import EarlyCampaign
from chronik.cluster.lease import Lease
from chronik.cluster.raft_storage import RaftStorage
from chronik.cluster.stage_times import StageTimes
from chronik.cluster.waiting_queue import WaitingQueue
from chronik.log_lines import RepeatingLine
from chronik.metadata.store import CommittedCommand, MetadataListener
from chronik.metadata.telling import tell_applied, tell_replicated, tell_written
from chronik.metrics import WriteStages
from chronik.model import NodeId, StorageError, Unavailable, invariant
from chronik.raft import (
    ConfigChange,
    Entry,
    EntryKind,
    Membership,
    NotLeader,
    RaftConfig,
    RaftCore,
    Ready,
    RoleName,
    Snapshot,
    Status,
)
from chronik.raft.messages import (
    FROM_LEADER,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    VoteResponse,
)
from chronik.tasks import Tasks

log = logging.getLogger(__name__)
_unwritten: Final = RepeatingLine(
    log,
    logging.ERROR,
    "the metadata log cannot be written: %s; this node leaves the quorum until it can",
)
_unread: Final = RepeatingLine(log, logging.ERROR, "the metadata log cannot be read back, trying again: %s")

TICK_SECONDS: Final = 0.025
ELECTION_TICKS: Final = 40
HEARTBEAT_TICKS: Final = 4
SILENT_TICKS: Final = 48
"""A leader that is silent for this long is taken for dead even if its link is open: its host may have lost
power. The survivors campaign in turn then, which is over before most random election time-outs are."""
PATIENCE_TICKS: Final = 24
"""Keeps random time-outs out of that: two that end at the same moment split the votes."""
SNAPSHOT_ENTRIES: Final = 20_000
KEPT_ENTRIES: Final = 2_000
RELOAD_SECONDS: Final = 0.5


class RaftTransport(Protocol):
    """How messages reach peers; losing some is allowed."""

    def send(self, message: Message) -> None: ...
    def tick(self) -> None: ...
    async def forward(self, leader: NodeId, data: bytes) -> int:
        """Have the leader propose `data`; returns its index. Raises Unavailable."""

    async def ask_around(self, data: bytes) -> int:
        """Like `forward`, through any peer that knows the leader."""


class RaftDriver:
    def __init__(
        self,
        *,
        node_id: NodeId,
        voters: tuple[NodeId, ...],
        storage: RaftStorage,
        transport: RaftTransport,
        rng: random.Random,
        stages: WriteStages | None = None,
    ) -> None:
        self._config = RaftConfig(
            node_id=node_id,
            voters=voters,
            random_ticks=rng.randrange,
            election_ticks=ELECTION_TICKS,
            heartbeat_ticks=HEARTBEAT_TICKS,
            patience_ticks=PATIENCE_TICKS,
        )
        self._storage = storage
        self._transport = transport
        self._times = StageTimes(stages or WriteStages())
        self._loop = asyncio.get_running_loop()
        self._core: RaftCore | None = None
        self._was_only_voter = False
        """As of the last core, while there is none."""
        self._listener: MetadataListener | None = None
        self._pump_scheduled = False
        self._installing: deque[Ready] | None = None
        """Readies that wait while a snapshot is written; None if no snapshot is being written."""
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks("raft")
        self._snapshotting = False
        self._stopped = False
        self._waiting = WaitingQueue()
        self.elections = 0
        """How often role, leader or term changed since the start."""
        self._early_campaign = EarlyCampaign(
            self._running_core, self._schedule_pump, loop=self._loop, rng=rng
        )
        self.lease = Lease(node_id, self._loop.time())
        self.applied_term = 0
        self._applied_index = 0
        """Last index that the listener got. A rebuilt core hands over entries after its snapshot again; those
        up to this index are skipped."""

    # --- life --------------------------------------------------------------------------------------

    def subscribe(self, listener: MetadataListener) -> None:
        """What is committed goes to this listener. Whoever takes the log does so before `start`."""
        invariant(self._listener is None, "the metadata log has one listener")
        self._listener = listener

    async def start(self) -> None:
        """Load what is on disk, hand over what is known to be committed, begin to tick."""
        listener = self._listener
        invariant(listener is not None, "nobody takes what the metadata log commits")
        assert listener is not None
        self._storage.load_snapshot()
        await self._build()
        if self._storage.snapshot is not None:
            listener.on_snapshot(self._storage.snapshot.data)
            self._applied_index = self._storage.snapshot.index
        if self.core.log.membership.voters == (self._config.node_id,):
            self.core.campaign()
        self._pump()
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)

    async def _build(self) -> None:
        self._core = RaftCore(
            self._config,
            hard_state=self._storage.hard_state(),
            snapshot=self._storage.snapshot,
            entries=await self._storage.load_entries(),
        )

    async def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()

    @property
    def core(self) -> RaftCore:
        """Raises Unavailable before the start and while the log is loaded again after a failed write."""
        if self._core is None:
            raise Unavailable("the metadata log of this node is not open now")
        return self._core

    def _running_core(self) -> RaftCore | None:
        return None if self._stopped else self._core

    @property
    def waits(self) -> int:
        """How often a command had to wait because too much was not committed yet."""
        return self._waiting.waits

    @property
    def is_open(self) -> bool:
        """Whether there is a `core` now."""
        return self._core is not None

    @property
    def is_leader(self) -> bool:
        return self._core is not None and self._core.is_leader

    @property
    def is_only_voter(self) -> bool:
        """Whether nothing is decided without this node. That holds while it does not lead, too, because its
        log cannot be written."""
        return self._was_only_voter if self._core is None else self._votes_alone(self._core)

    def _votes_alone(self, core: RaftCore) -> bool:
        return core.log.membership.voters == (self._config.node_id,)

    @property
    def leads_alone(self) -> bool:
        return self.is_leader and self.is_only_voter

    @property
    def leader_id(self) -> NodeId | None:
        return self._core.leader_id if self._core is not None else None

    @property
    def snapshot_index(self) -> int:
        """Last entry that the newest snapshot on disk covers; 0 without one."""
        return self._storage.snapshot.index if self._storage.snapshot is not None else 0

    def status(self) -> Status:
        return self.core.status()

    @property
    def membership(self) -> Membership:
        """The members, as this node's log has them; empty before `start`."""
        return self._core.log.membership if self._core is not None else Membership()

    @property
    def members(self) -> tuple[NodeId, ...]:
        """Voters and learners."""
        return self.membership.members

    @property
    def ruling_members(self) -> tuple[NodeId, ...]:
        """Those, and the members of the committed membership.

        A leader that removes itself leads until its removal is committed (thesis §4.2.2).
        """
        if self._core is None:
            return ()
        latest, committed = self._core.log.membership, self._core.log.committed_membership
        return (*latest.voters, *latest.learners, *committed.voters, *committed.learners)

    @property
    def term(self) -> int:
        return self._core.term if self._core is not None else 0

    @property
    def applied_index(self) -> int:
        """Last entry that the metadata of this node has taken in."""
        return self._applied_index

    # --- inputs ------------------------------------------------------------------------------------

    def step(self, message: Message) -> None:
        core = self._running_core()
        if core is None:
            return
        now = self._loop.time()
        if isinstance(message, FROM_LEADER) and message.term >= core.term:
            self._early_campaign.heard_leader()
        if isinstance(message, AppendResponse):
            self._times.applied_by(message.sender, message.applied)
        if isinstance(message, VoteResponse) and message.granted and message.term == core.term:
            self.lease.on_vote(message, now)
        core.step(message)
        if message.term == core.term:
            if isinstance(message, Heartbeat) and core.leader_id == message.sender:
                self.lease.on_heartbeat(message, applied=self._applied_index, now=now)
            elif isinstance(message, HeartbeatResponse) and core.is_leader:
                self.lease.on_answer(message, now)
        self._schedule_pump()

    def report_unreachable(self, peer: NodeId) -> None:
        """A link to `peer` broke."""
        core = self._running_core()
        if core is None:
            return
        core.report_unreachable(peer)
        self._times.lost(peer)
        self._early_campaign.lost(peer)
        self._schedule_pump()

    def _tick(self) -> None:
        if self._stopped:
            return
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)
        core = self.core
        core.tick()
        if core.leader_id is not None and not core.is_leader and core.election_elapsed >= SILENT_TICKS:
            self._early_campaign.leader_is_silent()
        if core.is_leader and self.applied_term == core.term:
            self.lease.lead(core.log.membership.voters, self._loop.time())
        self._transport.tick()
        self._pump()

    async def append(self, data: bytes, *, may_ask: bool = True) -> int:
        """Propose here if this node leads, else through the leader. Raises Unavailable.

        A node that knows no leader sends the entry through a peer (`may_ask`). Leaders send only to members,
        so a node that is about to join does not know the leader. While too much waits to be committed, this
        waits too; the caller sets the time-out.
        """
        await self._waiting.enter(lambda: self._has_room(data))
        try:
            return self.propose(data)
        except NotLeader as error:
            if error.leader_hint is None:
                if not may_ask:
                    raise Unavailable("the cluster has no leader now") from error
                return await self._transport.ask_around(data)
            return await self._transport.forward(error.leader_hint, data)

    def has_room(self, data: bytes) -> bool:
        """Whether `append` would take `data` without waiting."""
        return not self._waiting.is_waited_for and self._has_room(data)

    def _has_room(self, data: bytes) -> bool:
        return self._core is None or self._core.has_room(len(data))

    def propose(self, data: bytes) -> int:
        index = self.core.propose(data)
        self._times.proposed(index)
        self._schedule_pump()
        return index

    def propose_config(self, change: ConfigChange) -> int:
        index = self.core.propose_config(change)
        self._schedule_pump()
        return index

    def transfer_leadership(self, to: NodeId) -> None:
        self.core.transfer_leadership(to)
        self._schedule_pump()

    # --- outputs -----------------------------------------------------------------------------------

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self._stopped:
            return
        core = self.core
        while core is self._core and (ready := core.ready()) is not None:
            if self._installing is not None:
                self._installing.append(ready)
            else:
                self._perform(ready)

    def _perform(self, ready: Ready) -> None:
        if ready.snapshot is not None:
            self._installing = deque()
            self._tasks.spawn(self._install(ready), "installing a snapshot")
            return
        if ready.number:
            core = self.core
            self._storage.write(
                ready.hard_state,
                ready.truncate_from,
                ready.entries,
                lambda error: self._written(core, ready.number, error, ready.entries),
            )
        self._finish(ready)

    def _finish(self, ready: Ready) -> None:
        if ready.soft_state is not None and ready.soft_state.role is RoleName.LEADER:
            self.lease.elected(ready.soft_state.term)  # before it sends anything as the leader
        for message in ready.messages:
            self._send(message, ready)
        if ready.messages:
            self._times.sent(ready.entries)
        if ready.committed:
            self._apply(ready.committed)
        if ready.committed or ready.soft_state is not None:
            self._waiting.changed()
        if ready.soft_state is not None:
            if ready.soft_state.role is not RoleName.LEADER:
                self._times.forget()
            self.elections += 1

    def _send(self, message: Message, ready: Ready) -> None:
        if isinstance(message, InstallSnapshot):
            snapshot = self._storage.snapshot
            if snapshot is None:
                return
            message = msgspec.structs.replace(message, snapshot=snapshot)
        elif isinstance(message, AppendResponse):
            # It leaves at the end of this turn, in which what is committed is applied.
            applied = ready.committed[-1].index if ready.committed else self._applied_index
            message = msgspec.structs.replace(message, applied=applied)
        elif isinstance(message, Heartbeat):
            log_ = self.core.log
            message = self.lease.heartbeat(
                message, voters=log_.membership.voters, last_index=log_.last_index, now=self._loop.time()
            )
        elif isinstance(message, HeartbeatResponse):
            message = self.lease.answer(message, self._loop.time())
        elif isinstance(message, VoteResponse) and message.granted:
            message = self.lease.vote(message, self._loop.time())
        self._transport.send(message)

    def _apply(self, entries: tuple[Entry, ...]) -> None:
        assert self._listener is not None
        self._times.committed(entries)
        commands = [
            CommittedCommand(entry.index, entry.data)
            for entry in entries
            if entry.kind is EntryKind.COMMAND and entry.index > self._applied_index
        ]
        if commands:
            self._listener.on_committed(commands)
            (tell_replicated if self.is_leader else tell_applied)(_commands(entries))
        last = entries[-1]
        self._applied_index = max(self._applied_index, last.index)
        self.applied_term = last.term
        self._listener.on_applied(last.index)
        self.lease.on_applied(last.index)
        self.core.applied(last.index)
        if any(entry.kind is EntryKind.CONFIG for entry in entries):
            self._listener.on_quorum_changed()
        self._maybe_snapshot(last.index)

    def _written(
        self, core: RaftCore, number: int, error: StorageError | None, entries: tuple[Entry, ...] = ()
    ) -> None:
        if core is not self._core or self._stopped:
            return
        if error is not None:
            _unwritten(str(error), error)
            self._was_only_voter = self._votes_alone(core)
            self._core = None
            self._waiting.changed()
            self._tasks.spawn(self._reload(), "reading the metadata log back")
            if self._listener is not None:
                self._listener.on_lost(str(error))
            return
        self._times.written(entries)
        if core.is_leader:
            tell_written(_commands(entries))
        core.persisted(number)
        self._schedule_pump()

    async def _reload(self) -> None:
        """After a failed write: begin again from what is on disk, as a restart would."""
        if self._timer is not None:
            self._timer.cancel()
        while self._core is None:
            await asyncio.sleep(RELOAD_SECONDS)
            try:
                await self._build()
            except (OSError, StorageError) as error:
                _unread(str(error), error)
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)

    async def _install(self, ready: Ready) -> None:
        """A snapshot from the leader: durable first, then the log starts behind it, then it is applied."""
        assert ready.snapshot is not None
        assert self._listener is not None
        snapshot = ready.snapshot
        await self._storage.save_snapshot(snapshot)
        self._storage.reset_to(snapshot)
        core = self.core
        self._storage.write(
            ready.hard_state, None, ready.entries, lambda error: self._written(core, ready.number, error)
        )
        self._listener.on_snapshot(snapshot.data)
        self._listener.on_applied(snapshot.index)
        self._applied_index = snapshot.index
        self.lease.on_applied(snapshot.index)
        core.applied(snapshot.index)
        self._listener.on_quorum_changed()
        self._finish(ready)
        waiting, self._installing = self._installing or deque(), None
        for held in waiting:
            self._perform(held)
        self._pump()

    def _maybe_snapshot(self, applied: int) -> None:
        if (
            applied - self.snapshot_index >= SNAPSHOT_ENTRIES
            and not self._snapshotting
            and self._installing is None
        ):
            self._snapshotting = True
            assert self._listener is not None
            taken = msgspec.structs.replace(self.core.snapshot_at(applied), data=self._listener.snapshot())
            self._tasks.spawn(self._save_snapshot(taken), "saving a snapshot")

    async def _save_snapshot(self, snapshot: Snapshot) -> None:
        try:
            await self._storage.save_snapshot(snapshot)
            keep_from = snapshot.index - KEPT_ENTRIES
            if keep_from > 0:
                self.core.compact(keep_from)
                await self._storage.forget_before(keep_from)
        except (OSError, StorageError) as error:
            log.error("no metadata snapshot could be written; the log is kept: %s", error)
        finally:
            self._snapshotting = False


def _commands(entries: tuple[Entry, ...]) -> Iterator[tuple[int, bytes]]:
    return ((entry.index, entry.data) for entry in entries if entry.kind is EntryKind.COMMAND)
