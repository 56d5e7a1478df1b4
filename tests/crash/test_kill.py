"""kill -9 at random moments under acks=all load (S23)."""

from __future__ import annotations

import asyncio
import random
import re
import time
import urllib.request

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.load import Ledger, lost_records, read_partition, strange_records, write
from tests.node import ChronikNode
from tests.process import HOST

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


async def load_a_little(node: ChronikNode, ledger: Ledger) -> None:
    target = len(ledger.acknowledged) + 50
    code = await write(ledger, node.kafka_port, 0, 0, lambda: len(ledger.acknowledged) >= target, 100)
    assert not code


@pytest.mark.parametrize("configs", [{}, {"flush.ms": "60000"}], ids=["synced", "relaxed"])
def test_nothing_acknowledged_is_lost(
    node: ChronikNode, request: pytest.FixtureRequest, configs: dict[str, str]
) -> None:
    """Nor from a topic that acknowledges before it syncs: what the page cache has outlives the process."""
    rounds = request.config.getoption("--crash-rounds")
    source = random.Random(rounds)
    node.start()
    topic = NewTopic("crash", PARTITIONS, 1, config=configs)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([topic])["crash"].result(30)
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
    if configs:
        asyncio.run(load_a_little(node, ledger))
        url = f"http://{HOST}:{node.settings['http_port']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = re.search(rb"^chronik_wal_relaxed_rounds_total (\S+)", answer.read(), flags=re.M)
        assert found is not None
        assert float(found[1]) > 0
