"""The leader: appends, replicates to everybody at once, and decides what is committed.

Nothing is sent while an input is handled; `flush` looks at each follower when a Ready is put
together, so that all proposals of one turn travel in one append per follower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.model import ErrorCode, NodeId, PeerError, RequestError, Unavailable
from chronik.raft import quorum
from chronik.raft.entries import ChangeKind, ConfigChange, Entry, EntryKind
from chronik.raft.log import encode_membership
from chronik.raft.messages import (
    AppendEntries,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    InstallSnapshotResponse,
    TimeoutNow,
)
from chronik.raft.progress import Progress, ProgressState, Window
from chronik.raft.reads import Reads
from chronik.raft.ready import RoleName
from chronik.raft.role import Role

if TYPE_CHECKING:
    from chronik.raft.core import RaftCore

__all__ = ["Leader"]


class Leader(Role):
    name = RoleName.LEADER

    def __init__(self, core: RaftCore) -> None:
        super().__init__(core)
        self.progress: dict[NodeId, Progress] = {}
        """One for each member, this node included, and for members whose removal is not committed yet."""
        self.reads = Reads()
        self.transferee: NodeId | None = None
        self._transfer_elapsed = 0
        self._heartbeat_elapsed = 0
        self._heartbeat_due = False
        self._uncommitted_bytes = 0
        """Uncommitted bytes of entries appended in this term; this leader does not limit what came before."""

    def enter(self) -> None:
        for node in {*self.core.log.membership.members, self.core.node_id}:
            self._track(node)
        self._append(EntryKind.NOOP, b"")  # §8: commits what former terms left behind
        self.persisted()

    def leave(self) -> None:
        self.core.read_results.extend(self.reads.fail())

    # -- time

    def tick(self) -> None:
        core, config = self.core, self.core.config
        self._heartbeat_elapsed += 1
        if self._heartbeat_elapsed >= config.heartbeat_ticks:
            self._heartbeat_due = True
        for peer in self.progress.values():
            if peer.state is ProgressState.SNAPSHOT:
                peer.snapshot_age_ticks += 1
                if peer.snapshot_age_ticks >= config.snapshot_ticks:
                    peer.become_probe()
        if self.transferee is not None:
            self._transfer_elapsed += 1
            if self._transfer_elapsed >= config.election_ticks:
                self.transferee = None
        core.election_elapsed += 1
        if core.election_elapsed >= config.election_ticks:
            core.election_elapsed = 0
            self._check_quorum()

    def _check_quorum(self) -> None:
        """A leader that a majority no longer answers may have a successor already (thesis §6.2)."""
        core, voters = self.core, self.core.log.membership.voters
        active = [n for n in voters if n == core.node_id or self.progress[n].is_active]
        for peer in self.progress.values():
            peer.is_active = False
        if len(active) < quorum.majority(voters):
            core.become_follower(core.term, None)

    # -- requests

    def has_room(self, size: int) -> bool:
        """Whether a command of `size` bytes may be proposed; any size if nothing waits to be committed."""
        waiting = self._uncommitted_bytes
        return not waiting or waiting + size <= self.core.config.max_uncommitted_bytes

    def propose(self, data: bytes) -> int:
        if self.transferee is not None:
            raise Unavailable(f"leadership is moving to node {self.transferee}")
        if not self.has_room(len(data)):
            raise Unavailable(f"{self._uncommitted_bytes} bytes of proposals wait to be committed")
        return self._append(EntryKind.COMMAND, data)

    def propose_config(self, change: ConfigChange) -> int:
        """One change at a time, and none before this term committed something (thesis §4.1)."""
        log = self.core.log
        if self.transferee is not None:
            raise Unavailable(f"leadership is moving to node {self.transferee}")
        if log.config_index > log.commit:
            raise Unavailable(f"the membership change at {log.config_index} is not committed yet")
        if not self._has_committed_in_term:
            raise Unavailable("this leader has not committed anything in its term yet")
        membership = log.membership.changed(change)
        if change.kind is ChangeKind.PROMOTE:
            self._check_caught_up(change.node_id)
        for node in membership.members:
            if node not in self.progress:
                self._track(node)
        index = self._append(EntryKind.CONFIG, encode_membership(membership))
        self._advance_commit()  # a smaller cluster may need fewer acknowledgements
        return index

    def transfer_to(self, node_id: NodeId) -> None:
        core = self.core
        if node_id not in core.log.membership.voters:
            raise RequestError(ErrorCode.voter_not_found, f"node {node_id} is not a voter")
        if node_id == core.node_id:
            return
        self.transferee = node_id
        self._transfer_elapsed = 0
        self._finish_transfer()

    def _check_caught_up(self, node_id: NodeId) -> None:
        """A voter that lags far would stop commits as soon as another one fails."""
        peer, last_index = self.progress[node_id], self.core.log.last_index
        lag = last_index - peer.match
        if peer.state is not ProgressState.REPLICATE or lag > self.core.config.max_inflight:
            raise Unavailable(f"node {node_id} is at {peer.match} of {last_index} and still catching up")

    # -- answers

    def on_append_response(self, message: AppendResponse) -> None:
        peer = self.progress.get(message.sender)
        if peer is None:
            return
        if not message.rejected:
            self._accepted(message.sender, peer, message.index)
            return
        peer.is_active = True
        retry_after, _ = self.core.log.last_at_most(message.hint_index, message.hint_term)
        peer.rejected(message.index, retry_after)

    def on_snapshot_response(self, message: InstallSnapshotResponse) -> None:
        peer = self.progress.get(message.sender)
        if peer is not None:
            self._accepted(message.sender, peer, message.index)

    def on_heartbeat_response(self, message: HeartbeatResponse) -> None:
        peer = self.progress.get(message.sender)
        if peer is None:
            return
        peer.is_active = True
        peer.waits_for_answer = False
        peer.is_nudged = peer.match < self.core.log.last_index
        peer.read_round = max(peer.read_round, message.round)
        self._confirm_reads()

    def _accepted(self, node_id: NodeId, peer: Progress, index: int) -> None:
        if index > self.core.log.last_index:
            raise PeerError(
                f"node {node_id} acknowledges {index}, but this log ends at {self.core.log.last_index}"
            )
        peer.is_active = True
        if peer.accepted(index):
            self._finish_transfer()
            self._advance_commit()

    def persisted(self) -> None:
        core = self.core
        if self.progress[core.node_id].accepted(core.log.durable):
            self._advance_commit()

    # -- commit

    @property
    def _has_committed_in_term(self) -> bool:
        return self.core.log.term_at(self.core.log.commit) == self.core.term

    def _advance_commit(self) -> None:
        """§5.4.2: counting replicas commits entries of this term only, and with them all before."""
        core, log = self.core, self.core.log
        before = log.commit
        index = quorum.agreed_value(log.membership.voters, lambda node: self.progress[node].match)
        if index <= before or log.term_at(index) != core.term:
            return
        log.commit_to(index)
        done = sum(entry.cost_bytes for entry in log.between(before, index) if entry.term == core.term)
        self._uncommitted_bytes -= done
        if before < log.config_index <= index:
            self._finish_config_change()

    def _finish_config_change(self) -> None:
        """Let those go that are no members any more, this node perhaps among them."""
        core, members = self.core, self.core.log.membership.members
        self.flush()  # so that they, too, hear that they are out
        self.progress = {node: peer for node, peer in self.progress.items() if node in members}
        if core.node_id not in core.log.membership.voters:
            heir = max(core.log.membership.voters, key=lambda node: self.progress[node].match)
            core.send(TimeoutNow(sender=core.node_id, to=heir, term=core.term))
            core.become_follower(core.term, None)

    def _finish_transfer(self) -> None:
        core, target = self.core, self.transferee
        if target is not None and self.progress[target].match == core.log.last_index:
            core.send(TimeoutNow(sender=core.node_id, to=target, term=core.term))

    def _confirm_reads(self) -> None:
        rounds = {node: peer.read_round for node, peer in self.progress.items()}
        rounds[self.core.node_id] = self.reads.round
        answered = quorum.agreed_value(self.core.log.membership.voters, rounds.__getitem__)
        self.core.read_results.extend(self.reads.confirm(answered))

    # -- sending

    def flush(self) -> None:
        log = self.core.log
        if self._has_committed_in_term and self.reads.start_round(log.commit):
            self._heartbeat_due = True
            self._confirm_reads()  # a lone voter needs no one's answer
        for node_id, peer in self.progress.items():
            if node_id != self.core.node_id:
                if self._heartbeat_due:
                    self._send_heartbeat(node_id, peer)
                self._replicate(node_id, peer)
        if self._heartbeat_due:
            self._heartbeat_due = False
            self._heartbeat_elapsed = 0

    def _replicate(self, node_id: NodeId, peer: Progress) -> None:
        log, config = self.core.log, self.core.config
        while peer.next <= log.last_index and peer.may_send:
            if peer.next <= log.base.index:
                self._send_snapshot(node_id, peer)
                return
            self._send_append(node_id, peer, log.batch(peer.next - 1, config.max_append_bytes))
        has_news = peer.commit_sent < log.commit and peer.state is ProgressState.REPLICATE and peer.may_send
        if has_news or (peer.is_nudged and peer.state is not ProgressState.SNAPSHOT):
            self._send_append(node_id, peer, ())

    def _send_append(self, node_id: NodeId, peer: Progress, entries: tuple[Entry, ...]) -> None:
        core, log, prev_index = self.core, self.core.log, peer.next - 1
        prev_term = log.term_at(prev_index)
        if prev_term is None:  # compacted since it was sent; ask by probing
            peer.become_probe()
            return
        core.send(
            AppendEntries(
                sender=core.node_id,
                to=node_id,
                term=core.term,
                prev_index=prev_index,
                prev_term=prev_term,
                commit=log.commit,
                entries=entries,
            )
        )
        size_bytes = sum(entry.cost_bytes for entry in entries)
        peer.sent(prev_index + len(entries), size_bytes, log.commit)

    def _send_snapshot(self, node_id: NodeId, peer: Progress) -> None:
        """Only to a follower that answers; the data is the driver's to fill in."""
        core, base = self.core, self.core.log.base
        if peer.is_active:
            core.send(InstallSnapshot(sender=core.node_id, to=node_id, term=core.term, snapshot=base))
            peer.become_snapshot(base.index)

    def _send_heartbeat(self, node_id: NodeId, peer: Progress) -> None:
        core = self.core
        commit = min(peer.match, core.log.commit)
        core.send(
            Heartbeat(sender=core.node_id, to=node_id, term=core.term, commit=commit, round=self.reads.round)
        )

    def _append(self, kind: EntryKind, data: bytes) -> int:
        log = self.core.log
        entry = Entry(self.core.term, log.last_index + 1, kind, data)
        log.append(entry)
        self._uncommitted_bytes += entry.cost_bytes
        return entry.index

    def _track(self, node_id: NodeId) -> None:
        config = self.core.config
        window = Window(config.max_inflight, config.max_inflight_bytes)
        self.progress[node_id] = Progress(self.core.log.last_index + 1, window)
