"""The core: a node's Raft state, its way between roles, and the door to the driver."""

from __future__ import annotations

from collections.abc import Sequence

from chronik.model import NodeId, PeerError, invariant
from chronik.raft import fence
from chronik.raft.candidate import Candidate, PreCandidate
from chronik.raft.entries import ConfigChange, Entry, HardState, Membership, NotLeader, RaftConfig, Snapshot
from chronik.raft.follower import Follower
from chronik.raft.leader import Leader
from chronik.raft.log import RaftLog
from chronik.raft.messages import Message
from chronik.raft.outbox import RaftOutbox
from chronik.raft.progress import ProgressState
from chronik.raft.reads import ReadResult
from chronik.raft.ready import FollowerStatus, Ready, SoftState, Status
from chronik.raft.role import Role, dispatch

__all__ = ["RaftCore"]


class RaftCore:
    """Feed it with `step`, `tick` and the requests; drain it with `ready`."""

    def __init__(
        self,
        config: RaftConfig,
        *,
        hard_state: HardState | None = None,
        snapshot: Snapshot | None = None,
        entries: Sequence[Entry] = (),
    ) -> None:
        """Start, or start again from exactly what storage recovered: everything, unfiltered."""
        stored = hard_state or HardState()
        bootstrap = Membership(voters=tuple(sorted(config.voters)))
        base = Snapshot(snapshot.index, snapshot.term, snapshot.membership) if snapshot else None
        self.config = config
        self.node_id = config.node_id
        self.log = RaftLog(base or Snapshot(0, 0, bootstrap), entries, stored.commit)
        self.term = max(stored.term, self.log.last_term)
        """Never goes back, not even over a restart."""
        # Entries and term are written together, and a power loss may keep the entries alone. Nothing of that
        # write was answered yet, so this node has given its vote to nobody in the entries' term.
        self.vote = stored.vote if stored.term == self.term else None
        self.leader_id: NodeId | None = None
        """The leader of `term`, once known."""
        self.election_elapsed = 0
        """Ticks since the leader was heard from; for a leader, since its last quorum check."""
        self.election_timeout = 0
        self.read_results: list[ReadResult] = []
        self._outbox = RaftOutbox(self.node_id)
        self._handed_hard_state = stored
        self.role: Role = Follower(self)
        self._handed_soft_state = self._soft_state
        self.reset_election_timer()

    # -- inputs

    def step(self, message: Message) -> None:
        """Take a message from a peer. PeerError: it makes no sense, nothing was changed by it
        beyond the term."""
        if message.to != self.node_id or message.sender == self.node_id:
            raise PeerError(f"message from {message.sender} to {message.to} reached node {self.node_id}")
        self._handle(message)
        self._settle()

    def tick(self) -> None:
        self.role.tick()
        self._settle()

    def propose(self, data: bytes) -> int:
        """Append a command and give its index. It is committed if and only if the entry that is
        later applied at this index has the term of now."""
        return self._leader().propose(data)

    def has_room(self, size: int) -> bool:
        """False while `propose` would refuse `size` bytes because too much waits to be committed."""
        return not isinstance(self.role, Leader) or self.role.has_room(size)

    def propose_config(self, change: ConfigChange) -> int:
        index = self._leader().propose_config(change)
        self._settle()
        return index

    def transfer_leadership(self, to: NodeId) -> None:
        """Hand over; given up after `election_ticks`. Proposals are refused meanwhile."""
        self._leader().transfer_to(to)

    def read_index(self, ctx: int) -> None:
        """Ask from where a linearizable read may be served; the answer comes in `Ready.reads`."""
        self._leader().reads.ask(ctx)

    def campaign(self) -> None:
        """Run for election without waiting for the time-out (a lone voter at start)."""
        if self.is_promotable and not isinstance(self.role, Leader):
            self.become_pre_candidate()
            self._settle()

    def persisted(self, number: int) -> None:
        """Everything in the Ready of this number, and all before it, is durable."""
        if number == 0:
            return
        self.log.durability.persisted(number)
        self._outbox.persisted(number, self.term)
        self.role.persisted()
        self._settle()

    def applied(self, index: int) -> None:
        """The state machine has taken in everything up to `index` (entries or snapshot)."""
        self.log.mark_applied(index)

    def snapshot_at(self, index: int) -> Snapshot:
        """What to store beside a snapshot of the state machine taken at an applied index."""
        term = self.log.term_at(index)
        invariant(index <= self.log.applied and term is not None, f"no snapshot can be taken at {index}")
        return Snapshot(index, term or 0, self.log.membership_at(index))

    def compact(self, index: int) -> None:
        """Forget entries up to `index`; call it when a snapshot at or above `index` is durable."""
        self.log.compact(index)

    def report_unreachable(self, node_id: NodeId) -> None:
        """Messages to this peer may be lost (its connection broke): find out again how far its log is."""
        peer = self.role.progress.get(node_id) if isinstance(self.role, Leader) else None
        if peer is not None and peer.state is not ProgressState.PROBE:
            peer.become_probe()

    def forget_leader(self) -> None:
        """There is strong evidence that the leader is dead: listen to candidates before the lease is over.

        The term and the role stay. A leader that lives is known again with its next message. The caller
        campaigns when it is this node's turn; the time-out starts again, so that it does not do so before.
        """
        if isinstance(self.role, Follower):
            self.leader_id = None
            self.reset_election_timer()

    # -- outputs

    def ready(self) -> Ready | None:
        """All work that has come up since the last call, or None."""
        self.role.flush()
        if self._is_idle:
            return None
        log, durability = self.log, self.log.durability
        hard_state = self._take_hard_state()
        snapshot, log.snapshot = log.snapshot, None
        truncate_from = durability.truncate_from
        entries = log.between(durability.handed, log.last_index)
        number = 0
        if hard_state or snapshot or entries or truncate_from is not None:
            number = self._outbox.handed_number = self._outbox.handed_number + 1
            durability.hand_out(number, log.last_index)
        current = self._soft_state
        soft_state = current if current != self._handed_soft_state else None
        self._handed_soft_state = current
        committed = log.take_committed()
        reads, self.read_results = tuple(self.read_results), []
        messages = self._outbox.take()
        if not (number or committed or reads or messages or soft_state):
            return None
        return Ready(
            number=number,
            hard_state=hard_state,
            snapshot=snapshot,
            truncate_from=truncate_from,
            entries=entries,
            messages=messages,
            committed=committed,
            reads=reads,
            soft_state=soft_state,
        )

    def status(self) -> Status:
        log, leader = self.log, self.role if isinstance(self.role, Leader) else None
        followers = {
            node_id: FollowerStatus(
                match=peer.match,
                next=peer.next,
                state=peer.state,
                inflight=len(peer.window),
                is_active=peer.is_active,
                is_learner=node_id in log.membership.learners,
            )
            for node_id, peer in (leader.progress.items() if leader else ())
            if node_id != self.node_id
        }
        return Status(
            node_id=self.node_id,
            role=self.role.name,
            term=self.term,
            leader_id=self.leader_id,
            vote=self.vote,
            commit=log.commit,
            applied=log.applied,
            durable=log.durable,
            first_index=log.base.index + 1,
            last_index=log.last_index,
            membership=log.membership,
            is_config_pending=log.config_index > log.commit,
            transferee=leader.transferee if leader else None,
            followers=followers,
        )

    # -- for the roles

    @property
    def is_leader(self) -> bool:
        return isinstance(self.role, Leader)

    @property
    def is_in_lease(self) -> bool:
        """A leader is known and was heard from lately; candidates are not listened to."""
        return self.leader_id is not None and self.election_elapsed < self.config.election_ticks

    @property
    def is_promotable(self) -> bool:
        """A voter, and not amid the installation of a snapshot.

        A voter whose removal is in the log but not committed still counts: it may be the only
        one that can complete the removal (thesis §4.2.2).
        """
        log = self.log
        is_voter = self.node_id in log.membership.voters or self.node_id in log.committed_membership.voters
        return is_voter and log.durable >= log.base.index

    @property
    def other_voters(self) -> tuple[NodeId, ...]:
        return tuple(node for node in self.log.membership.voters if node != self.node_id)

    def send(self, message: Message) -> None:
        self._outbox.send(message)

    def promise(self, message: Message) -> None:
        """Send a message that must not leave before all state of this moment is durable."""
        log, handed = self.log, self._handed_hard_state
        is_dirty = (
            (self.term, self.vote) != (handed.term, handed.vote)
            or log.snapshot is not None
            or log.durability.is_dirty(log.last_index)
        )
        self._outbox.hold(message, is_dirty=is_dirty)

    def follow(self, leader_id: NodeId) -> None:
        invariant(
            self.leader_id in (None, leader_id),
            f"nodes {self.leader_id} and {leader_id} both lead term {self.term}",
        )
        self.leader_id = leader_id
        self.election_elapsed = 0

    def reset_election_timer(self) -> None:
        ticks = self.config.election_ticks
        self.election_elapsed = 0
        self.election_timeout = ticks + self.config.random_ticks(ticks)

    def become_follower(self, term: int, leader_id: NodeId | None) -> None:
        invariant(term >= self.term, "terms do not go back")
        if term > self.term:
            self.term, self.vote = term, None
        self._become(Follower(self), leader_id)

    def become_pre_candidate(self) -> None:
        self._become(PreCandidate(self), None)

    def become_candidate(self, *, transfer: bool) -> None:
        self.term, self.vote = self.term + 1, self.node_id
        self._become(Candidate(self, transfer=transfer), None)

    def become_leader(self) -> None:
        self._become(Leader(self), self.node_id)

    def _become(self, role: Role, leader_id: NodeId | None) -> None:
        self.role.leave()
        self.leader_id = leader_id
        self.reset_election_timer()
        self.role = role
        role.enter()

    # -- inside

    @property
    def _is_idle(self) -> bool:
        """Nothing has come up: what most ticks find, and cheaper to see than to put together."""
        log, hard, soft = self.log, self._handed_hard_state, self._handed_soft_state
        return (
            self._outbox.is_empty
            and not self.read_results
            and log.is_handed_out
            and self.term == hard.term
            and self.vote == hard.vote
            and self.term == soft.term
            and self.leader_id == soft.leader_id
            and self.role.name is soft.role
        )

    @property
    def _soft_state(self) -> SoftState:
        return SoftState(self.role.name, self.leader_id, self.term)

    def _leader(self) -> Leader:
        if not isinstance(self.role, Leader):
            raise NotLeader(self.leader_id)
        return self.role

    def _handle(self, message: Message) -> None:
        if fence.admit(self, message):
            dispatch(self.role, message)

    def _settle(self) -> None:
        while self._outbox.to_self:
            self._handle(self._outbox.to_self.pop(0))

    def _take_hard_state(self) -> HardState | None:
        """The commit index alone is not worth a write; it travels with one that happens anyway.

        It is never beyond the durable log, so that no crash can leave it dangling.
        """
        log, handed = self.log, self._handed_hard_state
        commit = max(handed.commit, min(log.commit, log.durable))
        current = HardState(self.term, self.vote, commit)
        is_log_dirty = log.snapshot is not None or log.durability.is_dirty(log.last_index)
        if current == handed or (
            (current.term, current.vote) == (handed.term, handed.vote) and not is_log_dirty
        ):
            return None
        self._handed_hard_state = current
        return current
