"""A fetch that finds nothing is answered when its time is up, whatever the loop's clock says then."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path

import uvloop

from chronik.wire.api import ApiKey
from chronik.wire.schema import encode_request
from tests.unit.server.live import live

FETCHES = 200
DEADLINE_S = 60


def test_no_empty_fetch_waits_for_ever(tmp_path: Path) -> None:
    async def main() -> None:
        async with live(tmp_path) as node:
            await node.topic("quiet")
            reader, writer = await asyncio.open_connection("127.0.0.1", node.node.kafka_port)
            for number in range(FETCHES):
                # uvloop counts in whole milliseconds: at the end of a wait, the time is often a hair short.
                fields = {
                    "max_wait": datetime.timedelta(milliseconds=1 + number % 7),
                    "min_bytes": 1,
                    "topics": [
                        {"topic": "quiet", "partitions": [{"partition": 0, "partition_max_bytes": 100}]}
                    ],
                }
                writer.write(bytes(encode_request(ApiKey.FETCH, 11, number, "patient", fields)))
                size = await asyncio.wait_for(reader.readexactly(4), DEADLINE_S)
                answer = await reader.readexactly(int.from_bytes(size))
                assert int.from_bytes(answer[:4]) == number
            writer.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
