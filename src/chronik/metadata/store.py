"""The one way to change the cluster's state, whatever carries the log underneath."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from chronik.metadata.budget import AdmittedCommand, MetadataBudget
from chronik.metadata.bus import EventBus
from chronik.metadata.commands import (
    Batch,
    Command,
    CommandEntry,
    SingleCommand,
    decode_entry,
    encode_entry,
    name_of,
)
from chronik.metadata.events import Event, QuorumChanged, Resync, TopicCreated, TopicDeleted
from chronik.metadata.levels import COMMAND_LEVELS, LEVEL_FIRST
from chronik.metadata.snapshot import decode_snapshot, encode_snapshot
from chronik.metadata.state import ClusterState
from chronik.metadata.values import Outcome, Refused
from chronik.metrics import WriteStages, clock
from chronik.model import ErrorCode, RequestError, Unavailable

__all__ = ["CommittedCommand", "MetadataListener", "MetadataLog", "MetadataStore"]

log = logging.getLogger(__name__)

K = TypeVar("K")

SUBMIT_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class CommittedCommand:
    index: int
    data: bytes | memoryview


class MetadataListener(Protocol):
    """What a metadata log calls, in log order and from the event loop."""

    def on_committed(self, entries: Sequence[CommittedCommand]) -> None: ...

    def on_applied(self, index: int) -> None:
        """Everything up to `index` was handed over, entries that carry no command included."""

    def on_snapshot(self, data: bytes | memoryview) -> None: ...

    def on_quorum_changed(self) -> None:
        """Other nodes vote or learn now."""

    def on_lost(self, why: str) -> None:
        """Entries in flight may never be committed: fail the submissions that wait for them."""

    def snapshot(self) -> bytes:
        """The state that everything handed over so far led to; `on_snapshot` takes it."""
        ...


class MetadataLog(Protocol):
    """An agreed sequence of entries: the WAL of a single node, or Raft over several."""

    def subscribe(self, listener: MetadataListener) -> None:
        """Have what is committed handed to this listener, which is the only one."""

    async def append(self, data: bytes) -> int:
        """Propose an entry; returns its index once it is in the leader's log.

        Being in the log is not being committed: what counts is the listener's call. Raises Unavailable if
        nobody can take the entry now.
        """
        ...


class MetadataStore:
    """State, bus, and the submitters that wait for their commands to be applied here.

    It subscribes to the log that it is given; the log's owner starts that.
    """

    def __init__(
        self,
        metadata_log: MetadataLog,
        *,
        origin: int,
        stages: WriteStages | None = None,
        budget: MetadataBudget | None = None,
    ) -> None:
        """`origin` must differ between nodes and between starts of a node: it marks this store's entries."""
        self._log = metadata_log
        self._origin = origin
        self._sequence = 0
        self._waiting: dict[int, asyncio.Future[Outcome]] = {}
        self._proposed: dict[int, int] = {}
        """Index at which the leader appended a waiting submission, by the submission's sequence number."""
        self._reached: list[tuple[int, asyncio.Future[None]]] = []
        self.state = ClusterState()
        self.applied_index = 0
        """How far this node has applied the log; may be ahead of the last command in it."""
        self.bus = EventBus()
        self.budget = budget or MetadataBudget()
        self.stages = stages or WriteStages()
        """Filled here (applied) and by the log underneath (wal, sent, committed, the path)."""
        metadata_log.subscribe(self)

    async def submit(self, command: Command, *, timeout_s: float = SUBMIT_TIMEOUT_S) -> Outcome:
        """Have the command committed and applied on this node.

        Raises RequestError when it is refused (a Batch reports each part in its outcome instead) and when the
        time runs out, in which case it may still be applied later; Unavailable when nobody took it, or when
        the leader was lost before it said so: then it may be applied, too.
        """
        self._refuse_too_new(command)
        admitted = self.budget.admit(self.state, command)
        if admitted.command is None:
            return admitted.whole(Outcome(index=self.applied_index))
        self.budget.under_way += admitted.growth
        try:
            outcome = await self._submit(admitted, timeout_s)
        finally:
            self.budget.under_way -= admitted.growth
        if outcome.refused is not None:
            raise RequestError(outcome.refused.code, outcome.refused.message)
        self._tell_of_topics(outcome.events)
        return admitted.whole(outcome)

    async def submit_each(
        self, planned: Sequence[tuple[K, SingleCommand]], *, timeout_s: float = SUBMIT_TIMEOUT_S
    ) -> list[tuple[K, Refused]]:
        """Submit commands as one entry of the metadata log, each applied or refused by itself.

        Returns the refused ones by what stands before them; raises as `submit` does.
        """
        if not planned:
            return []
        batch = Batch(commands=tuple(command for _, command in planned))
        outcome = await self.submit(batch, timeout_s=timeout_s)
        parts = zip(planned, outcome.parts, strict=True)
        return [(key, part.refused) for (key, _), part in parts if part.refused is not None]

    async def _submit(self, admitted: AdmittedCommand, timeout_s: float) -> Outcome:
        command = admitted.command
        assert command is not None
        self._sequence += 1
        sequence = self._sequence
        data = encode_entry(CommandEntry(self._origin, sequence, command))
        self.budget.check_entry(admitted, len(data))
        started = clock()
        waiter: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting[sequence] = waiter
        try:
            async with asyncio.timeout(timeout_s):
                index = await self._log.append(data)
                self._proposed[sequence] = index
                self._give_up_superseded(self.applied_index)
                outcome = await waiter
            self.stages.took(name_of(command), clock() - started)
        except TimeoutError:
            raise RequestError(
                ErrorCode.request_timed_out, "The metadata change was not committed in time."
            ) from None
        finally:
            del self._waiting[sequence]
            self._proposed.pop(sequence, None)
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # it may have failed during the append: mark that as retrieved
        return outcome

    def _refuse_too_new(self, command: Command) -> None:
        """Nodes of the release before would stop at a command that they do not know."""
        parts = command.commands if isinstance(command, Batch) else (command,)
        if any(self.state.level < COMMAND_LEVELS.get(name_of(part), LEVEL_FIRST) for part in parts):
            raise RequestError(
                ErrorCode.unsupported_version,
                f"The cluster is at level {self.state.level}, and nodes of the release before do not know "
                "what this would write. Finish the upgrade first: chronik upgrade finalize",
            )

    def _tell_of_topics(self, events: Sequence[Event]) -> None:
        """One line for a topic, on the node that was asked; the replicas tell of each partition at DEBUG."""
        for event in events:
            if isinstance(event, TopicCreated) and (topic := self.state.topics.get(event.topic)) is not None:
                counts = len(topic.partitions), len(topic.partitions[0].replicas)
                log.info("topic %s created: %d partitions, %d replicas each", event.topic, *counts)
            elif isinstance(event, TopicDeleted):
                log.info("topic %s deleted: %d partitions", event.topic, event.partition_count)

    async def applied(self, index: int) -> None:
        """Wait until this node has applied the entry at `index`."""
        if self.applied_index < index:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._reached.append((index, waiter))
            await waiter

    def snapshot(self) -> bytes:
        return encode_snapshot(self.state)

    def close(self) -> None:
        """Nothing more will be committed here: let everybody who waits know."""
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(Unavailable("The node is stopping."))
        for _, reached in self._reached:
            reached.cancel()

    # --- called by the log ---

    def on_committed(self, entries: Sequence[CommittedCommand]) -> None:
        for committed in entries:
            entry = decode_entry(committed.data)
            outcome = self.state.apply(entry.command, committed.index)
            self.bus.publish(outcome.events)
            if entry.origin == self._origin:
                waiter = self._waiting.get(entry.sequence)
                if waiter is not None and not waiter.done():
                    waiter.set_result(outcome)
            self.applied_index = committed.index
        self._wake_reached()

    def on_lost(self, why: str) -> None:
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(Unavailable(why))

    def on_quorum_changed(self) -> None:
        self.bus.publish([QuorumChanged()])

    def on_snapshot(self, data: bytes | memoryview) -> None:
        self.state = decode_snapshot(data)
        log.info("metadata starts from a snapshot at index %d", self.state.applied_index)
        self.applied_index = max(self.applied_index, self.state.applied_index)
        self.bus.publish([Resync()])
        self._wake_reached()

    def on_applied(self, index: int) -> None:
        self.applied_index = max(self.applied_index, index)
        self._give_up_superseded(index)
        self._wake_reached()

    def _give_up_superseded(self, applied: int) -> None:
        """Fail submissions whose index was applied with another entry: a new leader overwrote them."""
        for sequence, index in list(self._proposed.items()):
            if index <= applied:
                waiter = self._waiting[sequence]
                if not waiter.done():
                    waiter.set_exception(Unavailable("A new leader took over before the commit."))
                del self._proposed[sequence]

    def _wake_reached(self) -> None:
        if self._reached:
            for index, waiter in self._reached:
                if index <= self.applied_index and not waiter.done():
                    waiter.set_result(None)
            self._reached = [(index, waiter) for index, waiter in self._reached if not waiter.done()]
