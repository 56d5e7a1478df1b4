"""Loads that change things while others use them: members of a group, topics, configs, places of replicas.

As in `workload`, each runs in a process of its own until the recorder says stop, and writes down what it saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Final

from chronik.check import Poll
from chronik.client import Admin, Cluster, FetchOptions
from chronik.client.admin import NewTopic
from chronik.client.apis import Api
from chronik.client.fetching import Fetched
from chronik.client.group_consumer import GroupConsumer
from chronik.client.groups import Groups
from chronik.model import ChronikError, TopicPartition
from chronik.sim.workload import OPTIONS, Recorder, decode
from chronik.wire.api import ApiKey

_REASSIGN: Final = Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 0)
_QUICK_GROUPS: Final = {
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100",
}


async def consume_in_group(recorder: Recorder, name: str, rng: random.Random, members: int) -> None:
    """Group members that join, work, commit and leave. Some stop without leaving, so that their sessions have
    to expire."""
    group = f"group-{name}"
    await asyncio.gather(
        *(_member(recorder, f"{name}{number}", group, rng, number * 0.5) for number in range(members)),
        _read_commits(recorder, name, group, rng),
    )


async def _member(recorder: Recorder, name: str, group: str, rng: random.Random, wait_s: float) -> None:
    await asyncio.sleep(wait_s)
    topics = list(dict.fromkeys(tp.topic for tp in recorder.tps))
    life = 0
    while not recorder.stopping:
        life += 1
        with contextlib.suppress(ChronikError, TimeoutError):
            async with Cluster(recorder.bootstrap, OPTIONS) as cluster:
                consumer = GroupConsumer(
                    cluster,
                    group,
                    topics,
                    FetchOptions(max_wait_ms=200),
                    start="earliest",
                    member_id=f"{name}-{life}",
                )
                work = _Work(recorder, f"{name}#{life}", group, consumer)
                try:
                    await work.run(rng)
                finally:
                    await work.end()
        await asyncio.sleep(rng.random() * 0.5)


class _Work:
    """What one member does until it leaves."""

    def __init__(self, recorder: Recorder, process: str, group: str, consumer: GroupConsumer) -> None:
        self._recorder = recorder
        self._process = process
        self._group = group
        self._consumer = consumer
        self._done: list[tuple[float, TopicPartition, int]] = []
        """Records handled since the last commit, with times. The client may commit them at any time."""

    async def run(self, rng: random.Random) -> None:
        recorder, consumer = self._recorder, self._consumer
        until = recorder.loop.now + 1.0 + 4.0 * rng.random()
        expected: dict[TopicPartition, int] = {}
        while not recorder.stopping and recorder.loop.now < until:
            for part in await consumer.poll(timeout_ms=300):
                self._polled(part, expected)
                if rng.random() < 0.5:
                    await self._commit()

    def _polled(self, part: Fetched, expected: dict[TopicPartition, int]) -> None:
        recorder, tp = self._recorder, part.tp
        event = Poll(
            process=self._process,
            start=recorder.loop.now,
            end=recorder.loop.now,
            topic=tp.topic,
            partition=tp.partition,
            position=part.fetch_offset,
            next_position=part.next_offset,
            records=[(record.offset, decode(record.value)) for record in part.records()],
            # A partition that was given to somebody else and came back goes on where the group is.
            sought=part.fetch_offset != expected.get(tp),
        )
        expected[tp] = part.next_offset
        recorder.record(event, f"polls {tp} {part.fetch_offset}..{part.next_offset} as a member")
        if tp in self._consumer.assignment:
            self._done.append((recorder.loop.now, tp, part.next_offset))
            self._consumer.done(tp, part.next_offset)

    async def _commit(self) -> None:
        start, owned = self._recorder.loop.now, self._consumer.assignment
        await self._consumer.commit()
        if self._consumer.assignment == owned:
            newest = {tp: offset for _, tp, offset in self._done if tp in owned}
            self._tell(start)
            for tp, offset in newest.items():
                self._recorder.committed(
                    self._process, self._group, tp, offset, start, outcome="ok", is_read=False
                )

    def _tell(self, end: float) -> None:
        """Record that these may have been committed, but not after `end`."""
        for start, tp, offset in self._done:
            self._recorder.committed(
                self._process, self._group, tp, offset, start, end=end, outcome="info", is_read=False
            )
        self._done.clear()

    async def end(self) -> None:
        try:
            await self._consumer.close()
        finally:
            # The last commit may still arrive, though its answer never came.
            self._tell(self._recorder.loop.now + OPTIONS.deadline_ms / 1000)


async def _read_commits(recorder: Recorder, name: str, group: str, rng: random.Random) -> None:
    """Read the group's committed offsets from outside, so that the checker can tell whether they went
    back."""
    async with Cluster(recorder.bootstrap, OPTIONS) as cluster:
        with contextlib.suppress(ChronikError, TimeoutError):
            await Admin(cluster).alter_config("broker", "", _QUICK_GROUPS)
        while not recorder.stopping:
            await asyncio.sleep(rng.random())
            start = recorder.loop.now
            with contextlib.suppress(ChronikError, TimeoutError):
                found = await Groups(cluster).offsets(group)
                for tp in recorder.tps:
                    recorder.committed(name, group, tp, found[tp].offset if tp in found else -1, start)


async def change_topics(recorder: Recorder, name: str, rng: random.Random) -> None:
    """Create topics, add partitions, change their configs, and delete them."""
    number = 0
    async with Cluster(recorder.bootstrap, OPTIONS) as cluster:
        admin = Admin(cluster)
        while not recorder.stopping:
            number += 1
            topic = f"passing-{name}-{number}"
            with contextlib.suppress(ChronikError, TimeoutError):
                await admin.create_topics([NewTopic(name=topic, partitions=rng.randint(1, 2))])
                await admin.alter_config("topic", topic, {"segment.bytes": str(rng.choice((2_000, 50_000)))})
                if rng.random() < 0.5:
                    await admin.create_partitions(topic, 3)
                await asyncio.sleep(rng.random() * 0.5)
            with contextlib.suppress(ChronikError, TimeoutError):
                await admin.delete_topics([topic])
                recorder.loop.trace.detail(name, f"{topic} has come and gone")
            await asyncio.sleep(rng.random() * 0.5)


async def change_configs(recorder: Recorder, name: str, rng: random.Random) -> None:
    """Change configs of topics in use, to values that the checker knows to be harmless."""
    async with Cluster(recorder.bootstrap, OPTIONS) as cluster:
        while not recorder.stopping:
            await asyncio.sleep(rng.random())
            topic = rng.choice(recorder.tps).topic
            change = rng.choice(
                (
                    {"segment.bytes": str(rng.choice((1_000, 100_000)))},
                    {"index.interval.bytes": str(rng.choice((50, 4_096)))},
                    {"segment.ms": str(rng.choice((300, 604_800_000)))},
                    {"segment.bytes": None, "max.message.bytes": "1000000"},
                )
            )
            with contextlib.suppress(ChronikError, TimeoutError):
                await Admin(cluster).alter_config("topic", topic, change)
                recorder.loop.trace.detail(name, f"{topic} has {change}")


async def move_replicas(recorder: Recorder, name: str, rng: random.Random, nodes: list[int]) -> None:
    """Reassign partitions: drop a replica, add it again, change the preferred order."""
    async with Cluster(recorder.bootstrap, OPTIONS) as cluster:
        while not recorder.stopping:
            await asyncio.sleep(0.3 + rng.random())
            tp = rng.choice(recorder.tps)
            replicas = rng.sample(nodes, rng.choice((len(nodes) - 1, len(nodes))))
            await _reassign(recorder, name, cluster, tp, replicas)
        for tp in recorder.tps:
            await _reassign(recorder, name, cluster, tp, nodes)


async def _reassign(
    recorder: Recorder, name: str, cluster: Cluster, tp: TopicPartition, replicas: list[int]
) -> None:
    partitions = [{"partition_index": tp.partition, "replicas": replicas}]
    fields = {"timeout": 3_000, "topics": [{"name": tp.topic, "partitions": partitions}]}
    with contextlib.suppress(ChronikError, TimeoutError):
        await cluster.retry().run(lambda: cluster.send_controller(_REASSIGN, fields))
        recorder.loop.trace.detail(name, f"{tp} goes to {replicas}")
