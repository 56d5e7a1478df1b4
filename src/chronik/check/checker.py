"""Finds the anomalies of a history. Pure; time and memory grow with the number of records.

| anomaly | what was seen |
|---|---|
| lost write | an acknowledged record is not in the log (acks=all, or the acks that the caller vouches for) |
| lost read | a record that some consumer had been given is not in the log any more |
| lost head | the log begins behind every point to which anybody trimmed it |
| wrong offset | a record is acknowledged for good at an offset that holds another one |
| diverged | two reads of one offset gave different records |
| duplicate | a record of an idempotent producer is in the log twice |
| reorder | a record sent after another was acknowledged for good comes before it in the log |
| skip | a consumer moved past a record that was there, without getting it |
| nonmonotonic poll | a consumer got an offset again, or went back, without asking for it |
| aborted read | a read_committed consumer got a record of an aborted transaction |
| torn transaction | a committed transaction's record is missing while another of it is there |
| G1a | a record was read whose send certainly failed |
| invented | a record was read that nobody sent |
| commit went back | a group read an older offset than one committed before |
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from chronik.check.history import Commit, Event, Poll, Send, Trim, Txn
from chronik.model import TopicPartition

_SHOWN_PER_KIND: Final = 10
ACKS_ALL: Final = -1

_MISSING: Final = frozenset({"lost write", "lost read", "skip"})
"""What a disk that lost bits, and said so, may do to a partition. Nothing wrong, doubled or out of order."""

_MOVED: Final = frozenset({"skip", "nonmonotonic poll"})
"""What readers see when a log ends earlier than before: they go back, or pass what is written there later."""
_NO_LOSSES: Final[Mapping[TopicPartition, Sequence[tuple[float, float]]]] = MappingProxyType({})

Offsets: TypeAlias = dict[int, str]


@dataclass(frozen=True, slots=True)
class Anomaly:
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass(slots=True)
class Verdict:
    anomalies: list[Anomaly] = field(default_factory=list)
    """At most a few of each kind; `counts` has all."""
    counts: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    """How many sends were ok, failed, unknown: a history without any ok shows nothing."""
    records_read: int = 0
    excused: frozenset[str] = frozenset()
    """Kinds that do not count for what is looked at now."""

    @property
    def is_clean(self) -> bool:
        return not self.counts

    def add(self, kind: str, what: str) -> None:
        if kind in self.excused:
            return
        self.counts[kind] += 1
        if self.counts[kind] <= _SHOWN_PER_KIND:
            self.anomalies.append(Anomaly(kind, what))


class _Partition:
    """Everything a history says about one partition."""

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.sends: dict[str, Send] = {}
        self.polls: list[Poll] = []
        self.trims: list[Trim] = []
        self.seen: Offsets = {}
        self.final: Offsets = {}
        self.log_start = 0
        self.end = -1
        """The offset after the last one of the final look; -1 when there was none."""

    @property
    def has_final(self) -> bool:
        return self.end >= 0


def check(
    events: Iterable[Event],
    *,
    durable_acks: Collection[int] = (ACKS_ALL,),
    damaged: Collection[TopicPartition] = (),
    losable: Mapping[TopicPartition, Sequence[tuple[float, float]]] = _NO_LOSSES,
) -> Verdict:
    """`durable_acks`: with which acks an acknowledged record may never be lost.

    `damaged` names partitions whose records may be missing, since a node said that its disk lost some.
    `losable` says from when to when records were sent that a power cut may have taken from a relaxed topic.
    """
    verdict = Verdict()
    partitions: dict[TopicPartition, _Partition] = {}
    txns: dict[str, Txn] = {}
    commits: list[Commit] = []
    for event in events:
        if isinstance(event, Txn):
            txns[event.txn] = event
            continue
        if isinstance(event, Commit):
            commits.append(event)
            continue
        tp = TopicPartition(event.topic, event.partition)
        partition = partitions.get(tp)
        if partition is None:
            partition = partitions[tp] = _Partition(tp)
        match event:
            case Send():
                partition.sends[event.value] = event
                verdict.outcomes[event.outcome] += 1
            case Poll():
                partition.polls.append(event)
                verdict.records_read += len(event.records)
            case Trim():
                partition.trims.append(event)
    sent = {value: send for partition in partitions.values() for value, send in partition.sends.items()}
    for partition in partitions.values():
        verdict.excused = _MISSING if partition.tp in damaged else frozenset()
        if partition.tp in losable:
            verdict.excused |= _MOVED
            _leave_out_lost(partition, sent, losable[partition.tp])
        _gather(partition, verdict)
        _check_values(partition, sent, verdict)
        settled = [
            send
            for send in partition.sends.values()
            if send.outcome == "ok" and send.offset >= 0 and send.acks in durable_acks
        ]
        _check_offsets(partition, settled, verdict)
        _check_order(partition, settled, verdict)
        _check_consumers(partition, sent, txns, verdict)
        if partition.has_final:
            _check_loss(partition, txns, durable_acks, verdict)
    verdict.excused = frozenset()
    whole = {tp: partition for tp, partition in partitions.items() if tp not in damaged}
    there = {value: send for value, send in sent.items() if _is_known(partitions, send)}
    _check_transactions(whole, there, txns, verdict)
    _check_commits(commits, verdict)
    return verdict


def _leave_out_lost(
    partition: _Partition, sent: dict[str, Send], intervals: Sequence[tuple[float, float]]
) -> None:
    """Forget what may be missing, and is: that it was acknowledged, and that somebody read it."""
    final = {offset: value for poll in partition.polls if poll.final for offset, value in poll.records}

    def is_lost(offset: int, value: str) -> bool:
        send = sent.get(value)
        if send is None or send.outcome == "fail" or final.get(offset) == value:
            return False
        end = send.end if send.outcome == "ok" else inf
        return any(first <= end and send.start <= last for first, last in intervals)

    for value, send in list(partition.sends.items()):
        if is_lost(send.offset, value) and (send.offset >= 0 or value not in final.values()):
            del partition.sends[value]
    for place, poll in enumerate(partition.polls):
        kept = [(offset, value) for offset, value in poll.records if not is_lost(offset, value)]
        partition.polls[place] = msgspec.structs.replace(poll, records=kept)


def _gather(partition: _Partition, verdict: Verdict) -> None:
    for poll in partition.polls:
        for offset, value in poll.records:
            known = partition.seen.setdefault(offset, value)
            if known != value:
                verdict.add("diverged", f"{partition.tp} at {offset}: {known!r} and {value!r}")
        if poll.final:
            partition.final.update(poll.records)
            partition.log_start = max(partition.log_start, poll.log_start)
            partition.end = max(partition.end, poll.next_position)


def _check_values(partition: _Partition, sent: dict[str, Send], verdict: Verdict) -> None:
    tp = partition.tp
    for offset, value in partition.seen.items():
        send = sent.get(value)
        if send is None or (send.topic, send.partition) != tp:
            verdict.add("invented", f"{tp} at {offset}: {value!r} was never sent there")
        elif send.outcome == "fail":
            verdict.add("G1a", f"{tp} at {offset}: {value!r}, whose send by {send.process} failed")
    places: dict[str, int] = {}
    for offset, value in sorted(partition.seen.items()):
        first = places.setdefault(value, offset)
        send = sent.get(value)
        if first != offset and send is not None and send.idempotent:
            verdict.add("duplicate", f"{tp}: {value!r} at {first} and again at {offset}")


def _check_offsets(partition: _Partition, done: list[Send], verdict: Verdict) -> None:
    for send in done:
        there = partition.seen.get(send.offset)
        if there is not None and there != send.value:
            verdict.add(
                "wrong offset",
                f"{partition.tp}: {send.value!r} acknowledged at {send.offset}, which holds {there!r}",
            )


def _check_order(partition: _Partition, done: list[Send], verdict: Verdict) -> None:
    """A send that began after another was acknowledged must get a higher offset."""
    by_end = sorted(done, key=lambda send: send.end)
    ends = [send.end for send in by_end]
    highest: list[Send] = []
    for send in by_end:
        highest.append(send if not highest or send.offset > highest[-1].offset else highest[-1])
    for send in done:
        before = bisect_left(ends, send.start)
        if before and highest[before - 1].offset >= send.offset:
            other = highest[before - 1]
            verdict.add(
                "reorder",
                f"{partition.tp}: {send.value!r} at {send.offset} was sent after {other.value!r} "
                f"was acknowledged at {other.offset}",
            )


def _is_visible(value: str, sent: dict[str, Send], txns: dict[str, Txn], *, read_committed: bool) -> bool:
    """Whether a consumer that passed this record had to get it; for unknown transactions: no."""
    send = sent.get(value)
    if not read_committed or send is None or send.txn is None:
        return True
    txn = txns.get(send.txn)
    return txn is not None and txn.outcome == "ok" and txn.committed


def _check_consumers(
    partition: _Partition, sent: dict[str, Send], txns: dict[str, Txn], verdict: Verdict
) -> None:
    tp = partition.tp
    known = sorted(partition.seen)
    by_consumer: dict[str, list[Poll]] = defaultdict(list)
    for poll in partition.polls:
        by_consumer[poll.process].append(poll)
    for process, polls in by_consumer.items():
        expected: int | None = None
        for poll in polls:
            if expected is not None and not poll.sought and poll.position < expected:
                verdict.add(
                    "nonmonotonic poll", f"{process} on {tp}: from {expected} back to {poll.position}"
                )
            if expected is not None and not poll.sought and poll.position > expected:
                _report_skips(partition, known, expected, poll.position, {}, poll, sent, txns, verdict)
            _check_inside(tp, poll, verdict)
            records = dict(poll.records)
            _report_skips(
                partition, known, poll.position, poll.next_position, records, poll, sent, txns, verdict
            )
            if poll.read_committed:
                _check_aborted(tp, poll, sent, txns, verdict)
            expected = poll.next_position


def _check_inside(tp: TopicPartition, poll: Poll, verdict: Verdict) -> None:
    last = poll.position - 1
    for offset, _ in poll.records:
        if offset <= last:
            verdict.add("nonmonotonic poll", f"{poll.process} on {tp}: got {offset} after {last}")
        last = offset
    if last >= poll.next_position:
        verdict.add("nonmonotonic poll", f"{poll.process} on {tp}: will get {poll.next_position} again")


def _report_skips(
    partition: _Partition,
    known: list[int],
    start: int,
    end: int,
    records: Offsets,
    poll: Poll,
    sent: dict[str, Send],
    txns: dict[str, Txn],
    verdict: Verdict,
) -> None:
    trimmed = max((trim.offset for trim in partition.trims if trim.start <= poll.end), default=0)
    for place in range(bisect_left(known, start), bisect_left(known, end)):
        offset = known[place]
        value = partition.seen[offset]
        if offset in records or offset < trimmed:
            continue
        if _is_visible(value, sent, txns, read_committed=poll.read_committed):
            verdict.add("skip", f"{poll.process} on {partition.tp}: passed {value!r} at {offset}")


def _check_aborted(
    tp: TopicPartition, poll: Poll, sent: dict[str, Send], txns: dict[str, Txn], verdict: Verdict
) -> None:
    for offset, value in poll.records:
        send = sent.get(value)
        if send is None or send.txn is None:
            continue
        txn = txns.get(send.txn)
        if txn is not None and txn.outcome == "ok" and not txn.committed:
            verdict.add("aborted read", f"{poll.process} on {tp}: {value!r} at {offset} of {send.txn}")


def _check_loss(
    partition: _Partition, txns: dict[str, Txn], durable_acks: Collection[int], verdict: Verdict
) -> None:
    tp, start = partition.tp, partition.log_start
    trimmed = max((trim.offset for trim in partition.trims if trim.outcome != "fail"), default=0)
    if start > trimmed:
        verdict.add("lost head", f"{tp} begins at {start}; it was trimmed to {trimmed} at most")
    present = set(partition.final.values())
    for send in partition.sends.values():
        if send.outcome != "ok" or send.acks not in durable_acks or send.value in present:
            continue
        if 0 <= send.offset < start or (send.offset < 0 and start > 0):
            continue
        if send.txn is not None and not _is_committed(send.txn, txns):
            continue
        verdict.add(
            "lost write", f"{tp}: {send.value!r} of {send.process}, acknowledged at {send.offset}, is gone"
        )
    for poll in partition.polls:
        if poll.final:
            continue
        for offset, value in poll.records:
            if offset >= start and partition.final.get(offset) != value:
                verdict.add("lost read", f"{tp}: {value!r} at {offset}, read by {poll.process}, is gone")


def _is_committed(name: str, txns: dict[str, Txn]) -> bool:
    txn = txns.get(name)
    return txn is not None and txn.outcome == "ok" and txn.committed


def _check_transactions(
    partitions: dict[TopicPartition, _Partition],
    sent: dict[str, Send],
    txns: dict[str, Txn],
    verdict: Verdict,
) -> None:
    """A transaction of unknown outcome is all or nothing, too, for those who read only what is committed."""
    visible: set[str] = set()
    for partition in partitions.values():
        for poll in partition.polls:
            if poll.final and poll.read_committed:
                visible.update(value for _, value in poll.records)
    if not visible:
        return
    parts: dict[str, list[Send]] = defaultdict(list)
    for send in sent.values():
        if send.txn is not None and send.outcome == "ok" and (send.topic, send.partition) in partitions:
            parts[send.txn].append(send)
    for name, sends in parts.items():
        readable = [
            send
            for send in sends
            if (own := partitions[TopicPartition(send.topic, send.partition)]).has_final
            and send.offset >= own.log_start
        ]
        found = [send for send in readable if send.value in visible]
        if found and len(found) < len(readable):
            missing = next(send for send in readable if send.value not in visible)
            verdict.add("torn transaction", f"{name}: {found[0].value!r} is there, {missing.value!r} is not")


def _is_known(partitions: dict[TopicPartition, _Partition], send: Send) -> bool:
    return send.value in partitions[TopicPartition(send.topic, send.partition)].sends


def _check_commits(commits: list[Commit], verdict: Verdict) -> None:
    by_key: dict[tuple[str, str, int], list[Commit]] = defaultdict(list)
    for commit in commits:
        by_key[commit.group, commit.topic, commit.partition].append(commit)
    for (group, topic, partition), events in by_key.items():
        writes = [event for event in events if not event.is_read]
        for read in (event for event in events if event.is_read and event.outcome == "ok"):
            before = [write for write in writes if write.outcome == "ok" and write.end <= read.start]
            if not before:
                continue
            newest = max(before, key=lambda write: write.start)
            # Whatever overlapped the newest finished write, or came after it, may be what was read.
            allowed = {
                write.offset for write in writes if write.end >= newest.start and write.start <= read.end
            }
            if read.offset not in allowed:
                verdict.add(
                    "commit went back",
                    f"group {group}, {topic}-{partition}: {read.offset} after {newest.offset} was committed",
                )
