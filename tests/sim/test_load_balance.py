"""Leaders leave a node that carries much more than the others, and stay where they are after that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chronik.client import Cluster, Producer
from chronik.client.admin import NewTopic
from chronik.model import TopicPartition
from chronik.sim.loop import EPOCH_MS
from chronik.sim.workload import PATIENT
from tests.sim.quiet import Quiet

TOPIC = "orders"
PARTITIONS = 6
NODES = 3
INTERVAL_MS = 1_000
MOVES_MAX = 8


class _Loaded(Quiet):
    def __init__(self, **more: Any) -> None:
        super().__init__(NODES, load_balance_interval_ms=INTERVAL_MS, load_balance_min_bytes=1_000, **more)
        self.busy: tuple[int, ...] = ()
        """Partitions that are written to."""

    async def write(self) -> None:
        async with Cluster(self.addresses, PATIENT) as cluster, Producer(cluster) as producer:
            while True:
                for number in self.busy:
                    await (await producer.send(TOPIC, b"x" * 1_000, partition=number, timestamp_ms=EPOCH_MS))
                await asyncio.sleep(0.02)

    def leaders(self) -> dict[int, int]:
        state = self.cluster.nodes[0].node.parts.metadata.state  # type: ignore[union-attr]
        found = {number: state.partition(TopicPartition(TOPIC, number)) for number in range(PARTITIONS)}
        return {number: one.leader for number, one in found.items() if one is not None}

    def led_busily(self) -> dict[int, int]:
        leaders = self.leaders()
        counts = dict.fromkeys(range(1, NODES + 1), 0)
        for number in self.busy:
            counts[leaders[number]] += 1
        return counts

    def moved(self) -> int:
        return sum(
            sum(node.node.parts.load_balancer.moved.values())  # type: ignore[union-attr]
            for node in self.cluster.nodes
        )


@pytest.mark.parametrize("mode", ["leaders", "off"])
def test_busy_leaders_are_spread(mode: str) -> None:
    loaded = _Loaded(load_balance=mode)

    async def main() -> None:
        await loaded.start()
        await loaded.create(NewTopic(name=TOPIC, partitions=PARTITIONS))
        first = loaded.leaders()
        victim = first[0]
        loaded.busy = tuple(number for number, leader in first.items() if leader == victim)
        assert len(loaded.busy) == PARTITIONS // NODES
        writing = loaded.spawn(loaded.write())
        if mode == "off":
            await asyncio.sleep(20 * INTERVAL_MS / 1000)  # of virtual time
            assert loaded.leaders() == first
        else:
            await loaded.cluster.until(
                lambda: max(loaded.led_busily().values()) == 1, "busy partitions have leaders apart", 60.0
            )
            settled, moved = loaded.leaders(), loaded.moved()
            await asyncio.sleep(20 * INTERVAL_MS / 1000)
            assert (loaded.leaders(), loaded.moved()) == (settled, moved), "it does not go to and fro"
            assert moved <= MOVES_MAX
        assert not writing.done(), "the producer never failed"
        writing.cancel()
        await loaded.cluster.stop()

    loaded.world.run(main(), seconds_max=600, steps_max=20_000_000)
