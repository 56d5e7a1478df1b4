"""What clients are told between a node's death and the cluster's decision about it."""

from __future__ import annotations

import asyncio
from uuid import UUID

from chronik.cluster.presence import DOUBT_SECONDS_MAX, NAMED_SECONDS
from chronik.metadata import commands as c
from chronik.metadata import events as e
from chronik.model import ErrorCode, NodeId
from chronik.wire.api import ApiKey, parse_request_header
from chronik.wire.schema import decode_response, encode_request
from tests.unit.server.harness import Harness, answer

TURNS = 20


def fence(harness: Harness, broker_id: NodeId) -> c.FenceBroker:
    return c.FenceBroker(broker_id=broker_id, broker_epoch=harness.store.state.brokers[broker_id].epoch)


def named(harness: Harness) -> list[NodeId]:
    return [broker.node_id for broker in harness.call(ApiKey.METADATA, 12, topics=[]).brokers]


class Asked:
    """A request that is under way."""

    def __init__(self, harness: Harness, api_key: ApiKey, version: int, **fields: object) -> None:
        frame = encode_request(api_key, version, 1, "test", fields)
        header, offset = parse_request_header(frame, 4)
        self._key, self._version = api_key, version
        self._task = asyncio.ensure_future(answer(harness.dispatcher, header, frame, offset))

    async def is_answered_now(self) -> bool:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return self._task.done()

    async def answer(self) -> object:
        frame = await self._task
        assert frame is not None
        return decode_response(self._key, self._version, frame, 4)[1]


def ask_for_orders(harness: Harness) -> Asked:
    return Asked(harness, ApiKey.METADATA, 12, topics=[{"name": "orders"}])


def test_a_fenced_broker_is_named_for_a_while() -> None:
    """A client that drops the old leader in the answer that names the new one may lose both."""
    harness = Harness()
    harness.submit(fence(harness, 2))
    assert named(harness) == [1, 2, 3]
    harness.now += NAMED_SECONDS + 0.1
    assert named(harness) == [1, 3]
    harness.submit(c.UnfenceBroker(broker_id=2, broker_epoch=harness.store.state.brokers[2].epoch))
    assert named(harness) == [1, 2, 3]


def test_who_asks_for_a_leader_that_just_died_hears_of_its_successor() -> None:
    harness = Harness()
    harness.topic("orders", (1, 2, 3))

    async def run() -> None:
        harness.disconnected_since[1] = harness.now
        asked = ask_for_orders(harness)
        assert not await asked.is_answered_now()
        await harness.store.submit(fence(harness, 1))
        answer = await asked.answer()
        assert answer.topics[0].partitions[0].leader_id == 2  # type: ignore[attr-defined]
        assert [broker.node_id for broker in answer.brokers] == [1, 2, 3]  # type: ignore[attr-defined]

    asyncio.run(run())


def test_other_leaders_are_told_at_once() -> None:
    harness = Harness()
    harness.topic("orders", (2, 3, 1))
    harness.topic("others", (1, 3, 2))

    async def run() -> None:
        harness.disconnected_since[1] = harness.now
        assert await ask_for_orders(harness).is_answered_now()
        by_id = {"name": None, "topic_id": harness.store.state.topics["others"].topic_id}
        for topics in (None, [{"name": "others"}], [by_id]):
            asked = Asked(harness, ApiKey.METADATA, 12, topics=topics)
            assert not await asked.is_answered_now()
        harness.disconnected_since.clear()  # it is back
        await asked.answer()

    asyncio.run(run())


def test_a_leader_that_only_this_node_lost_is_named_again_after_a_moment() -> None:
    harness = Harness()
    harness.topic("orders", (1, 2, 3))

    async def run() -> None:
        harness.disconnected_since[1] = harness.now
        asked = ask_for_orders(harness)
        assert not await asked.is_answered_now()
        harness.now += DOUBT_SECONDS_MAX
        answer = await asked.answer()
        assert answer.topics[0].partitions[0].leader_id == 1  # type: ignore[attr-defined]
        assert await ask_for_orders(harness).is_answered_now()

    asyncio.run(run())


def test_only_a_refusal_that_was_asked_for_since_tells_of_a_death() -> None:
    """One of before may be about a former process, or a time at which this one did not listen yet."""
    harness = Harness()
    presence = harness.presence
    harness.now += 10
    presence.refused(2, harness.now)
    assert not presence.is_dead(2), "it is connected"
    harness.disconnected_since[2] = harness.now + 1
    assert not presence.is_dead(2), "that was before its connections broke"
    presence.refused(2, harness.now + 2)
    assert presence.is_dead(2)
    assert not presence.is_dead(3)
    harness.now += 5
    harness.submit(
        c.RegisterBroker(
            broker_id=2, incarnation=UUID(int=99), endpoints=harness.store.state.brokers[2].endpoints
        )
    )
    assert not presence.is_dead(2), "that was the process before this one"
    presence.refused(2, harness.now - 0.1)
    assert not presence.is_dead(2)
    presence.refused(2, harness.now)
    assert presence.is_dead(2)
    harness.now += 1
    presence.on_event(e.Resync())
    assert not presence.is_dead(2), "nobody knows since when the snapshot has it"


def test_who_looks_for_a_coordinator_that_just_died_hears_of_its_successor() -> None:
    harness = Harness(offsets_topic_partitions=1)
    found = harness.call(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"]).coordinators[0]

    async def run() -> None:
        harness.disconnected_since[found.node_id] = harness.now
        asked = Asked(harness, ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"])
        assert not await asked.is_answered_now()
        await harness.store.submit(fence(harness, found.node_id))
        (successor,) = (await asked.answer()).coordinators  # type: ignore[attr-defined]
        assert successor.error_code == ErrorCode.none
        assert successor.node_id != found.node_id

    asyncio.run(run())
