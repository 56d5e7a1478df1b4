"""What the metadata log does, in words that an operator can search for.

All of it is at DEBUG, since a busy cluster writes many entries: `CHRONIK_LOG=chronik.metadata=debug`, or
POST /admin/log while a node runs. Nothing is decoded or formatted unless somebody wants to read it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from chronik.metadata.commands import (
    Batch,
    ChangePartition,
    Command,
    CreateTopic,
    InitCluster,
    Reassign,
    SetConfigs,
    SetLevel,
    SetRemoteLog,
    decode_entry,
)
from chronik.metadata.events import Event, LeaderChanged, PartitionAssigned
from chronik.metadata.state import ClusterState
from chronik.model import METADATA_TOPIC, NodeId, TooNew, TopicPartition

__all__ = ["describe", "tell_applied", "tell_event", "tell_replicated", "tell_written"]

log = logging.getLogger(__name__)

PARTS_MAX: Final = 5
"""Commands of a batch that are named."""


def describe(command: Command) -> str:
    """`CreateTopic('orders')`."""
    kind = type(command).__name__
    match command:
        case Batch():
            named = ", ".join(map(describe, command.commands[:PARTS_MAX]))
            more = len(command.commands) - PARTS_MAX
            return named + (f" and {more} more" if more > 0 else "")
        case CreateTopic() | SetConfigs():
            return f"{kind}({command.name!r})"
        case ChangePartition() | Reassign() | SetRemoteLog():
            return f"{kind}({command.topic_id}, {command.partition})"
        case InitCluster():
            return f"{kind}({command.cluster_id!r})"
        case SetLevel():
            return f"{kind}({command.level})"
        case _:
            about = getattr(command, "topic_id", getattr(command, "broker_id", ""))
            return f"{kind}({about})"


def _describe_entry(data: bytes | memoryview) -> str:
    try:
        return describe(decode_entry(data).command)
    except TooNew as error:
        return f"an entry that this version does not know ({error})"


def tell_written(entries: Iterable[tuple[int, bytes | memoryview]]) -> None:
    """Index and content of entries that are durable on the leader."""
    if log.isEnabledFor(logging.DEBUG):
        for index, data in entries:
            log.debug("Wrote %s to metadata WAL at offset %d", _describe_entry(data), index)


def tell_replicated(entries: Iterable[tuple[int, bytes | memoryview]]) -> None:
    """A majority of the cluster has these entries of the leader."""
    if log.isEnabledFor(logging.DEBUG):
        for index, data in entries:
            log.debug("Replicated %s-0 offset %d (%d bytes)", METADATA_TOPIC, index, len(data))


def tell_applied(entries: Iterable[tuple[int, bytes | memoryview]]) -> None:
    """A follower applied these entries."""
    if log.isEnabledFor(logging.DEBUG):
        for _, data in entries:
            log.debug("Follower applied %s", _describe_entry(data))


def tell_event(state: Callable[[], ClusterState], event: Event) -> None:
    """What the state's changes mean for single partitions. Listens on the bus of every node."""
    if not log.isEnabledFor(logging.DEBUG):
        return
    if isinstance(event, PartitionAssigned):
        before = "new" if event.previous is None else f"was: {list(event.previous)}"
        log.debug("AssignPartition %s: %s (%s)", event.tp, list(event.replicas), before)
        topic = state().topics.get(event.tp.topic)
        if event.previous is None and topic is not None:  # its first leader comes with it
            one = topic.partitions[event.tp.partition]
            _tell_leader(event.tp, one.leader, one.leader_epoch)
    elif isinstance(event, LeaderChanged):
        _tell_leader(event.tp, event.leader, event.leader_epoch)


def _tell_leader(tp: TopicPartition, leader: NodeId, epoch: int) -> None:
    log.debug("SetPartitionLeader %s: node %d, epoch %d", tp, leader, epoch)
