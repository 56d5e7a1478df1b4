"""Moves leaders, and replicas where that is allowed, off nodes that carry much more than the others.

Only the controller does it. It asks every live broker what its partitions take in and give out, and acts when
two reports in a row show the same unevenness. Then it waits for two more: the first one after a move is
still about the time before it. A partition that was moved stays where it is for `REST_SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

from chronik.cluster.load import NodeLoad
from chronik.cluster.load_plan import LoadMove, PlanLimits, Traffic, plan_moves
from chronik.cluster.placement import Slot
from chronik.cluster.preferred_leaders import preferred_changes
from chronik.log_lines import RepeatingLine
from chronik.metadata.commands import Batch, Reassign
from chronik.metadata.levels import LEVEL_REASSIGN_EPOCH
from chronik.metadata.reassignment import is_moving
from chronik.metadata.store import MetadataStore
from chronik.metadata.values import Broker
from chronik.model import ChronikError, NodeId, TopicPartition
from chronik.tasks import Tasks

__all__ = ["LoadBalancer"]

log = logging.getLogger(__name__)
_failed: Final = RepeatingLine(log, logging.INFO, "load balancing cannot run now: %s")

LOOKS: Final = 2
"""Looks in a row that must find loads uneven before anything moves."""
REST_SECONDS: Final = 300.0
LEADERS_MAX: Final = 16
REPLICAS_MAX: Final = 2
"""Moves of one look: what copies data competes with producers for the same disks."""
SUBMIT_SECONDS_MAX: Final = 5.0


class LoadBalancer:
    def __init__(
        self,
        *,
        mode: str,
        interval_seconds: float,
        difference_min: int,
        metadata: MetadataStore,
        is_in_charge: Callable[[], bool],
        load_of: Callable[[NodeId], Awaitable[NodeLoad | None]],
    ) -> None:
        """`mode` is off, leaders or replicas; `difference_min` is of bytes a second. `load_of` raises
        Unavailable where a node does not answer, and gives None where it has nothing to tell yet."""
        self._interval_seconds = interval_seconds
        self._limits = PlanLimits(
            difference_min=difference_min,
            leaders_max=LEADERS_MAX,
            replicas_max=REPLICAS_MAX if mode == "replicas" else 0,
        )
        self._is_on = mode != "off"
        self._metadata = metadata
        self._is_in_charge = is_in_charge
        self._load_of = load_of
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks("load balancer")
        self._uneven_looks = 0
        self._moved_at: dict[TopicPartition, float] = {}
        self.moved = {"leader": 0, "replica": 0}
        """Moves that this node decided on since it started."""

    def start(self) -> None:
        if self._is_on:
            self._tasks.spawn(self._run(), "evening out loads")

    async def stop(self) -> None:
        await self._tasks.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_seconds)
            if not self._is_in_charge() or not self._is_settled():
                self._uneven_looks = 0
                continue
            try:
                await self._look()
            except ChronikError as error:
                self._uneven_looks = 0
                _failed(str(error), error)

    def _is_settled(self) -> bool:
        """Several live brokers, and nothing moves already: neither by us nor for an operator."""
        state = self._metadata.state
        return (
            len(state.live_brokers()) > 1
            and not any(broker.draining for broker in state.brokers.values())
            and not any(is_moving(one) for topic in state.topics.values() for one in topic.partitions)
        )

    async def _look(self) -> None:
        brokers = self._metadata.state.live_brokers()
        found = await asyncio.gather(*(self._load_of(broker.broker_id) for broker in brokers))
        reports = {
            broker.broker_id: load for broker, load in zip(brokers, found, strict=True) if load is not None
        }
        moves = self._plan(brokers, reports) if len(reports) == len(brokers) else []
        self._uneven_looks = self._uneven_looks + 1 if moves else 0
        if self._uneven_looks >= LOOKS and self._is_in_charge():
            self._uneven_looks = -1
            await self._move(moves)

    def _plan(self, brokers: list[Broker], reports: Mapping[NodeId, NodeLoad]) -> list[LoadMove]:
        self._forget_rested()
        traffic = [one for node, report in reports.items() for one in self._traffic(node, report)]
        named = dict.fromkeys(reports, 0)
        for one in traffic:
            named[one.replicas[0]] = named.get(one.replicas[0], 0) + one.taken + one.given
        others = {node: max(0, report.taken + report.given - named[node]) for node, report in reports.items()}
        slots = [Slot(broker.broker_id, broker.rack) for broker in brokers]
        return plan_moves(traffic, others, slots, self._limits)

    def _traffic(self, node: NodeId, report: NodeLoad) -> Iterator[Traffic]:
        """Only what the node leads still, as the preferred leader: others are about to move."""
        for load in report.busiest:
            tp = TopicPartition(load.topic, load.partition)
            partition = self._metadata.state.partition(tp)
            if partition is not None and partition.leader == node == partition.replicas[0]:
                may_move = tp not in self._moved_at
                yield Traffic(tp, partition.replicas, partition.isr, load.taken, load.given, may_move)

    def _forget_rested(self) -> None:
        oldest = self._loop.time() - REST_SECONDS
        self._moved_at = {tp: at for tp, at in self._moved_at.items() if at > oldest}

    def _command(self, move: LoadMove) -> Reassign:
        """Refused if an operator's change, or another one, of the partition is on its way already."""
        state = self._metadata.state
        partition = state.partition(move.tp)
        assert partition is not None  # `move` was planned in this turn
        is_checked = state.level >= LEVEL_REASSIGN_EPOCH
        return Reassign(
            topic_id=state.topics[move.tp.topic].topic_id,
            partition=move.tp.partition,
            target=move.target,
            partition_epoch=partition.partition_epoch if is_checked else None,
        )

    async def _move(self, moves: list[LoadMove]) -> None:
        """Name the new preferred leaders; then let those lead that need not copy anything first."""
        commands = [self._command(move) for move in moves]
        for move in moves:
            self._moved_at[move.tp] = self._loop.time()
        outcome = await self._metadata.submit(Batch(commands=tuple(commands)), timeout_s=SUBMIT_SECONDS_MAX)
        for move, part in zip(moves, outcome.parts, strict=True):
            if part.refused is not None:
                log.info("%s stays where it is: %s", move.tp, part.refused.message)
                continue
            self.moved["replica" if move.copies_data else "leader"] += 1
            log.info("%s moves to nodes %s: loads are uneven", move.tp, list(move.target))
        changes = preferred_changes(self._metadata.state)
        if changes:
            await self._metadata.submit(Batch(commands=tuple(changes)), timeout_s=SUBMIT_SECONDS_MAX)
