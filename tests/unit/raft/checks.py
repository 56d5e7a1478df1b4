"""What must hold at every step of every run (paper, figure 3), each as one small check."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from chronik.raft import Entry, EntryKind, Membership, Message, RoleName, SoftState, decode_membership
from chronik.raft.messages import VoteRequest, VoteResponse

if TYPE_CHECKING:
    from tests.unit.raft.cluster import Node


class Checks:
    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        self._entries: dict[tuple[int, int], tuple[int | None, bytes]] = {}
        self.applied: dict[int, Entry] = {}
        self._committed: dict[int, tuple[Entry, int]] = {}
        self._votes: dict[tuple[int, int], int] = {}
        self._terms: dict[int, int] = {}
        self._seen_last: dict[int, tuple[int, int]] = {}
        self._commits: dict[int, int] = {}
        self._configs: dict[int, Membership] = {}

    def soft_state(self, node: Node, state: SoftState) -> None:
        if state.role is RoleName.LEADER and self.leaders.get(state.term) != node.id:
            self._election_safety(node, state.term)
            self._leader_completeness(node, state.term)

    def _election_safety(self, node: Node, term: int) -> None:
        """At most one leader per term."""
        assert self.leaders.setdefault(term, node.id) == node.id, f"two leaders in term {term}"

    def _leader_completeness(self, node: Node, term: int) -> None:
        """A leader has every entry that an earlier term's leader committed."""
        log = node.core.log
        for index, (entry, by_term) in self._committed.items():
            if by_term < term and index > log.base.index:
                assert log.term_at(index) == entry.term, f"leader {node.id} of {term} lacks entry {index}"

    def node(self, node: Node) -> None:
        """After every drained step."""
        core, log = node.core, node.core.log
        assert log.commit <= log.last_index
        assert log.durable <= log.last_index
        assert core.term >= self._terms.get(node.id, 0), "the term went back"
        self._terms[node.id] = core.term
        self._log_matching(node)
        if core.is_leader:
            self._remember_commits(node)

    def _log_matching(self, node: Node) -> None:
        """Same index and term: same entry, and the same entry before it, hence the same log."""
        log = node.core.log
        last = (log.last_index, log.last_term)
        if self._seen_last.get(node.id) == last:
            return
        self._seen_last[node.id] = last
        before: int | None = log.base.term
        for entry in log.between(log.base.index, log.last_index):
            facts = (before, entry.data)
            assert self._entries.setdefault((entry.index, entry.term), facts) == facts, "logs do not match"
            before = entry.term

    def _remember_commits(self, node: Node) -> None:
        core, log = node.core, node.core.log
        start = max(self._commits.get(core.term, 0), log.base.index)
        for entry in log.between(start, log.commit):
            known, _ = self._committed.setdefault(entry.index, (entry, core.term))
            assert known == entry, f"entry {entry.index} was committed twice, and differently"
            if entry.kind is EntryKind.CONFIG:
                self._configs[entry.index] = decode_membership(entry)
        if log.commit > start:
            self._commits[core.term] = log.commit
            self._single_steps()

    def _single_steps(self) -> None:
        """Committed memberships differ from the one before by one voter at most."""
        configs = [self._configs[index] for index in sorted(self._configs)]
        for a, b in pairwise(configs):
            assert len(set(a.voters) ^ set(b.voters)) <= 1

    def apply(self, node: Node, entry: Entry) -> None:
        """State machine safety; and each entry once, in order, from durable storage."""
        assert entry.index == len(node.applied) + 1, "applied out of order"
        assert self.applied.setdefault(entry.index, entry) == entry, f"two truths at {entry.index}"
        stored = {e.index: e for e in node.disk.entries[-64:]}
        assert stored.get(entry.index, entry) == entry

    def sent(self, node: Node, message: Message) -> None:
        """One vote per node and term, and only from a disk that knows of it."""
        if isinstance(message, VoteRequest):
            self._voted(node, message.term, node.id)
        elif isinstance(message, VoteResponse) and message.granted:
            self._voted(node, message.term, message.to)

    def _voted(self, node: Node, term: int, candidate: int) -> None:
        assert self._votes.setdefault((node.id, term), candidate) == candidate, "two votes in one term"
        hard_state = node.disk.hard_state
        assert hard_state is not None
        assert hard_state.term >= term
        assert hard_state.term > term or hard_state.vote == candidate, "voted before it was durable"

    def restarted(self, node: Node) -> None:
        # Terms that were never durable promised nothing and may be forgotten.
        self._terms[node.id] = node.core.term
        self._seen_last.pop(node.id, None)
