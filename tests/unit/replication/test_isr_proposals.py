"""Changes of ISRs on their way into the metadata log: together in few entries, decided one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from chronik.metadata import commands as c
from chronik.metadata.store import MetadataStore
from chronik.model import TopicPartition, Unavailable
from chronik.replication import isr as isr_module
from chronik.replication.isr import CHANGES_A_COMMAND, MetadataIsrProposals
from tests.unit.server.harness import InstantLog

ORDERS = UUID(int=7)


class CountingLog(InstantLog):
    """Counts its entries; refuses the next ones on demand, or breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0
        self.errors: list[Exception] = []

    async def append(self, data: bytes) -> int:
        if self.errors:
            raise self.errors.pop()
        self.entries += 1
        return await super().append(data)


class Led:
    """As much of a partition as the proposals look at."""

    def __init__(self, store: MetadataStore, number: int) -> None:
        self._store = store
        self.tp = TopicPartition("orders", number)
        self.topic_id = ORDERS
        self.leader_epoch = 0
        self.is_leader = True
        self.pending_isr: tuple[int, ...] | None = None

    @property
    def isr(self) -> tuple[int, ...]:
        found = self._store.state.partition(self.tp)
        assert found is not None
        return found.isr

    def isr_proposal_settled(self, isr: tuple[int, ...]) -> None:
        assert self.pending_isr is isr
        self.pending_isr = None


class World:
    def __init__(self, partitions: int) -> None:
        self.log = CountingLog()
        self.store = MetadataStore(self.log, origin=1)
        self.proposals = MetadataIsrProposals(self.store)
        self.led = [Led(self.store, number) for number in range(partitions)]

    async def begin(self) -> None:
        for broker in (1, 2, 3):
            await self.store.submit(
                c.RegisterBroker(broker_id=broker, incarnation=UUID(int=broker), endpoints={})
            )
        assignments = ((1, 2, 3),) * len(self.led)
        await self.store.submit(c.CreateTopic(name="orders", topic_id=ORDERS, assignments=assignments))
        self.log.entries = 0

    def propose(self, one: Led, *isr: int) -> None:
        one.pending_isr = isr
        self.proposals.propose(one, isr)  # type: ignore[arg-type]

    async def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(1_000):  # what is proposed takes a few turns of the loop
            if holds():
                return
            await asyncio.sleep(0)
        raise AssertionError("not within a thousand turns")

    async def settled(self) -> None:
        await self.until(lambda: all(one.pending_isr is None for one in self.led))


def run(work: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await work

    asyncio.run(limited())


def test_the_changes_of_one_turn_are_few_entries() -> None:
    async def work() -> None:
        world = World(2 * CHANGES_A_COMMAND + 1)
        await world.begin()
        for one in world.led:
            world.propose(one, 1, 2)
        await world.settled()
        assert {one.isr for one in world.led} == {(1, 2)}
        assert world.log.entries == 3

    run(work())


def test_one_that_is_refused_does_not_stop_the_others() -> None:
    async def work() -> None:
        world = World(4)
        await world.begin()
        world.propose(world.led[0], 1, 3)
        world.propose(world.led[1], 1, 9)  # no replica
        world.led[2].leader_epoch = 5  # not what the cluster knows
        world.propose(world.led[2], 1)
        world.propose(world.led[3], 1)
        await world.settled()
        assert [one.isr for one in world.led] == [(1, 3), (1, 2, 3), (1, 2, 3), (1,)]
        assert world.log.entries == 1

    run(work())


def test_what_nobody_took_is_proposed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        world = World(3)
        await world.begin()
        world.log.errors.append(Unavailable("no leader"))
        for one in world.led:
            world.propose(one, 1, 2)
        await world.settled()
        assert {one.isr for one in world.led} == {(1, 2)}

    monkeypatch.setattr(isr_module, "PROPOSE_AGAIN_SECONDS", 0.0)
    run(work())


def test_an_error_that_nobody_expects_leaves_no_proposal_waiting() -> None:
    async def work() -> None:
        heard: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: heard.append(about["exception"]))
        world = World(2)
        await world.begin()
        world.log.errors.append(ValueError("a bug"))
        for one in world.led:
            world.propose(one, 1, 2)
        await world.settled()
        await world.until(lambda: len(heard) == 2)
        assert all(isinstance(error, ValueError) for error in heard)
        assert {one.isr for one in world.led} == {(1, 2, 3)}

    run(work())


def test_a_new_epoch_is_asked_for_in_the_same_way() -> None:
    async def work() -> None:
        world = World(2)
        await world.begin()
        for one in world.led:
            world.proposals.propose_new_epoch(one)  # type: ignore[arg-type]

        def epochs() -> list[int]:
            return [one.leader_epoch for one in world.store.state.topics["orders"].partitions]

        await world.until(lambda: epochs() == [1, 1])
        assert world.log.entries == 1
        await world.proposals.stop()

    run(work())
