"""Changes of the cluster that an operator asks for: add a node, remove one, say who votes, rebalance.

Any node can do it: it catches up with the leader, plans with its own metadata and submits commands, which are
forwarded to the leader. A command says where replicas should be in the end, so an interrupted plan can simply
be made again. A few partitions move at a time; no replica is dropped before its replacement is in sync.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from chronik.cluster.placement import Slot
from chronik.cluster.preferred_leaders import preferred_changes
from chronik.cluster.rebalance import (
    PARTITIONS_A_STEP,
    Move,
    Placed,
    Steps,
    drain_steps,
    even_out_steps,
    replica_moves,
)
from chronik.cluster.voters import voters_of
from chronik.metadata import events as e
from chronik.metadata.bus import Subscription
from chronik.metadata.commands import (
    AdmitNode,
    Batch,
    Command,
    DrainNode,
    Noop,
    Reassign,
    RemoveNode,
    SetVoter,
)
from chronik.metadata.reassignment import is_moving, original_of, target_of
from chronik.metadata.state import ClusterState
from chronik.metadata.store import MetadataStore
from chronik.metadata.values import Broker, Outcome, PartitionRegistration
from chronik.model import ErrorCode, NodeId, RequestError, TopicPartition, Unavailable
from chronik.raft import Membership
from chronik.tasks import in_slices

log = logging.getLogger(__name__)

MOVES_AT_ONCE: Final = 16
"""Partitions on the move at the same time: more of them only compete for the same links and disks."""
SUBMIT_SECONDS_MAX: Final = 10.0
RETRY_SECONDS: Final = 0.2
LOOK_SECONDS: Final = 1.0
"""How often moves are checked when no event comes."""
ROUNDS_MAX: Final = 20
"""How many plans are made in a row, each because the cluster changed during the one before."""
QUORUM_SECONDS_MAX: Final = 20.0
FORCE_SECONDS: Final = 20.0
"""A forced removal waits this long for a move that makes no progress."""

STEPS_A_TURN: Final = 32
"""Steps of a plan that are taken in one turn of the event loop: a few milliseconds. Whoever plans may be the
controller, and must go on answering leases while it plans for many partitions."""

Plan = Callable[[], Steps]

_DISTURBING: Final = (e.BrokerFenced, e.BrokerUnregistered)


class Moved(NamedTuple):
    replicas: int
    leaders: int


class ClusterOperations:
    def __init__(
        self, *, node_id: NodeId, metadata: MetadataStore, quorum: Callable[[], Membership], voters: int
    ) -> None:
        """`voters` is how many are wanted."""
        self._node_id = node_id
        self._voters = voters
        self._metadata = metadata
        self._quorum = quorum
        self._lock = asyncio.Lock()

    @property
    def _state(self) -> ClusterState:
        return self._metadata.state

    # --- nodes -------------------------------------------------------------------------------------

    async def add_node(self, node: Mapping[str, object]) -> str:
        """Allow a node to join; it registers itself when it is started. `node` has its id and addresses."""
        node_id = int(str(node["node_id"]))
        await self._catch_up()
        if node_id in self._state.brokers:
            raise RequestError(
                ErrorCode.duplicate_broker_registration, f"Node {node_id} belongs to the cluster already."
            )
        given = {str(node[name]) for name in ("kafka", "wal", "raft", "http") if node.get(name)}
        for broker in self._state.brokers.values():
            taken = given & {f"{at.host}:{at.port}" for at in broker.endpoints.values()}
            if taken:
                raise RequestError(
                    ErrorCode.invalid_request, f"{min(taken)} is an address of node {broker.broker_id}."
                )
        await self._submit(AdmitNode(broker_id=node_id))
        return f"Node {node_id} may join: start it with `join = true` and the nodes of this cluster as peers."

    async def remove_node(self, node_id: NodeId, *, force: bool = False) -> str:
        """Move everything away from a node, then take it out. Answers when it can be switched off."""
        async with self._lock:
            await self._catch_up()
            self._check_removable(node_id, force=force)
            is_registered = node_id in self._state.brokers
            if is_registered:
                await self._submit(DrainNode(broker_id=node_id))
            try:
                moved = await self._empty(node_id, force=force)
            except BaseException:
                if is_registered:
                    with contextlib.suppress(Unavailable, RequestError):
                        await self._metadata.submit(
                            DrainNode(broker_id=node_id, draining=False), timeout_s=SUBMIT_SECONDS_MAX
                        )
                raise
            await self._until_voted_out(node_id)
        log.info("node %d is out of the cluster, %d replicas moved", node_id, moved)
        return f"Node {node_id} is out of the cluster, {moved} replicas moved: it can be switched off."

    async def _empty(self, node_id: NodeId, *, force: bool) -> int:
        """Drain and remove; again if the node got replicas in between."""
        moved = 0
        plan = partial(self._plan_drain, node_id, force=force)
        while True:
            moved += (await self._carry_out(plan, patience_s=FORCE_SECONDS if force else None)).replicas
            try:
                await self._submit(RemoveNode(broker_id=node_id, force=force))
            except RequestError as error:
                if error.code != ErrorCode.reassignment_in_progress:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return moved

    def _check_removable(self, node_id: NodeId, *, force: bool) -> None:
        state, quorum = self._state, self._quorum()
        if node_id not in state.brokers and node_id not in quorum.members:
            raise RequestError(
                ErrorCode.broker_id_not_registered, f"There is no node {node_id} in this cluster."
            )
        # A lone voter is replaced by an observer before it goes.
        possible = quorum.members if quorum.voters == (node_id,) else quorum.voters
        staying = [voter for voter in possible if voter != node_id]
        alive = [voter for voter in staying if state.is_alive(voter)]
        if len(alive) <= len(staying) // 2:
            raise RequestError(
                ErrorCode.invalid_request,
                f"Without node {node_id}, {len(alive)} of {len(staying)} nodes would be alive: no majority.",
            )
        alone = [
            f"{topic.name}-{partition.partition}"
            for topic in state.topics.values()
            for partition in topic.partitions
            if partition.isr == (node_id,)
        ]
        if alone and not force and not state.is_alive(node_id):
            raise RequestError(
                ErrorCode.invalid_request,
                f"Only node {node_id}, which is down, has all records of {len(alone)} partitions, {alone[0]} "
                "for one: start it first, or force the removal and lose them.",
            )

    async def _until_voted_out(self, node_id: NodeId) -> None:
        """A node that removes itself does not wait: it may never hear of it."""
        if node_id != self._node_id:
            await self._until_quorum(
                lambda quorum: node_id not in quorum.members,
                f"node {node_id} holds no data any more, but is still a member of the quorum",
            )

    # --- voters ------------------------------------------------------------------------------------

    async def promote(self, node_id: NodeId) -> str:
        """Make a node a voter, in place of another if there are enough. Returns once it votes."""
        async with self._lock:
            await self._catch_up()
            broker = self._may_vote(node_id)
            if broker.fenced or broker.draining:
                why = "is being removed" if broker.draining else "is down"
                raise RequestError(ErrorCode.invalid_request, f"Node {node_id} {why}: it cannot vote.")
            pinned = [one.broker_id for one in self._state.live_brokers() if one.votes]
            if node_id not in pinned and len(pinned) >= self._voters:
                raise RequestError(
                    ErrorCode.invalid_request,
                    f"Nodes {pinned} were promoted before it, and there are {self._voters} voters: "
                    "demote one of them first.",
                )
            await self._submit(SetVoter(broker_id=node_id, votes=True))
            await self._until_quorum(
                lambda quorum: node_id in quorum.voters, f"node {node_id} catches up still"
            )
        return f"Node {node_id} votes on metadata."

    async def demote(self, node_id: NodeId) -> str:
        """Make a node an observer. Returns once another node votes in its place."""
        async with self._lock:
            await self._catch_up()
            self._may_vote(node_id)
            count = len(voters_of(self._state, self._quorum(), wanted=self._voters))
            others = [
                one.broker_id
                for one in self._state.live_brokers()
                if one.broker_id != node_id and not one.draining and one.votes is not False
            ]
            if len(others) < count:
                raise RequestError(
                    ErrorCode.invalid_request,
                    f"There are {count} voters, and no other node could vote in place of node {node_id}.",
                )
            await self._submit(SetVoter(broker_id=node_id, votes=False))
            await self._until_quorum(
                lambda quorum: node_id not in quorum.voters,
                f"nobody could take the place of node {node_id} yet",
            )
        return f"Node {node_id} observes metadata and does not vote."

    def _may_vote(self, node_id: NodeId) -> Broker:
        """The broker that an operator wants to promote or demote."""
        broker = self._state.brokers.get(node_id)
        if broker is None:
            raise RequestError(
                ErrorCode.broker_id_not_registered, f"There is no node {node_id} in this cluster."
            )
        return broker

    async def _until_quorum(self, holds: Callable[[Membership], bool], otherwise: str) -> None:
        """Wait until the controller has changed the quorum, at most `QUORUM_SECONDS_MAX`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + QUORUM_SECONDS_MAX
        while not holds(self._quorum()):
            if loop.time() > deadline:
                raise Unavailable(otherwise)
            await asyncio.sleep(RETRY_SECONDS)

    # --- shares ------------------------------------------------------------------------------------

    async def rebalance(self, *, dry_run: bool = False) -> Moved:
        """Spread replicas and leaders evenly over the live nodes; returns when everything has moved."""
        await self._catch_up()
        if dry_run:
            return _shares(await in_slices(self._plan_even(), STEPS_A_TURN))
        async with self._lock:
            moved = await self._carry_out(self._plan_even, patience_s=None)
            changes = preferred_changes(self._state)
            if changes:
                await self._submit(Batch(commands=tuple(changes)))
        log.info("%d replicas and %d leaders moved", moved.replicas, moved.leaders)
        return moved

    # --- plans -------------------------------------------------------------------------------------

    def _slots(self) -> list[Slot]:
        return [Slot(one.broker_id, one.rack) for one in self._state.live_brokers() if not one.draining]

    def _plan_even(self) -> Steps:
        """Leaves moving partitions alone, except those that wait for a node that is gone."""
        slots = self._slots()
        placed, stuck = [], []
        for number, (tp, partition) in enumerate(self._partitions()):
            moving = is_moving(partition)
            if not moving or self._is_stuck(partition):
                one = Placed(tp, original_of(partition))
                placed.append(one)
                if moving:
                    stuck.append(one)
            if number % PARTITIONS_A_STEP == 0:
                yield
        moves = yield from even_out_steps(placed, slots)
        planned = {move.tp for move in moves}
        return moves + [Move(*one, one.replicas) for one in stuck if one.tp not in planned]

    def _plan_drain(self, node_id: NodeId, *, force: bool) -> Steps:
        slots = self._slots()
        placed = []
        for number, (tp, partition) in enumerate(self._partitions()):
            placed.append(Placed(tp, self._heading_for(partition)))
            if number % PARTITIONS_A_STEP == 0:
                yield
        return (yield from drain_steps(placed, slots, node_id, force=force))

    def _heading_for(self, partition: PartitionRegistration) -> tuple[NodeId, ...]:
        """The replicas that a partition moves to; the original ones if the move waits for a node that is
        gone."""
        return original_of(partition) if self._is_stuck(partition) else target_of(partition)

    def _is_stuck(self, partition: PartitionRegistration) -> bool:
        return any(not self._state.is_alive(added) for added in partition.adding)

    def _partitions(self) -> Iterator[tuple[TopicPartition, PartitionRegistration]]:
        """All partitions as of the first `next`; later changes are not seen."""
        for _, topic in sorted(self._state.topics.items()):
            for partition in topic.partitions:
                yield TopicPartition(topic.name, partition.partition), partition

    # --- carrying out ------------------------------------------------------------------------------

    async def _carry_out(self, plan: Plan, *, patience_s: float | None) -> Moved:
        """Do what `plan` says, a few partitions at a time, until it says nothing more.

        With `patience_s`, returns once no move has finished for that long; unfinished moves go on.
        """
        started: list[Move] = []
        rounds = 0
        waiting: deque[Move] = deque()
        under_way: set[TopicPartition] = set()
        loop = asyncio.get_running_loop()
        changed_at = loop.time()
        with self._metadata.bus.subscribe(e.PartitionAssigned, e.TopicDeleted, *_DISTURBING) as events:
            while True:
                still = {tp for tp in under_way if self._is_moving(tp)}
                if still != under_way:
                    under_way, changed_at = still, loop.time()
                if not waiting and not under_way:
                    waiting = deque(await in_slices(plan(), STEPS_A_TURN))
                    rounds += 1
                    if not waiting:
                        return _shares(started)
                    if rounds > ROUNDS_MAX:
                        raise Unavailable("the cluster changes faster than replicas can be moved")
                chunk = [waiting.popleft() for _ in range(min(len(waiting), MOVES_AT_ONCE - len(under_way)))]
                if chunk:
                    await self._start(chunk)
                    started += chunk
                    under_way |= {move.tp for move in chunk}
                elif patience_s is not None and loop.time() - changed_at > patience_s:
                    return _shares(started)
                elif await _is_disturbed(events):
                    waiting = deque(await in_slices(plan(), STEPS_A_TURN))
                    under_way -= {move.tp for move in waiting}

    def _is_moving(self, tp: TopicPartition) -> bool:
        partition = self._state.partition(tp)
        return partition is not None and is_moving(partition)

    async def _start(self, moves: Sequence[Move]) -> None:
        commands = [
            Reassign(topic_id=topic.topic_id, partition=move.tp.partition, target=move.target)
            for move in moves
            if (topic := self._state.topics.get(move.tp.topic)) is not None
        ]
        outcome = await self._submit(Batch(commands=tuple(commands)))
        for part in outcome.parts:
            if part.refused is not None:
                log.info("a replica stays where it is: %s", part.refused.message)

    async def _catch_up(self) -> None:
        """Have this node apply everything that was committed before the operator asked.

        A node that was cut off may not know a new node yet. If it answered that there is no such node, the
        operator would switch off one that still holds records.
        """
        await self._submit(Noop())

    async def _submit(self, command: Command) -> Outcome:
        """Tried again when the leader changes: the commands of this file may safely be applied twice."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SUBMIT_SECONDS_MAX
        while True:
            try:
                return await self._metadata.submit(command, timeout_s=deadline - loop.time())
            except Unavailable:
                if loop.time() + RETRY_SECONDS > deadline:
                    raise
                await asyncio.sleep(RETRY_SECONDS)


def _shares(moves: Sequence[Move]) -> Moved:
    return Moved(replica_moves(moves), sum(move.moves_leader for move in moves))


async def _is_disturbed(events: Subscription) -> bool:
    """Wait for events; True if one of them may invalidate a plan."""
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            news = await events.next_batch()
    except TimeoutError:
        return False
    return any(isinstance(event, (*_DISTURBING, e.Resync)) for event in news)
