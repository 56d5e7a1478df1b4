"""The log as a node sees it: entries after a base, and the marks that move along it.

    applied <= handed to apply <= commit <= last      durable <= handed to persist <= last
    base <= applied, save while an installed snapshot is on its way to the state machine

Entries are applied only when committed *and* durable here, so that no snapshot of the state
machine can run ahead of the node's own log. Membership changes count from the moment they are in
the log, committed or not (thesis §4.1), and are undone when a truncation removes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from chronik.model import PeerError, invariant
from chronik.raft.durability import LogDurability
from chronik.raft.entries import Entry, EntryKind, Membership, Snapshot

__all__ = ["RaftLog", "decode_membership", "encode_membership"]

_membership_decoder = msgspec.msgpack.Decoder(Membership)


def encode_membership(membership: Membership) -> bytes:
    return msgspec.msgpack.encode(membership)


def decode_membership(entry: Entry) -> Membership:
    try:
        return _membership_decoder.decode(entry.data)
    except ValueError as error:
        raise PeerError(f"entry {entry.index} is no membership: {error}") from error


class RaftLog:
    def __init__(self, base: Snapshot, entries: Sequence[Entry], commit: int) -> None:
        kept = _entries_after(base, entries)
        self._entries: list[Entry] = list(kept)
        self.base = base
        """Entry that stands for everything up to `base.index`; moves by compaction and by installed
        snapshots."""
        self.snapshot: Snapshot | None = None
        """An installed snapshot that the driver was not yet handed."""
        self._configs: list[tuple[int, Membership]] = [(base.index, base.membership)]
        for entry in kept:
            self._note_config(entry)
        self.durability = LogDurability(self.last_index)
        if entries and not kept:
            self.durability.truncate_from = entries[0].index
        self.commit = max(commit, base.index)
        invariant(
            self.commit <= self.last_index,
            f"stored commit index {commit} lies beyond the log, which ends at {self.last_index}",
        )
        self.handed_to_apply = base.index
        self.applied = base.index

    # -- reading

    @property
    def last_index(self) -> int:
        return self._entries[-1].index if self._entries else self.base.index

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.base.term

    @property
    def durable(self) -> int:
        return self.durability.durable

    @property
    def is_handed_out(self) -> bool:
        """Whether the driver has been given everything there is to persist and to apply."""
        durability = self.durability
        return (
            self.snapshot is None
            and not durability.is_dirty(self.last_index)
            and (self.commit <= self.handed_to_apply or durability.durable <= self.handed_to_apply)
        )

    @property
    def membership(self) -> Membership:
        return self._configs[-1][1]

    @property
    def config_index(self) -> int:
        """Where the current membership entered the log; beyond `commit` while a change is under way."""
        return self._configs[-1][0]

    @property
    def committed_membership(self) -> Membership:
        return self.membership_at(self.commit)

    def membership_at(self, index: int) -> Membership:
        return next(m for at, m in reversed(self._configs) if at <= index)

    def term_at(self, index: int) -> int | None:
        """None for an index that was compacted away or does not exist yet."""
        if index == self.base.index:
            return self.base.term
        offset = index - self.base.index - 1
        return self._entries[offset].term if 0 <= offset < len(self._entries) else None

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """§5.4.1: may a candidate with such a log lead this node?"""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def between(self, after: int, upto: int) -> tuple[Entry, ...]:
        start = after - self.base.index
        invariant(start >= 0, f"entries after {after} were compacted away")
        return tuple(self._entries[start : upto - self.base.index])

    def batch(self, after: int, max_bytes: int) -> tuple[Entry, ...]:
        """Entries following `after` up to a size; at least one if there is one."""
        start = after - self.base.index
        invariant(start >= 0, f"entries after {after} were compacted away")
        end, size = start, 0
        while end < len(self._entries):
            size += self._entries[end].cost_bytes
            if end > start and size > max_bytes:
                break
            end += 1
        return tuple(self._entries[start:end])

    def last_at_most(self, index: int, term: int) -> tuple[int, int]:
        """The last entry at or below `index` whose term is not above `term` (conflict hint).

        Both sides use it to skip whole terms on which they cannot agree (§5.3).
        """
        at = min(index, self.last_index)
        while at > self.base.index and (self.term_at(at) or 0) > term:
            at -= 1
        return at, self.term_at(at) or 0

    # -- writing

    def append(self, entry: Entry) -> None:
        invariant(entry.index == self.last_index + 1, f"entry {entry.index} after {self.last_index}")
        invariant(entry.term >= self.last_term, f"entry {entry.index}: terms must not go back")
        self._note_config(entry)
        self._entries.append(entry)

    def merge(self, entries: Sequence[Entry]) -> None:
        """Take a leader's entries: skip what is here already, overwrite what conflicts (§5.3)."""
        for position, entry in enumerate(entries):
            if self.term_at(entry.index) != entry.term:
                if entry.index <= self.last_index:
                    self._truncate(entry.index)
                for fresh in entries[position:]:
                    self.append(fresh)
                return

    def commit_to(self, index: int) -> None:
        if index > self.commit:
            invariant(index <= self.last_index, f"commit {index} lies beyond the log's end {self.last_index}")
            self.commit = index

    def restore(self, snapshot: Snapshot) -> None:
        """Start over from a leader's snapshot."""
        invariant(snapshot.index > self.commit, "a snapshot must not take back what is committed")
        self.snapshot = snapshot
        self.base = _bare(snapshot)
        self._entries.clear()
        self._configs = [(snapshot.index, snapshot.membership)]
        self.durability.restart_at(snapshot.index)
        self.commit = self.handed_to_apply = snapshot.index

    def compact(self, index: int) -> None:
        """Forget entries up to `index`; the driver holds a durable snapshot that covers them."""
        if index <= self.base.index:
            return
        invariant(index <= self.applied, f"compaction at {index} beyond what is applied ({self.applied})")
        term = self.term_at(index)
        invariant(term is not None, f"compaction at {index}, which is not in the log")
        base = Snapshot(index, term or 0, self.membership_at(index))
        del self._entries[: index - self.base.index]
        self._configs = [(index, base.membership), *((at, m) for at, m in self._configs if at > index)]
        self.base = base

    def take_committed(self) -> tuple[Entry, ...]:
        upto = min(self.commit, self.durable)
        if upto <= self.handed_to_apply:
            return ()
        entries = self.between(self.handed_to_apply, upto)
        self.handed_to_apply = upto
        return entries

    def mark_applied(self, index: int) -> None:
        handed = self.handed_to_apply
        invariant(index <= handed, f"applied {index}, but only {handed} was handed out")
        self.applied = max(self.applied, index)

    def _truncate(self, from_index: int) -> None:
        invariant(from_index > self.commit, f"entry {from_index} is committed and cannot be overwritten")
        del self._entries[from_index - self.base.index - 1 :]
        while self._configs[-1][0] >= from_index:
            self._configs.pop()
        self.durability.truncate(from_index)

    def _note_config(self, entry: Entry) -> None:
        if entry.kind is EntryKind.CONFIG:
            self._configs.append((entry.index, decode_membership(entry)))


def _bare(snapshot: Snapshot) -> Snapshot:
    return Snapshot(snapshot.index, snapshot.term, snapshot.membership)


def _entries_after(base: Snapshot, entries: Sequence[Entry]) -> Sequence[Entry]:
    """The recovered entries that continue the snapshot.

    A crash may leave a new snapshot beside the log it was to replace. If that log knows the
    snapshot's last entry the rest of it is good; otherwise all of it is void.
    """
    for before, after in pairwise(entries):
        invariant(after.index == before.index + 1, f"the stored log has a gap after {before.index}")
        invariant(after.term >= before.term, f"the stored log goes back in term at {after.index}")
    if not entries:
        return ()
    first = entries[0].index
    invariant(first <= base.index + 1, f"the stored log starts at {first}, after a snapshot at {base.index}")
    if first == base.index + 1:
        return entries
    at_base = base.index - first
    if at_base < len(entries) and entries[at_base].term == base.term:
        return entries[at_base + 1 :]
    return ()
