"""kill -9 at random moments under acks=all load (S23)."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from tests.compat.clients import Confluent
from tests.crash.load import Ledger, lost_records, read_partition, strange_records, write
from tests.node import ChronikNode

WRITERS = (0, 0, 1, 2)
"""The partition of each writer; two share one."""
PARTITIONS = 3


async def load_until_killed(node: ChronikNode, ledger: Ledger, kill_after: int, sizes: list[int]) -> None:
    """Write from all sides; the process dies as soon as so many more records are acknowledged."""
    target = len(ledger.acknowledged) + kill_after

    def killed() -> bool:
        if node.running and len(ledger.acknowledged) >= target:
            node.kill()
        return False

    async with asyncio.timeout(60):
        codes = await asyncio.gather(
            *(
                write(ledger, node.kafka_port, writer, partition, killed, size)
                for writer, (partition, size) in enumerate(zip(WRITERS, sizes, strict=True))
            )
        )
    assert not any(codes), codes
    assert not node.running


def test_nothing_acknowledged_is_lost(node: ChronikNode, request: pytest.FixtureRequest) -> None:
    rounds = request.config.getoption("--crash-rounds")
    source = random.Random(rounds)
    node.start()
    Confluent(node.bootstrap).create("crash", PARTITIONS)
    ledger = Ledger("crash")
    for number in range(rounds):
        sizes = [source.choice((0, 100, 5_000)) for _ in WRITERS]
        asyncio.run(load_until_killed(node, ledger, source.randint(1, 2_000), sizes))
        for _ in range(source.choice((0, 0, 1, 2))):  # and again while it recovers
            node.spawn()
            time.sleep(source.uniform(0, 0.5))
            node.kill()
        node.start()
        if number == rounds - 1 or number % 10 == 9:
            log = {
                partition: read_partition(node.bootstrap, "crash", partition)
                for partition in range(PARTITIONS)
            }
            assert not lost_records(ledger, log)[:5]
            assert not strange_records(ledger, log)[:5]
            assert sum(map(len, log.values())) >= len(ledger.acknowledged) > 0
