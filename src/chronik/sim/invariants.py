"""Invariants of a simulated cluster, checked after every turn of a node. Each keeps what it compares."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar
from zlib import crc32

from chronik.groups.coordinator import OFFSETS_TOPIC
from chronik.model import TopicPartition
from chronik.node import Node
from chronik.raft import RaftCore
from chronik.replication.partition import Partition
from chronik.sim.blackouts import SLACK_SECONDS, has_trouble
from chronik.sim.world import SimNode
from chronik.storage.log import PartitionLog
from chronik.storage.log_parts import AppendSink

T = TypeVar("T")


class ReplicaInvariant(Protocol):
    def check(self, node: SimNode, changed: Sequence[Partition]) -> str | None:
        """Called after a node's turn that changed these replicas. What is wrong, or None."""


class NodeInvariant(Protocol):
    def check_node(self, node: SimNode) -> str | None:
        """Called after a node's turn that changed its Raft state or metadata. What is wrong, or None."""


class Changes:
    """Finds what a turn of a node has changed, so that only this is checked.

    It compares everything that invariants read: one that reads more has to add it here. Replicas and logs
    note when an attribute is set, and only those are compared.
    """

    def __init__(self) -> None:
        self._touched: dict[Partition | PartitionLog, None] = {}
        self._watched_partition = _telling(Partition, self._touched)
        self._watched_log = _telling(PartitionLog, self._touched)
        self._owners: dict[Partition | PartitionLog, Partition] = {}
        self._nodes: dict[Node, _CheckedNode] = {}
        self._seen: dict[Partition, tuple[object, ...]] = {}
        self.is_node_changed = False
        """Whether the last call of `of` found a change in the node's Raft state or metadata."""

    def of(self, node: Node) -> list[Partition] | None:
        """The replicas that have changed, or None if nothing of the node has changed."""
        seen = self._nodes.get(node)
        if seen is None:
            seen = self._nodes[node] = _CheckedNode(node)
        replicas = seen.all_replicas()
        if replicas != seen.replicas:
            self._adopt(seen, replicas)
        changed = self._changed(node.settings.node_id) if self._touched else None
        raft, applied = seen.raft, seen.metadata.state.applied_index
        core = raft.core if raft.is_open else None
        if applied == seen.applied_index and (
            core is seen.core is None
            or (
                core is not None
                and core.role is seen.role
                and core.term == seen.term
                and core.leader_id == seen.leader_id
                and core.log.commit == seen.commit
            )
        ):
            self.is_node_changed = False
            return changed
        self.is_node_changed = True
        seen.note(core, applied)
        return changed or []

    def forget(self) -> None:
        """Do not check the node that had this turn."""
        self._touched.clear()

    def _adopt(self, seen: _CheckedNode, replicas: list[Partition]) -> None:
        former, seen.replicas = seen.replicas, replicas
        for gone in [partition for partition in former if partition not in replicas]:
            del self._owners[gone], self._owners[gone.log]
        for partition in replicas:
            if partition not in self._owners:
                partition.__class__ = self._watched_partition
                partition.log.__class__ = self._watched_log
                self._owners[partition] = self._owners[partition.log] = partition
                self._touched[partition] = None

    def _changed(self, node_id: int) -> list[Partition] | None:
        owners, seen = self._owners, self._seen
        changed: list[Partition] = []
        for each in self._touched:
            partition = owners.get(each)
            if partition is None:
                continue  # it is no replica of this node any more
            assert partition.node_id == node_id, "a replica changed while another node had its turn"
            log = partition.log
            now = (
                partition.high_watermark,
                log.durable_end_offset,
                log.synced_end_offset,
                log.log_end_offset,
                log.log_start_offset,
                log.flushed_offset,
                partition.partition_epoch,  # leader, epoch and ISR change with it
                partition.pending_isr,
            )
            if seen.get(partition) != now:
                seen[partition] = now
                changed.append(partition)
        self._touched.clear()
        return changed or None


class _CheckedNode:
    """A node as it was when it was last checked."""

    __slots__ = (
        "all_replicas", "applied_index", "commit", "core", "leader_id", "metadata", "raft", "replicas",
        "role", "term",
    )  # fmt: skip

    def __init__(self, node: Node) -> None:
        parts = node.parts
        self.all_replicas = parts.replicas.all
        self.raft = parts.raft
        self.metadata = parts.metadata
        self.replicas: list[Partition] = []
        self.note(None, -1)

    def note(self, core: RaftCore | None, applied_index: int) -> None:
        """`core` is None while the metadata log is not open."""
        self.applied_index = applied_index
        self.core = core
        self.role = core.role if core is not None else None
        self.term = core.term if core is not None else -1
        self.leader_id = core.leader_id if core is not None else None
        self.commit = core.log.commit if core is not None else -1


def _telling(kind: type[T], touched: dict[Any, None]) -> type[T]:
    """A subclass whose instances add themselves to `touched` whenever an attribute is set."""
    put = object.__setattr__

    def set_and_tell(self: object, name: str, value: object) -> None:
        touched[self] = None
        put(self, name, value)

    return type(kind.__name__, (kind,), {"__slots__": (), "__setattr__": set_and_tell})


class MonotonicHighWatermark:
    """The high watermark of a running replica never goes back (S24), but where all replicas in sync of a
    relaxed topic were down at once."""

    def __init__(self, losable: Collection[TopicPartition]) -> None:
        self._seen: dict[Partition, int] = {}
        self._losable = losable

    def check(self, node: SimNode, changed: Sequence[Partition]) -> str | None:
        for partition in changed:
            watermark = partition.high_watermark
            seen = self._seen.get(partition, 0)
            if watermark < seen and partition.tp in self._losable:
                self._seen[partition] = watermark
            elif watermark < seen:
                return f"{partition.tp}: the high watermark went back from {seen} to {watermark}"
            if watermark > seen:
                self._seen[partition] = watermark
        return None


class OffsetsInOrder:
    """log start <= high watermark <= durable end <= log end, on every replica."""

    def check(self, node: SimNode, changed: Sequence[Partition]) -> str | None:
        for partition in changed:
            log = partition.log
            if not (
                log.log_start_offset
                <= partition.high_watermark
                <= log.durable_end_offset
                <= log.log_end_offset
            ):
                return (
                    f"{partition.tp}: start {log.log_start_offset}, watermark {partition.high_watermark}, "
                    f"durable {log.durable_end_offset}, end {log.log_end_offset}"
                )
        return None


class DurableIsOnDisk:
    """What a log reports as durable is not waiting in the WAL's queue."""

    def check(self, node: SimNode, changed: Sequence[Partition]) -> str | None:
        assert node.node is not None
        waiting = node.node.parts.store.wal.waiting if changed else ()
        for entry in waiting:
            if isinstance(entry.sink, AppendSink) and len(entry.payload):  # a cut has none
                log = entry.sink.log
                if (
                    isinstance(log, PartitionLog)
                    and entry.token <= log.durable_end_offset
                    and (
                        entry.token <= log.synced_end_offset or not log.relaxed.is_in_doubt(log)
                    )  # else it goes there again
                ):
                    return f"{log.tp}: durable to {log.durable_end_offset}, yet {entry.token} is not written"
        return None


class TailFollowsFiles:
    """The tail in memory has no holes, and goes on where the segment files end."""

    def check(self, node: SimNode, changed: Sequence[Partition]) -> str | None:
        for partition in changed:
            log = partition.log
            if log.flushed_offset > log.synced_end_offset:
                return f"{log.tp}: segments reach {log.flushed_offset}, the WAL {log.synced_end_offset}"
            if log.tail:
                if log.tail[-1].next_offset != log.log_end_offset:
                    return f"{log.tp}: the tail ends at {log.tail[-1].next_offset}, not {log.log_end_offset}"
            elif log.flushed_offset != log.log_end_offset:
                return (
                    f"{log.tp}: nothing in memory, {log.flushed_offset} in files, {log.log_end_offset} in all"
                )
        return None


class TiersMeet:
    """A leader's local log starts at or before the end of its remote log: nothing lies between them."""

    def check(self, node: SimNode, changed: Sequence[Partition]) -> str | None:
        for partition in changed:
            remote, local = partition.remote, partition.log.log_start_offset
            if partition.is_leader and remote is not None and remote.start_offset < remote.end_offset < local:
                return f"{partition.tp}: the remote log ends at {remote.end_offset}, local starts at {local}"
        return None


class DurableIsSynced:
    """In a log that is not relaxed, and in those of the node itself, what is durable is synced."""

    def check(self, node: SimNode, changed: Sequence[Partition]) -> str | None:
        for partition in changed:
            log = partition.log
            is_relaxed = partition.was_relaxed and not partition.is_internal
            if log.synced_end_offset > log.durable_end_offset or (
                log.synced_end_offset < log.durable_end_offset and not is_relaxed
            ):
                return f"{log.tp}: durable to {log.durable_end_offset}, synced to {log.synced_end_offset}"
        return None


class SyncedInTime:
    """What a relaxed topic acknowledged is synced within its window, on a disk that works."""

    def __init__(self) -> None:
        self._first: dict[PartitionLog, tuple[int, float]] = {}
        """Logs with something unsynced: where that ended when this was first seen, and when that was."""

    def check(self, node: SimNode, changed: Sequence[Partition]) -> str | None:
        now = node.world.loop.now
        for partition in changed:
            log, durability = partition.log, partition.config.durability
            if log.synced_end_offset == log.durable_end_offset or not durability.is_relaxed:
                self._first.pop(log, None)
                continue
            end, since = self._first.setdefault(log, (log.durable_end_offset, now))
            if log.synced_end_offset >= end:
                self._first[log] = (log.durable_end_offset, now)
            elif now - since > durability.sync_within_ms / 1000 + SLACK_SECONDS and not has_trouble(node):
                return f"{log.tp}: {end} is not synced {now - since:.2f} s after it was acknowledged"
        return None


class BoundedTasks:
    """The number of a node's tasks is bounded, so that leaks are found early."""

    TASKS_MAX = 400

    def check(self, node: SimNode, changed: Sequence[Partition]) -> str | None:
        return self.check_node(node)

    def check_node(self, node: SimNode) -> str | None:
        process = node.process
        if process is not None and len(process.tasks) > self.TASKS_MAX:
            live = len(process.live_tasks())
            if live > self.TASKS_MAX:
                return f"{live} tasks are alive"
        return None


class OneLeaderPerEpoch:
    """A leader epoch of a partition has at most one leader (S22), and that in one incarnation only: after a
    restart the node may have lost batches that were not synced, and would use their offsets again."""

    def __init__(self) -> None:
        self._leaders: dict[tuple[int, int, int], tuple[str, int]] = {}

    def check(self, node: SimNode, changed: Sequence[Partition]) -> str | None:
        for partition in changed:
            if partition.is_leader:
                key = (partition.topic_id.int, partition.tp.partition, partition.leader_epoch)
                name, life = self._leaders.setdefault(key, (node.name, node.start_count))
                if (name, life) != (node.name, node.start_count):
                    return f"{partition.tp}: {name} led epoch {partition.leader_epoch} in its life {life}"
        return None


class OneRaftLeaderPerTerm:
    """At most one node leads the quorum in a term (Raft, section 5.2)."""

    TERMS_MAX = 300

    def __init__(self) -> None:
        self._leaders: dict[int, str] = {}

    def check_node(self, node: SimNode) -> str | None:
        assert node.node is not None
        raft = node.node.parts.raft
        if not raft.is_leader:
            return None
        term = raft.core.term
        known = self._leaders.setdefault(term, node.name)
        if known != node.name:
            return f"{known} leads term {term} already"
        return f"term {term}: elections do not end" if term > self.TERMS_MAX else None


class CommittedMetadataStays:
    """An entry that one node has committed is the same on every node that commits that index, for ever
    (Raft, section 5.4)."""

    def __init__(self) -> None:
        self._committed: dict[int, tuple[int, int]] = {}
        self._checked: dict[tuple[str, int], int] = {}

    def check_node(self, node: SimNode) -> str | None:
        assert node.node is not None
        raft = node.node.parts.raft
        if raft.leader_id is None:
            return None
        log = raft.core.log
        key = (node.name, node.start_count)
        checked = max(self._checked.get(key, 0), log.base.index)
        if log.commit <= checked:
            return None
        self._checked[key] = log.commit
        for entry in log.between(checked, log.commit):
            seen = (entry.term, crc32(entry.data))
            if self._committed.setdefault(entry.index, seen) != seen:
                return f"entry {entry.index}, committed before, is another one in term {entry.term}"
        return None


class StateMachinesAgree:
    """Nodes that have applied the same entries have the same state."""

    def __init__(self) -> None:
        self._states: dict[int, int] = {}
        self._checked: dict[tuple[str, int], int] = {}

    def check_node(self, node: SimNode) -> str | None:
        assert node.node is not None
        metadata = node.node.parts.metadata
        index = metadata.state.applied_index
        key = (node.name, node.start_count)
        if self._checked.get(key) == index:
            return None
        self._checked[key] = index
        seen = crc32(metadata.snapshot())
        if self._states.setdefault(index, seen) != seen:
            return f"the metadata after entry {index} is not what another node has"
        return None


class ReplicasAgreeBelowWatermark:
    """Below the watermark, every replica has the same batches at the same offsets (S15)."""

    def __init__(self, losable: Collection[TopicPartition]) -> None:
        self._losable = losable
        self._batches: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        self._checked: dict[tuple[str, int, int, int], int] = {}

    def check(self, node: SimNode, changed: Sequence[Partition]) -> str | None:
        for partition in changed:
            if partition.tp in self._losable:
                continue  # offsets may be given to other records; at the end all replicas are compared
            place = (partition.topic_id.int, partition.tp.partition)
            key = (node.name, node.start_count, *place)
            checked = self._checked.get(key, 0)
            watermark = partition.high_watermark
            if watermark == checked:
                continue
            self._checked[key] = watermark
            for batch in reversed(partition.log.tail):
                if batch.next_offset > watermark:
                    continue
                if batch.base_offset < checked:
                    break
                seen = (batch.next_offset, batch.header.leader_epoch, batch.header.crc)
                if self._batches.setdefault((*place, batch.base_offset), seen) != seen:
                    return f"{partition.tp} at {batch.base_offset}: not the batch that another replica has"
        return None


class InSyncReplicasHaveWhatIsCommitted:
    """Each member of the ISR, present or proposed, has on disk everything below its leader's watermark (S23).

    Looked at when the partition changes: between changes the watermark moves only where all of them are.
    """

    def __init__(self) -> None:
        self._seen: dict[Partition, tuple[object, ...]] = {}
        self._replicas: dict[tuple[int, int], dict[int, tuple[SimNode, Partition]]] = {}

    def check(self, node: SimNode, changed: Sequence[Partition]) -> str | None:
        for partition in changed:
            now = (partition.partition_epoch, partition.pending_isr)
            if self._seen.get(partition) == now:
                continue
            self._seen[partition] = now
            replicas = self._replicas.setdefault((partition.topic_id.int, partition.tp.partition), {})
            replicas[partition.node_id] = (node, partition)
            living = {name: one for name, (host, one) in replicas.items() if self._lives(host, one)}
            for leader in [one for one in living.values() if one.is_leader]:
                wrong = self._compare(leader, living)
                if wrong is not None:
                    return wrong
        return None

    def _lives(self, node: SimNode, partition: Partition) -> bool:
        if node.node is None or not node.is_alive:
            return False
        replicas = node.node.parts.replicas
        return replicas.find(partition.topic_id.bytes, partition.tp.partition) is partition

    def _compare(self, leader: Partition, replicas: Mapping[int, Partition]) -> str | None:
        for member in {*leader.isr, *(leader.pending_isr or ())}:
            other = replicas.get(member)
            if (
                other is not None
                and other.leader_epoch == leader.leader_epoch
                and other.partition_epoch <= leader.partition_epoch
                and other.log.durable_end_offset < leader.high_watermark
            ):
                return (
                    f"{leader.tp}: node {member} is in sync and has {other.log.durable_end_offset} on disk, "
                    f"node {leader.node_id} holds {leader.high_watermark} to be committed"
                )
        return None


class OneOwnerPerPartition:
    """At most one member of a group holds a partition, also while it has yet to give it up."""

    def check(self, node: SimNode, changed: Sequence[Partition]) -> str | None:
        for partition in changed:
            if partition.tp.topic == OFFSETS_TOPIC:
                return self._look_at_groups(node)
        return None

    def _look_at_groups(self, node: SimNode) -> str | None:
        assert node.node is not None
        for group in node.node.parts.coordinators.groups.consumer_groups():
            owners: dict[object, str] = {}
            for member in group.members.values():
                for held in member.assigned | member.revoking:
                    known = owners.setdefault(held, member.member_id)
                    if known != member.member_id:
                        return f"group {group.group_id}: {known} and {member.member_id} both hold {held}"
        return None


def of_replicas(losable: Collection[TopicPartition] = ()) -> tuple[ReplicaInvariant, ...]:
    """`losable` are partitions of relaxed topics that may have lost records."""
    return (
        MonotonicHighWatermark(losable),
        OffsetsInOrder(),
        DurableIsOnDisk(),
        TailFollowsFiles(),
        TiersMeet(),
        DurableIsSynced(),
        SyncedInTime(),
        BoundedTasks(),
        OneLeaderPerEpoch(),
        ReplicasAgreeBelowWatermark(losable),
        InSyncReplicasHaveWhatIsCommitted(),
        OneOwnerPerPartition(),
    )


def of_nodes() -> tuple[NodeInvariant, ...]:
    return (BoundedTasks(), OneRaftLeaderPerTerm(), CommittedMetadataStays(), StateMachinesAgree())
