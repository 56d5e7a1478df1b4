"""Who is in sync: the two rules by which a follower joins and leaves the ISR, and how a change is decided.

A leader proposes a change; it is in force once the metadata log has it. Until then the watermark counts the
members of the old ISR and of the new one, since either may be in force. When a node dies or is back, a leader
changes hundreds of partitions at once: what one turn of the event loop proposes is one entry of the metadata
log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from chronik.log_lines import RepeatingLine
from chronik.metadata.commands import Batch, ChangePartition
from chronik.metadata.store import MetadataStore
from chronik.model import ErrorCode, NodeId, RequestError, Unavailable
from chronik.replication.progress import FollowerProgress
from chronik.tasks import Tasks

if TYPE_CHECKING:
    from chronik.replication.replica import Replica

log = logging.getLogger(__name__)
_unchanged: Final = RepeatingLine(log, logging.INFO, "%s: the ISR stays as it is: %s")

PROPOSE_SECONDS_MAX: Final = 5.0
PROPOSE_AGAIN_SECONDS: Final = 0.1
NEW_EPOCH_RETRY_SECONDS: Final = 1.0
CHANGES_A_COMMAND: Final = 256
"""Partitions that one entry of the metadata log changes, so that applying it holds nobody up."""


def is_caught_up(progress: FollowerProgress, high_watermark: int, leader_epoch_start_offset: int) -> bool:
    """Whether a follower may join: it has everything committed, and everything from before this epoch.

    It need not have everything the leader has, or it would never join while clients keep writing.
    """
    return progress.acked_end >= max(high_watermark, leader_epoch_start_offset)


def lagging_followers(
    isr: Collection[NodeId],
    followers: Mapping[NodeId, FollowerProgress],
    log_end_offset: int,
    now: float,
    lag_seconds_max: float,
) -> list[NodeId]:
    """Members of the ISR that have to leave: not caught up within `replica.lag.time.max.ms`."""
    return [
        peer
        for peer, progress in followers.items()
        if progress.lag_seconds(log_end_offset, now) > lag_seconds_max and peer in isr
    ]


class _Change(NamedTuple):
    """A change that is wanted."""

    partition: Replica
    isr: tuple[NodeId, ...] | None
    """None asks for a new leader epoch."""
    decided: asyncio.Future[bool]


class MetadataIsrProposals:
    """Proposes changes of partitions that this node leads, as commands for the metadata log."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._gathered: list[_Change] = []
        """Changes gathered in this turn of the event loop."""
        self._tasks = Tasks("ISR")

    def propose(self, partition: Replica, isr: tuple[NodeId, ...]) -> None:
        self._tasks.spawn(self._propose(partition, isr), f"the change of the ISR of {partition.tp}")

    async def _propose(self, partition: Replica, isr: tuple[NodeId, ...]) -> None:
        """Repeat the proposal until it is decided. Any other change of the partition decides it too, since a
        proposal is valid for one partition epoch only."""
        decided: bool | None = None
        try:
            while decided is None and partition.pending_isr is isr and partition.is_leader:
                decided = await self._change(partition, isr)
                if decided is None:
                    await asyncio.sleep(PROPOSE_AGAIN_SECONDS)
        finally:
            partition.isr_proposal_settled(isr)
        if decided:
            log.info("ISR of %s is %s", partition.tp, list(partition.isr))

    def propose_new_epoch(self, partition: Replica) -> None:
        """This node's disk refused an append that followers may have: go on in a new epoch."""
        asking = self._propose_new_epoch(partition, partition.leader_epoch)
        self._tasks.spawn(asking, f"asking for a new epoch of {partition.tp}")

    async def _propose_new_epoch(self, partition: Replica, epoch: int) -> None:
        while partition.leader_epoch == epoch:
            if await self._change(partition, None):
                return
            await asyncio.sleep(NEW_EPOCH_RETRY_SECONDS)

    async def _change(self, partition: Replica, isr: tuple[NodeId, ...] | None) -> bool | None:
        """Ask for this ISR, or for a new leader epoch if None. Returns False if refused, None if unknown."""
        try:
            return await self._gather(partition, isr)
        except (Unavailable, RequestError) as error:
            _unchanged(partition.tp, partition.tp, error)
            is_refused = isinstance(error, RequestError) and error.code != ErrorCode.request_timed_out
            return False if is_refused else None

    def _gather(self, partition: Replica, isr: tuple[NodeId, ...] | None) -> asyncio.Future[bool]:
        loop = asyncio.get_running_loop()
        if not self._gathered:
            loop.call_soon(self._submit_gathered)
        decided: asyncio.Future[bool] = loop.create_future()
        self._gathered.append(_Change(partition, isr, decided))
        return decided

    def _submit_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        wanted: list[tuple[_Change, ChangePartition]] = []
        for change in gathered:
            if change.decided.done():
                continue
            command = self._command(change)
            if command is None:
                change.decided.set_result(False)
            else:
                wanted.append((change, command))
        for start in range(0, len(wanted), CHANGES_A_COMMAND):
            part = wanted[start : start + CHANGES_A_COMMAND]
            self._tasks.spawn(self._submit(part), f"changing {len(part)} partitions")

    def _command(self, change: _Change) -> ChangePartition | None:
        """None if the partition has changed so that the proposal means nothing any more."""
        partition = change.partition
        current = self._metadata.state.partition(partition.tp)
        if current is None or current.leader_epoch != partition.leader_epoch or not partition.is_leader:
            return None
        return ChangePartition(
            topic_id=partition.topic_id,
            partition=partition.tp.partition,
            partition_epoch=current.partition_epoch,
            isr=change.isr,
            bump_leader_epoch=change.isr is None,
        )

    async def _submit(self, wanted: Sequence[tuple[_Change, ChangePartition]]) -> None:
        """Submit the changes. Every waiter gets the outcome, also if submitting fails."""
        batch = Batch(commands=tuple(command for _, command in wanted))
        try:
            outcome = await self._metadata.submit(batch, timeout_s=PROPOSE_SECONDS_MAX)
        except Exception as error:
            for change, _ in wanted:
                if not change.decided.done():
                    change.decided.set_exception(error)
            return
        for (change, _), part in zip(wanted, outcome.parts, strict=True):
            if change.decided.done():
                continue
            if part.refused is None:
                change.decided.set_result(True)
            else:
                change.decided.set_exception(RequestError(part.refused.code, part.refused.message))

    async def stop(self) -> None:
        await self._tasks.close()
