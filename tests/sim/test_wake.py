"""A long poll is answered by the commit, not by its time-out (S26). The clock is virtual: times are exact."""

from __future__ import annotations

import asyncio

import pytest

from chronik.client import Cluster, Consumer, FetchOptions, Producer
from chronik.client.admin import NewTopic
from chronik.model import TopicPartition
from chronik.sim.loop import EPOCH_MS
from chronik.sim.workload import PATIENT
from tests.sim.quiet import Quiet

TP = TopicPartition("orders", 0)
MAX_WAIT_MS = 8_000
WAKE_SECONDS_MAX = 0.002


class Reading(Quiet):
    async def read_one(self) -> float:
        """When the answer with a record came, as the consumer saw it."""
        async with (
            Cluster(self.addresses, PATIENT) as cluster,
            Consumer(cluster, FetchOptions(max_wait_ms=MAX_WAIT_MS)) as consumer,
        ):
            consumer.assign({TP: 0})
            fetched = await consumer.poll()
            assert [part.next_offset for part in fetched] == [1]
            return self.world.loop.now

    async def send_one(self) -> tuple[float, float]:
        """When a record was sent, and when the answer came: with acks=all, after the commit."""
        async with Cluster(self.addresses, PATIENT) as cluster, Producer(cluster) as producer:
            await cluster.find_leaders([TP])
            sent = self.world.loop.now
            await (await producer.send(TP.topic, b"value", partition=0, timestamp_ms=EPOCH_MS))
            return sent, self.world.loop.now


@pytest.mark.parametrize("count", [1, 3])
def test_a_long_poll_is_answered_by_the_commit(count: int) -> None:
    quiet = Reading(count)

    async def main() -> tuple[float, float, float, float]:
        await quiet.start()
        await quiet.create(NewTopic(name=TP.topic, partitions=1))
        asked = quiet.world.loop.now
        reading = quiet.spawn(quiet.read_one())
        await asyncio.sleep(MAX_WAIT_MS / 1000 / 3)  # of virtual time: the poll is waiting by now
        assert not reading.done()
        sent, acknowledged = await quiet.spawn(quiet.send_one())
        answered = await reading
        await quiet.cluster.stop()
        return asked, sent, acknowledged, answered

    asked, sent, acknowledged, answered = quiet.world.run(main(), seconds_max=300, steps_max=3_000_000)
    assert sent < answered < asked + MAX_WAIT_MS / 1000, "the time-out answered it"
    # Both answers leave the leader when the watermark moves, and travel for the same time.
    assert abs(answered - acknowledged) < WAKE_SECONDS_MAX
