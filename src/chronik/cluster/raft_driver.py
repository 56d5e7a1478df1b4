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
from collections.abc import Callable, Coroutine
from typing import Final, Protocol

import msgspec

from chronik.cluster.lease import Lease
from chronik.cluster.raft_storage import RaftStorage
from chronik.cluster.stage_times import StageTimes
from chronik.metadata.store import Committed, MetadataListener
from chronik.metrics import WriteStages
from chronik.model import NodeId, StorageError, Unavailable
from chronik.raft import (
    ConfigChange,
    Entry,
    EntryKind,
    NotLeader,
    RaftConfig,
    RaftCore,
    Ready,
    RoleName,
    Snapshot,
    SoftState,
    Status,
)
from chronik.raft.messages import (
    FROM_LEADER,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
)

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.025
ELECTION_TICKS: Final = 40
HEARTBEAT_TICKS: Final = 4
QUIET_SECONDS: Final = 0.15
"""A leader whose link broke and that says nothing for so long, more than a heartbeat, is taken for dead."""
CAMPAIGN_SECONDS: Final = 0.1
"""How long after each other the survivors of a leader ask for votes."""
CAMPAIGNS_MAX: Final = 4
"""How often a survivor asks, after longer and longer waits, before it leaves that to its time-out."""
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
        """The same through any peer that knows who leads."""


class RaftDriver:
    def __init__(
        self,
        *,
        node_id: NodeId,
        voters: tuple[NodeId, ...],
        storage: RaftStorage,
        transport: RaftTransport,
        rng: random.Random,
        take_snapshot: Callable[[], bytes],
        stages: WriteStages | None = None,
    ) -> None:
        self._config = RaftConfig(
            node_id=node_id,
            voters=voters,
            random_ticks=rng.randrange,
            election_ticks=ELECTION_TICKS,
            heartbeat_ticks=HEARTBEAT_TICKS,
        )
        self._rng = rng
        self._storage = storage
        self._transport = transport
        self._take_snapshot = take_snapshot
        self._times = StageTimes(stages or WriteStages())
        self._loop = asyncio.get_running_loop()
        self._core: RaftCore | None = None
        self._listener: MetadataListener | None = None
        self._pump_scheduled = False
        self._installing: deque[Ready] | None = None
        """Readies that wait behind a snapshot being written; None if there is none."""
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._snapshotting = False
        self._stopped = False
        self._soft_listeners: list[Callable[[SoftState], None]] = []
        self._membership_listeners: list[Callable[[], None]] = []
        self._leader_heard = self._loop.time()
        """When something of the leader last came in, however old: no more than a hint that it is alive."""
        self._lease = Lease(node_id, self._loop.time())
        self.applied_term = 0
        self._applied_index = 0
        """Handed to the listener; a core that is built anew starts over from its snapshot."""

    # --- life --------------------------------------------------------------------------------------

    async def start(self, listener: MetadataListener) -> None:
        """Load what is on disk, hand over what is known to be committed, begin to tick."""
        self._listener = listener
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
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def core(self) -> RaftCore:
        """Raises Unavailable before the start and while the log is loaded again after a failed write."""
        if self._core is None:
            raise Unavailable("the metadata log of this node is not open now")
        return self._core

    @property
    def is_open(self) -> bool:
        """Whether there is a `core` now."""
        return self._core is not None

    @property
    def is_leader(self) -> bool:
        return self._core is not None and self._core.is_leader

    @property
    def leads_alone(self) -> bool:
        """Whether there is nobody who could have deposed this node."""
        return self.is_leader and self.core.log.membership.voters == (self._config.node_id,)

    @property
    def leader_id(self) -> NodeId | None:
        return self._core.leader_id if self._core is not None else None

    def status(self) -> Status:
        return self.core.status()

    def on_soft_state(self, callback: Callable[[SoftState], None]) -> None:
        """Have `callback` called whenever role, leader or term change."""
        self._soft_listeners.append(callback)

    def on_membership(self, callback: Callable[[], None]) -> None:
        """Have `callback` called whenever a change of the quorum's members is committed."""
        self._membership_listeners.append(callback)

    @property
    def members(self) -> tuple[NodeId, ...]:
        """Voters and learners, as this node's log has them."""
        return self._core.log.membership.members if self._core is not None else ()

    # --- inputs ------------------------------------------------------------------------------------

    def step(self, message: Message) -> None:
        core = self._core
        if core is None or self._stopped:
            return
        now = self._loop.time()
        if isinstance(message, FROM_LEADER) and message.term >= core.term:
            self._leader_heard = now
        if isinstance(message, AppendResponse):
            self._times.applied_by(message.sender, message.applied)
        core.step(message)
        if message.term == core.term:
            if isinstance(message, Heartbeat) and core.leader_id == message.sender:
                self._lease.on_heartbeat(message, applied=self._applied_index, now=now)
            elif isinstance(message, HeartbeatResponse) and core.is_leader:
                self._lease.on_answer(message, now)
        self._schedule_pump()

    @property
    def lease_start(self) -> float:
        """Since when this node knows that the cluster counts on it."""
        return self._lease.start

    def report_unreachable(self, peer: NodeId) -> None:
        """A link to `peer` broke. If it led, do not sit out the whole time-out: ask for votes soon."""
        core = self._core
        if core is None or self._stopped:
            return
        core.report_unreachable(peer)
        self._times.lost(peer)
        if core.leader_id == peer and not core.is_leader:
            self._doubt(peer, core.term)
        self._schedule_pump()

    def _doubt(self, peer: NodeId, term: int) -> None:
        """The leader's link broke: when it is also silent it is dead, and others may be voted for.

        Everybody gives up its lease at the same time but asks for votes in turn, so that votes do not split.
        """
        core = self._core
        if core is None or self._stopped or core.leader_id != peer or core.term != term:
            return
        wait = self._leader_heard + QUIET_SECONDS - self._loop.time()
        if wait > 0:
            self._loop.call_later(wait, self._doubt, peer, term)
            return
        core.forget_leader()
        self._schedule_pump()
        voters = sorted(voter for voter in core.log.membership.voters if voter != peer)
        if core.node_id in voters:
            turn = (voters.index(core.node_id) + term) % len(voters)
            delay = CAMPAIGN_SECONDS * (turn + 0.5 * self._rng.random())
            self._loop.call_later(delay, self._campaign, term, 1)

    def _campaign(self, term: int, attempt: int) -> None:
        """Ask for votes, and again soon while nobody leads.

        Survivors on a busy machine may ask at the same moment and split their votes, or ask one that has yet
        to notice the death. The election time-out of one to two seconds would be a long wait then.
        """
        core = self._core
        if core is None or self._stopped or core.leader_id is not None:
            return
        if core.term == term or attempt > 1:
            core.campaign()
            self._pump()
        if attempt < CAMPAIGNS_MAX:
            delay = CAMPAIGN_SECONDS * 2**attempt * (0.5 + self._rng.random())
            self._loop.call_later(delay, self._campaign, term, attempt + 1)

    def _tick(self) -> None:
        if self._stopped:
            return
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)
        core = self.core
        core.tick()
        if core.is_leader and self.applied_term == core.term:
            self._lease.lead(core.log.membership.voters, self._loop.time())
        self._transport.tick()
        self._pump()

    async def append(self, data: bytes, *, may_ask: bool = True) -> int:
        """Propose here if this node leads, else through the leader. Raises Unavailable.

        Who does not know the leader asks the others (`may_ask`): leaders talk to members only, so a node on
        its way in has never heard of one.
        """
        try:
            return self.propose(data)
        except NotLeader as error:
            if error.leader_hint is None:
                if not may_ask:
                    raise Unavailable("the cluster has no leader now") from error
                return await self._transport.ask_around(data)
            return await self._transport.forward(error.leader_hint, data)

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
            self._spawn(self._install(ready))
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
        for message in ready.messages:
            self._send(message, ready)
        if ready.messages:
            self._times.sent(ready.entries)
        if ready.committed:
            self._apply(ready.committed)
        if ready.soft_state is not None:
            if ready.soft_state.role is not RoleName.LEADER:
                self._times.forget()
            for callback in self._soft_listeners:
                callback(ready.soft_state)

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
            message = self._lease.heartbeat(
                message, voters=log_.membership.voters, last_index=log_.last_index, now=self._loop.time()
            )
        elif isinstance(message, HeartbeatResponse):
            message = self._lease.answer(message, self._loop.time())
        self._transport.send(message)

    def _apply(self, entries: tuple[Entry, ...]) -> None:
        assert self._listener is not None
        self._times.committed(entries)
        commands = [
            Committed(entry.index, entry.data)
            for entry in entries
            if entry.kind is EntryKind.COMMAND and entry.index > self._applied_index
        ]
        if commands:
            self._listener.on_committed(commands)
        last = entries[-1]
        self._applied_index = max(self._applied_index, last.index)
        self.applied_term = last.term
        self._listener.on_applied(last.index)
        self._lease.on_applied(last.index)
        self.core.applied(last.index)
        if any(entry.kind is EntryKind.CONFIG for entry in entries):
            self._tell_membership()
        self._maybe_snapshot(last.index)

    def _tell_membership(self) -> None:
        for callback in self._membership_listeners:
            callback()

    def _written(
        self, core: RaftCore, number: int, error: StorageError | None, entries: tuple[Entry, ...] = ()
    ) -> None:
        if core is not self._core or self._stopped:
            return
        if error is not None:
            log.error(
                "the metadata log cannot be written: %s; this node leaves the quorum until it can", error
            )
            self._core = None
            self._spawn(self._reload())
            if self._listener is not None:
                self._listener.on_lost(str(error))
            return
        self._times.written(entries)
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
                log.error("the metadata log cannot be read back, trying again: %s", error)
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
        self._lease.on_applied(snapshot.index)
        core.applied(snapshot.index)
        self._tell_membership()
        self._finish(ready)
        waiting, self._installing = self._installing or deque(), None
        for held in waiting:
            self._perform(held)
        self._pump()

    def _maybe_snapshot(self, applied: int) -> None:
        last = self._storage.snapshot.index if self._storage.snapshot is not None else 0
        if applied - last >= SNAPSHOT_ENTRIES and not self._snapshotting and self._installing is None:
            self._snapshotting = True
            taken = msgspec.structs.replace(self.core.snapshot_at(applied), data=self._take_snapshot())
            self._spawn(self._save_snapshot(taken))

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

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("raft: %s", error, exc_info=error)
