"""The follower: takes what the leader sends, and acknowledges it when it is durable."""

from __future__ import annotations

from chronik.model import PeerError
from chronik.raft.entries import EntryKind
from chronik.raft.log import decode_membership
from chronik.raft.messages import (
    AppendEntries,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    InstallSnapshotResponse,
    TimeoutNow,
)
from chronik.raft.ready import RoleName
from chronik.raft.role import Role

__all__ = ["Follower"]


class Follower(Role):
    name = RoleName.FOLLOWER

    def tick(self) -> None:
        core = self.core
        core.election_elapsed += 1
        patience = 0 if core.leader_id is None else core.config.patience_ticks
        if core.election_elapsed >= core.election_timeout + patience and core.is_promotable:
            core.become_pre_candidate()

    def on_append(self, message: AppendEntries) -> None:
        _check_shape(message)
        core, log = self.core, self.core.log
        core.follow(message.sender)
        if message.prev_index < log.commit:
            # An old append. All that is committed here the leader has as well (§5.4).
            self._acknowledge(message.sender, log.commit)
            return
        if log.term_at(message.prev_index) != message.prev_term:
            self._reject(message)
            return
        log.merge(message.entries)
        last_new = message.prev_index + len(message.entries)
        log.commit_to(min(message.commit, last_new))
        self._acknowledge(message.sender, last_new)

    def on_heartbeat(self, message: Heartbeat) -> None:
        core = self.core
        if message.commit > core.log.last_index:
            raise PeerError(
                f"node {message.sender} says that {message.commit} is committed and was acknowledged here, "
                f"but this log ends at {core.log.last_index}: acknowledged entries are missing"
            )
        core.follow(message.sender)
        core.log.commit_to(message.commit)
        core.send(
            HeartbeatResponse(sender=core.node_id, to=message.sender, term=core.term, round=message.round)
        )

    def on_snapshot(self, message: InstallSnapshot) -> None:
        core, log, snapshot = self.core, self.core.log, message.snapshot
        if snapshot.term > message.term:
            raise PeerError(f"snapshot of term {snapshot.term} from a leader of term {message.term}")
        core.follow(message.sender)
        if snapshot.index > log.commit:
            if log.term_at(snapshot.index) == snapshot.term:
                log.commit_to(snapshot.index)
            else:
                log.restore(snapshot)
        core.promise(
            InstallSnapshotResponse(sender=core.node_id, to=message.sender, term=core.term, index=log.commit)
        )

    def on_timeout_now(self, message: TimeoutNow) -> None:
        if self.core.is_promotable:
            self.core.become_candidate(transfer=True)

    def _acknowledge(self, leader_id: int, index: int) -> None:
        core = self.core
        core.promise(AppendResponse(sender=core.node_id, to=leader_id, term=core.term, index=index))

    def _reject(self, message: AppendEntries) -> None:
        core = self.core
        hint_index, hint_term = core.log.last_at_most(message.prev_index, message.prev_term)
        core.send(
            AppendResponse(
                sender=core.node_id,
                to=message.sender,
                term=core.term,
                index=message.prev_index,
                rejected=True,
                hint_index=hint_index,
                hint_term=hint_term,
            )
        )


def _check_shape(message: AppendEntries) -> None:
    """Entries must continue `prev` without gaps, and no leader has entries of a later term."""
    term, index = message.prev_term, message.prev_index
    if term > message.term:
        raise PeerError(f"append of term {message.term} after an entry of term {term}")
    for entry in message.entries:
        index += 1
        if entry.index != index:
            raise PeerError(f"append after {message.prev_index} has entry {entry.index} in place of {index}")
        if not term <= entry.term <= message.term:
            raise PeerError(f"entry {index} of term {entry.term} between terms {term} and {message.term}")
        if entry.kind is EntryKind.CONFIG:
            decode_membership(entry)
        term = entry.term
