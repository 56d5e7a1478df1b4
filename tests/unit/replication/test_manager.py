"""The partitions of a node, kept in step with the metadata."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from chronik.metadata import commands as c
from chronik.metadata.store import MetadataStore
from chronik.metadata.topic_config import TopicConfig
from chronik.model import TopicPartition
from chronik.replication.follower import FollowerLinks
from chronik.replication.manager import CHECK_SECONDS, METADATA_CHECK_SECONDS, ReplicaManager
from chronik.replication.partition import Partition
from chronik.replication.partitions import Partitions
from chronik.sim.disk import DiskView, SimDisk
from chronik.sim.loop import SimLoop
from chronik.storage.recovery import open_store
from chronik.storage.store import LogStore, StoreOptions
from tests.unit.replication.support import context
from tests.unit.server.harness import InstantLog
from tests.unit.storage.support import opened


class NoLinks:
    def partition_assigned(self, partition: Partition) -> None: ...


class World:
    def __init__(self, store: LogStore) -> None:
        self.log = InstantLog()
        self.metadata = MetadataStore(self.log, origin=1)
        self.resolved: list[str] = []
        """Topics whose config was asked for."""
        self.partitions = Partitions()
        self.manager = ReplicaManager(
            partitions=self.partitions,
            context=context(),
            store=store,
            metadata=self.metadata,
            topic_config=self._topic_config,
            follower_links=cast(FollowerLinks, NoLinks()),
            may_lead=lambda: True,
            lag_seconds_max=10.0,
        )
        self.metadata.bus.listen(self.manager.on_event)

    def _topic_config(self, topic: str) -> TopicConfig:
        self.resolved.append(topic)
        return TopicConfig.resolve(self.metadata.state.configs(c.TOPIC_RESOURCE, topic))

    async def begin(self, **topics: int) -> None:
        await self.metadata.submit(c.RegisterBroker(broker_id=1, incarnation=UUID(int=1), endpoints={}))
        for number, (name, count) in enumerate(topics.items(), 100):
            await self.metadata.submit(
                c.CreateTopic(name=name, topic_id=UUID(int=number), assignments=((1,),) * count)
            )
        self.manager.activate()
        self.resolved.clear()

    async def configure(self, resource_type: int, name: str, **values: Any) -> None:
        given = {key.replace("_", "."): str(value) for key, value in values.items()}
        await self.metadata.submit(c.SetConfigs(resource_type=resource_type, name=name, values=given))


def there(world: World) -> dict[str, list[int]]:
    """As all three indexes have it."""
    by_topic = {topic: sorted(found) for topic, found in world.partitions.by_topic.items()}
    for index in (world.partitions.by_tp, world.partitions.by_id):
        names = [partition.tp for partition in index.values()]
        assert sorted(names) == sorted(TopicPartition(topic, n) for topic, ns in by_topic.items() for n in ns)
    return by_topic


async def test_a_deleted_topic_takes_its_partitions_along_and_no_others(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        world = World(store)
        await world.begin(one=3, two=2)
        assert there(world) == {"one": [0, 1, 2], "two": [0, 1]}
        await world.metadata.submit(c.DeleteTopic(topic_id=UUID(int=100)))
        assert there(world) == {"two": [0, 1]}
        await world.manager.close()


async def test_a_config_that_changes_is_looked_up_for_whom_it_concerns(tmp_path: Path) -> None:
    """A node has thousands of topics: a change of one is none of the others' business."""
    async with opened(tmp_path) as (store, _):
        world = World(store)
        await world.begin(one=2, two=2, three=1)
        await world.configure(c.TOPIC_RESOURCE, "two", retention_ms=5)
        assert world.resolved == ["two"]
        shown = {tp: one.config.retention_ms for tp, one in world.partitions.by_tp.items()}
        assert {tp.topic for tp, value in shown.items() if value == 5} == {"two"}
        world.resolved.clear()
        await world.configure(c.GROUP_RESOURCE, "billing", consumer_session_timeout_ms=50_000)
        assert world.resolved == []
        await world.configure(c.BROKER_RESOURCE, "", log_retention_ms=7)
        assert world.resolved == ["one", "two", "three"]
        await world.manager.close()


def test_what_no_event_told_of_is_found_within_a_second() -> None:
    """S10: the check behind the events. Replicas that are in line are left alone."""
    loop = SimLoop(random.Random(1))

    async def main() -> None:
        view = DiskView(SimDisk(random.Random(1)), loop.world, loop, lambda why: None)
        store, _ = open_store(view, Path("/data"), StoreOptions())
        world = World(store)
        await world.begin(one=3, gone=1)
        state = world.metadata.state
        wait = METADATA_CHECK_SECONDS + CHECK_SECONDS
        assert wait <= 1.25
        await asyncio.sleep(wait)
        touched: list[TopicPartition] = []
        update = world.manager._update

        def spy(tp: TopicPartition, *rest: Any) -> None:
            touched.append(tp)
            update(tp, *rest)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(world.manager, "_update", spy)
            new = c.CreateTopic(name="new", topic_id=UUID(int=500), assignments=((1,), (2,)))
            moved = c.Reassign(topic_id=UUID(int=100), partition=1, target=(1, 2))
            other = c.RegisterBroker(broker_id=2, incarnation=UUID(int=2), endpoints={})
            for command in (other, new, moved, c.DeleteTopic(topic_id=UUID(int=101))):
                assert state.apply(command, state.applied_index + 1).refused is None
            assert there(world) == {"one": [0, 1, 2], "gone": [0]}, "nothing was published"
            await asyncio.sleep(wait)
            assert there(world) == {"one": [0, 1, 2], "new": [0]}
            assert touched == [TopicPartition("one", 1), TopicPartition("new", 0)]
            held = world.partitions.by_tp[TopicPartition("one", 1)]
            assert held.partition_epoch == state.topics["one"].partitions[1].partition_epoch
            touched.clear()
            await asyncio.sleep(10 * wait)
            assert touched == []
        await world.manager.close()

    loop.run(main(), seconds_max=100, steps_max=1_000_000)
    assert loop.failures == []
