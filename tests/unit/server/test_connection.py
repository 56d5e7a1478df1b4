"""Requests of one connection: answered in order, and those that ask for news not before it is their turn."""

from __future__ import annotations

import asyncio
from typing import Any

from chronik.model import Limits
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.listener import KafkaListener
from chronik.wire.api import ApiKey
from chronik.wire.schema import decode_response, encode_request
from tests.unit.server.harness import Harness


def test_metadata_behind_a_slow_request_is_as_new_as_the_moment_it_leaves() -> None:
    """Otherwise a client that waits for a produce request hears afterwards who led before it."""
    news = ["old"]
    begun, go_on = asyncio.Event(), asyncio.Event()
    started: list[str] = []

    @handles(ApiKey.HEARTBEAT, versions=(0, 4))
    async def slow(request: Any, ctx: RequestContext) -> Reply:
        started.append("slow")
        begun.set()
        await go_on.wait()
        return reply(error_code=0)

    @handles(ApiKey.METADATA, versions=(0, 13), in_turn=True)
    async def metadata(request: Any, ctx: RequestContext) -> Reply:
        started.append("metadata")
        return reply(cluster_id=news[0], brokers=[], topics=[], controller_id=1)

    harness = Harness(handlers=[slow, metadata])

    async def run() -> None:
        listener = KafkaListener(dispatcher=harness.dispatcher, limits=Limits(), pressures=())
        port = await listener.bind("127.0.0.1", 0)
        await listener.serve()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(encode_request(ApiKey.HEARTBEAT, 4, 1, "test", {"group_id": "g"}))
            writer.write(encode_request(ApiKey.METADATA, 12, 2, "test", {"topics": []}))
            writer.write(encode_request(ApiKey.METADATA, 12, 3, "test", {"topics": []}))
            await begun.wait()
            await asyncio.sleep(0)
            news[0] = "new"
            go_on.set()
            assert (await read(reader, ApiKey.HEARTBEAT, 4))[0] == 1
            for number in (2, 3):
                correlation_id, answer = await read(reader, ApiKey.METADATA, 12)
                assert (correlation_id, answer.cluster_id) == (number, "new")
            assert started == ["slow", "metadata", "metadata"]
        finally:
            writer.close()
            await listener.stop()

    async def read(reader: asyncio.StreamReader, api_key: ApiKey, version: int) -> tuple[int, Any]:
        async with asyncio.timeout(60):
            size = await reader.readexactly(4)
            frame = await reader.readexactly(int.from_bytes(size, "big"))
        return decode_response(api_key, version, size + frame, 4)

    asyncio.run(run())
