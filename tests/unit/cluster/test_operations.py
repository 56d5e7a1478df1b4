"""Nodes come and go over a real metadata store; followers that are added catch up at once, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from chronik.cluster.operations import STEPS_A_TURN, ClusterOperations, Moved
from chronik.cluster.voters import quorum_changes
from chronik.metadata import commands as c
from chronik.metadata import events as e
from chronik.metadata.commands import CommandEntry, encode_entry
from chronik.metadata.levels import LEVEL_FIRST, LEVEL_LAST
from chronik.metadata.reassignment import is_moving
from chronik.metadata.store import MetadataStore
from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.raft import Membership
from tests.unit.server.harness import InstantLog

ORDERS = UUID(int=77)


class LateLog(InstantLog):
    """A log of which this node has not seen the newest entries: they come with the next that it appends."""

    def __init__(self) -> None:
        super().__init__()
        self.missed: list[bytes] = []

    async def append(self, data: bytes) -> int:
        missed, self.missed = self.missed, []
        for entry in missed:
            await super().append(entry)
        return await super().append(data)


class World:
    """A cluster whose leaders let added replicas into the ISR as soon as they hear of them."""

    def __init__(self, brokers: int = 3, partitions: int = 6, factor: int = 3) -> None:
        self.log = LateLog()
        self.store = MetadataStore(self.log, origin=1)
        self.membership = Membership(voters=tuple(range(1, brokers + 1)))
        self.operations = ClusterOperations(
            node_id=brokers, metadata=self.store, quorum=lambda: self.membership, voters=3
        )
        self.lazy: set[int] = set()
        """Brokers that never catch up."""
        self.tasks: set[asyncio.Task[Any]] = set()
        self.moving_max = 0
        self.store.bus.listen(self._on_event)
        self._brokers = brokers
        self._assignments = tuple(
            tuple((number + step) % brokers + 1 for step in range(factor)) for number in range(partitions)
        )

    async def begin(self, level: int = LEVEL_LAST) -> None:
        await self.store.submit(c.SetLevel(level=level))
        for broker in range(1, self._brokers + 1):
            await self.register(broker)
        await self.store.submit(c.CreateTopic(name="orders", topic_id=ORDERS, assignments=self._assignments))

    async def register(self, broker: int) -> None:
        port = 9000 + broker
        endpoints = {"kafka": c.Endpoint(host="h", port=port)}
        command = c.RegisterBroker(broker_id=broker, incarnation=UUID(int=broker), endpoints=endpoints)
        await self.store.submit(command)

    async def fence(self, broker: int) -> None:
        epoch = self.store.state.brokers[broker].epoch
        await self.store.submit(c.FenceBroker(broker_id=broker, broker_epoch=epoch))

    def _on_event(self, event: e.Event) -> None:
        if isinstance(event, e.PartitionAssigned) and event.previous is not None:
            self.moving_max = max(self.moving_max, sum(map(is_moving, self.partitions)))
            task = asyncio.get_running_loop().create_task(self._catch_up(event.tp))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _catch_up(self, tp: TopicPartition) -> None:
        partition = self.store.state.partition(tp)
        if partition is None or not partition.adding:
            return
        isr = tuple(
            r
            for r in partition.replicas
            if r in partition.isr or (r in partition.adding and r not in self.lazy)
        )
        if isr != partition.isr:
            await self.store.submit(
                c.ChangePartition(
                    topic_id=ORDERS,
                    partition=tp.partition,
                    partition_epoch=partition.partition_epoch,
                    isr=isr,
                )
            )

    async def until(self, holds: Callable[[], bool]) -> None:
        with self.store.bus.subscribe() as events:
            while not holds():
                await events.next_batch()

    async def until_votes(self, broker: int, votes: bool) -> None:
        for _ in range(10):  # a command takes a few turns of the loop
            await asyncio.sleep(0)
        assert self.store.state.brokers[broker].votes is votes

    @property
    def partitions(self) -> tuple[Any, ...]:
        topic = self.store.state.topics.get("orders")
        return topic.partitions if topic is not None else ()

    def held(self, broker: int) -> int:
        return sum(broker in partition.replicas for partition in self.partitions)

    def led(self, broker: int) -> int:
        return sum(partition.leader == broker for partition in self.partitions)

    def align(self) -> None:
        """What the controller does with the quorum."""
        while changes := quorum_changes(self.store.state, self.membership):
            self.membership = self.membership.changed(changes[0])


def run(work: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await work

    asyncio.run(limited())


def test_a_new_node_gets_its_share_of_replicas_and_leaders() -> None:
    async def work() -> None:
        world = World(partitions=40)
        await world.begin()
        told = await world.operations.add_node({"node_id": 4, "kafka": "h:9004", "wal": "h:1", "raft": "h:2"})
        assert "Node 4 may join" in told
        await world.register(4)
        planned = await world.operations.rebalance(dry_run=True)
        assert world.held(4) == 0
        assert await world.operations.rebalance() == planned
        assert planned.replicas == 30
        assert [world.held(node) for node in (1, 2, 3, 4)] == [30, 30, 30, 30]
        assert [world.led(node) for node in (1, 2, 3, 4)] == [10, 10, 10, 10]
        assert world.moving_max <= 16
        assert await world.operations.rebalance() == Moved(0, 0)

    run(work())


def test_a_plan_leaves_turns_of_the_event_loop_to_others() -> None:
    """The controller that plans for 50,000 partitions must go on answering leases."""

    async def work() -> None:
        world = World(partitions=2_000)
        await world.begin()
        await world.register(4)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        planned = await world.operations.rebalance(dry_run=True)
        task.cancel()
        assert planned.replicas == 1_500
        assert turns >= planned.replicas / STEPS_A_TURN

    run(work())


def test_a_node_is_emptied_and_then_removed() -> None:
    async def work() -> None:
        world = World(brokers=4)
        await world.begin()
        removal = asyncio.ensure_future(world.operations.remove_node(1))
        await world.until(lambda: 1 in world.store.state.removed)
        assert not removal.done(), "it is a voter still"
        world.align()
        assert "can be switched off" in await removal
        assert world.membership.voters == (2, 3, 4)
        assert world.held(1) == 0
        assert all(len(partition.isr) == 3 for partition in world.partitions)
        with pytest.raises(RequestError) as refused:
            await world.register(1)
        assert refused.value.code == ErrorCode.invalid_registration
        await world.operations.add_node({"node_id": 1, "kafka": "h:9001"})
        await world.register(1)

    run(work())


def test_a_removal_that_cannot_keep_the_copies_is_refused_and_leaves_no_trace() -> None:
    async def work() -> None:
        world = World(brokers=3)
        await world.begin()
        with pytest.raises(RequestError) as refused:
            await world.operations.remove_node(1)
        assert refused.value.code == ErrorCode.invalid_replication_factor
        assert not world.store.state.brokers[1].draining
        assert world.held(1) == 6

    run(work())


def test_a_forced_removal_goes_on_with_fewer_copies() -> None:
    async def work() -> None:
        world = World(brokers=3)
        await world.begin()
        await world.fence(1)
        removal = asyncio.ensure_future(world.operations.remove_node(1, force=True))
        await world.until(lambda: 1 in world.store.state.removed)
        world.align()
        await removal
        assert [sorted(partition.replicas) for partition in world.partitions] == [[2, 3]] * 6

    run(work())


def test_a_move_to_a_node_that_dies_goes_elsewhere() -> None:
    async def work() -> None:
        world = World(brokers=5, partitions=5)
        await world.begin()
        world.lazy = {4}
        removal = asyncio.ensure_future(world.operations.remove_node(1))
        await world.until(lambda: any(4 in partition.adding for partition in world.partitions))
        await world.fence(4)
        await world.until(lambda: 1 in world.store.state.removed)
        world.align()
        await removal
        assert world.held(1) == 0
        assert not any(is_moving(partition) for partition in world.partitions)

    run(work())


@pytest.mark.parametrize(
    ("node", "fenced", "code"),
    [
        (9, (), ErrorCode.broker_id_not_registered),
        (1, (2,), ErrorCode.invalid_request),
        (1, (1,), ErrorCode.invalid_request),
    ],
)
def test_removals_that_are_refused(node: int, fenced: tuple[int, ...], code: ErrorCode) -> None:
    """Nobody by that name; no majority would be left; only the dead node has the records."""

    async def work() -> None:
        world = World(brokers=3, partitions=3, factor=1)
        await world.begin()
        for broker in fenced:
            await world.fence(broker)
        with pytest.raises(RequestError) as refused:
            await world.operations.remove_node(node)
        assert refused.value.code == code

    run(work())


def test_a_node_that_was_cut_off_catches_up_before_it_answers() -> None:
    """Were it to say that there is no node 4, the operator would switch off one that still holds records."""

    async def work() -> None:
        world = World(brokers=3)
        await world.begin()
        admitted = c.RegisterBroker(
            broker_id=4, incarnation=UUID(int=4), endpoints={"kafka": c.Endpoint(host="h", port=9004)}
        )
        world.log.missed.append(encode_entry(CommandEntry(2, 1, admitted)))
        assert 4 not in world.store.state.brokers
        assert "can be switched off" in await world.operations.remove_node(4)

        world.log.missed.append(encode_entry(CommandEntry(2, 2, c.AdmitNode(broker_id=4))))
        world.log.missed.append(encode_entry(CommandEntry(2, 3, admitted)))
        with pytest.raises(RequestError, match="belongs to the cluster already"):
            await world.operations.add_node({"node_id": 4, "kafka": "h:9004"})

        world.log.missed.append(
            encode_entry(CommandEntry(2, 4, c.FenceBroker(broker_id=4, broker_epoch=epoch_of(world, 4))))
        )
        assert await world.operations.rebalance(dry_run=True) == Moved(0, 0)

    run(work())


def epoch_of(world: World, broker: int) -> int:
    return world.store.state.brokers[broker].epoch


def test_nodes_that_cannot_be_added() -> None:
    async def work() -> None:
        world = World()
        await world.begin()
        with pytest.raises(RequestError) as known:
            await world.operations.add_node({"node_id": 2, "kafka": "h:1"})
        assert known.value.code == ErrorCode.duplicate_broker_registration
        with pytest.raises(RequestError, match="h:9002 is an address of node 2"):
            await world.operations.add_node({"node_id": 4, "kafka": "h:9002"})

    run(work())


def test_an_observer_votes_in_place_of_another_node_when_it_is_promoted() -> None:
    async def work() -> None:
        world = World(brokers=4, partitions=1)
        await world.begin()
        world.align()
        assert world.membership == Membership((1, 2, 3), (4,))
        promotion = asyncio.ensure_future(world.operations.promote(4))
        await world.until_votes(4, True)
        assert not promotion.done(), "the controller has not seen it"
        world.align()
        assert await promotion == "Node 4 votes on metadata."
        assert world.membership == Membership((1, 2, 4), (3,))
        demotion = asyncio.ensure_future(world.operations.demote(1))
        await world.until_votes(1, False)
        world.align()
        await demotion
        assert world.membership == Membership((2, 3, 4), (1,))
        await world.register(1)
        world.align()
        assert world.membership == Membership((2, 3, 4), (1,)), "it is remembered when the node comes again"

    run(work())


def test_votes_that_cannot_be_given_or_taken() -> None:
    async def work() -> None:
        world = World(brokers=4, partitions=1)
        await world.begin()
        world.align()
        for node in (1, 2, 3):
            await world.operations.promote(node)
        with pytest.raises(RequestError, match="demote one of them first"):
            await world.operations.promote(4)
        with pytest.raises(RequestError, match="no node 9"):
            await world.operations.promote(9)
        await world.fence(4)
        with pytest.raises(RequestError, match="is down"):
            await world.operations.promote(4)
        with pytest.raises(RequestError, match="no other node could vote"):
            await world.operations.demote(1)
        assert world.store.state.brokers[1].votes is True

    run(work())


def test_nobody_is_promoted_while_a_node_may_go_back_to_a_release_that_does_not_know_it() -> None:
    async def work() -> None:
        world = World(brokers=4, partitions=1)
        await world.begin(level=LEVEL_FIRST)
        world.align()
        for change in (world.operations.promote, world.operations.demote):
            with pytest.raises(RequestError, match="chronik upgrade finalize"):
                await change(4)

    run(work())


def test_the_only_voter_of_two_nodes_can_be_removed() -> None:
    async def work() -> None:
        world = World(brokers=2, partitions=2, factor=1)
        await world.begin()
        world.align()
        assert world.membership == Membership((1,), (2,))
        removal = asyncio.ensure_future(world.operations.remove_node(1))
        await world.until(lambda: 1 in world.store.state.removed)
        world.align()
        await removal
        assert world.membership == Membership((2,))

    run(work())
