"""How many bytes a fetch brings: only its first partition with records may exceed the limit (KIP-74)."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from chronik.client.apis import Api
from chronik.client.connection import Connection
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.wire.api import ApiKey
from tests.unit.server.live import Live, live
from tests.unit.server.test_produce_order import connect

FETCH_V11 = Api(ApiKey.FETCH, 11, 11)
PRODUCE_V8 = Api(ApiKey.PRODUCE, 8, 8)
PARTITIONS = 6


async def fill(connection: Connection, random: Random) -> list[list[int]]:
    """Batches of very different sizes, some partitions empty; the sizes, per partition."""
    sizes: list[list[int]] = []
    for partition in range(PARTITIONS):
        counts = [random.choice([1, 100, 900, 5_000, 40_000]) for _ in range(random.randrange(5))]
        batches = [build_batch([Record(key=None, value=b"v" * count, timestamp_ms=1)]) for count in counts]
        for batch in batches:
            data = [{"name": "t", "partition_data": [{"index": partition, "records": batch}]}]
            fields = {"acks": -1, "timeout": 10_000, "topic_data": data}
            answer: Any = await connection.request(PRODUCE_V8, fields)
            assert answer.responses[0].partition_responses[0].error_code == 0
        sizes.append([len(batch) for batch in batches])
    return sizes


def allowed(sizes: list[int], limit: int, is_first: bool) -> tuple[int, int]:
    """At least and at most so many bytes of one partition, whose batches have these sizes."""
    whole = 0
    for size in sizes:
        if whole + size > limit and not (is_first and whole == 0):
            break
        whole += size
    # The last batch may be cut off at the limit, as Kafka's may; a first one never is.
    return whole, max(whole, min(limit, sum(sizes))) if whole else 0


async def check(node: Live, sizes: list[list[int]], random: Random) -> None:
    connection = await connect(node)
    order = random.sample(range(PARTITIONS), PARTITIONS)
    max_bytes = random.choice([0, 1, 1_000, 6_000, 50_000, 10**6])
    partition_max = random.choice([1, 1_000, 20_000, 10**6])
    wanted = [{"partition": one, "partition_max_bytes": partition_max} for one in order]
    answer: Any = await connection.request(
        FETCH_V11,
        {
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": max_bytes,
            "topics": [{"topic": "t", "partitions": wanted}],
        },
    )
    got = [len(one.records or b"") for one in answer.responses[0].partitions]
    room, is_first = max_bytes, True
    for partition, size in zip(order, got, strict=True):
        least, most = allowed(sizes[partition], min(room, partition_max), is_first)
        assert least <= size <= most
        room, is_first = max(room - size, 0), is_first and not size
    assert any(got) == any(sizes)  # progress, whatever the limits
    connection.close()


@pytest.mark.parametrize("is_cold", [False, True])
async def test_no_answer_exceeds_its_limit_by_more_than_the_first_batch(
    tmp_path: Path, is_cold: bool
) -> None:
    random = Random(1 + is_cold)
    async with live(tmp_path) as node:
        await node.topic("t", PARTITIONS)
        connection = await connect(node)
        sizes = await fill(connection, random)
        connection.close()
        if not is_cold:
            for _ in range(60):
                await check(node, sizes, random)
    if is_cold:
        for _ in range(4):  # the first fetch after a start reads files whose indexes are not loaded yet
            async with live(tmp_path) as node:
                for _ in range(10):
                    await check(node, sizes, random)
