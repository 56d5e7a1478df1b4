"""Requests of one connection: answered in order, and those that ask for news not before it is their turn."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from chronik.model import Limits
from chronik.server.dispatch import Call, Reply, RequestContext, handles, handles_hot, reply
from chronik.server.gate import NOTHING
from chronik.server.listener import KafkaListener
from chronik.wire.api import ApiKey
from chronik.wire.produce import ProduceRequest, decode_produce
from chronik.wire.schema import decode_response, encode_request
from tests.unit.server.harness import Harness


def unread(_frame: memoryview, _offset: int, _context: RequestContext) -> None:
    pass


def decoded(frame: memoryview, offset: int, context: RequestContext) -> ProduceRequest:
    return decode_produce(frame, offset, context.api_version)


async def read(reader: asyncio.StreamReader, api_key: ApiKey, version: int) -> tuple[int, Any]:
    async with asyncio.timeout(60):
        size = await reader.readexactly(4)
        frame = await reader.readexactly(int.from_bytes(size, "big"))
    return decode_response(api_key, version, size + frame, 4)


def test_large_answers_are_made_one_by_one_however_close_their_requests_came() -> None:
    """Thirty requests in one read of the socket, each answered at once: not thirty answers in memory."""
    requests, answer_bytes = 30, 16_000_000
    started: list[int] = []

    @handles_hot(ApiKey.FETCH, versions=(4, 18), needs=NOTHING, in_turn=True, reads=unread)
    def fetch(call: Call[object]) -> None:
        correlation_id = call.correlation_id
        started.append(correlation_id)
        call.responder.respond([struct.pack(">ii", answer_bytes + 4, correlation_id), bytes(answer_bytes)])

    @handles(ApiKey.HEARTBEAT, versions=(0, 4), needs=NOTHING)
    async def heartbeat(request: Any, ctx: RequestContext) -> Reply:
        return reply(error_code=0)

    harness = Harness(handlers=[fetch, heartbeat])

    async def run() -> None:
        listener = KafkaListener(dispatcher=harness.dispatcher, limits=Limits(), pressures=())
        port = await listener.bind("127.0.0.1", 0)
        await listener.serve()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        other, beside = await asyncio.open_connection("127.0.0.1", port)
        try:
            ask = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1, "isolation_level": 0, "topics": []}
            writer.writelines(encode_request(ApiKey.FETCH, 4, n, "deaf", ask) for n in range(requests))
            beside.write(encode_request(ApiKey.HEARTBEAT, 4, 1, "test", {"group_id": "g"}))
            await read(other, ApiKey.HEARTBEAT, 4)
            # The kernel may take most of the first, and the client reads a little by itself.
            assert len(started) <= 3
            for number in range(requests):
                async with asyncio.timeout(60):
                    head = await reader.readexactly(8)
                    await reader.readexactly(answer_bytes)
                assert struct.unpack(">ii", head) == (answer_bytes + 4, number)
            assert started == list(range(requests))
        finally:
            writer.close()
            beside.close()
            await listener.stop()

    asyncio.run(run())


def test_metadata_behind_a_slow_request_is_as_new_as_the_moment_it_leaves() -> None:
    """Otherwise a client that waits for a produce request hears afterwards who led before it."""
    news = ["old"]
    begun, go_on = asyncio.Event(), asyncio.Event()
    started: list[str] = []

    @handles(ApiKey.HEARTBEAT, versions=(0, 4), needs=NOTHING)
    async def slow(request: Any, ctx: RequestContext) -> Reply:
        started.append("slow")
        begun.set()
        await go_on.wait()
        return reply(error_code=0)

    @handles(ApiKey.METADATA, versions=(0, 13), needs=NOTHING, in_turn=True)
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

    asyncio.run(run())


def test_an_answer_that_is_about_to_leave_is_not_lost_when_the_node_stops() -> None:
    stops: list[asyncio.Task[None]] = []

    @handles_hot(ApiKey.PRODUCE, versions=(3, 13), needs=NOTHING, reads=decoded)
    def produce(call: Call[object]) -> None:
        stops.append(asyncio.get_running_loop().create_task(stop()))
        call.responder.respond([struct.pack(">ii", 4, call.correlation_id)])

    harness = Harness(handlers=[produce])
    listeners: list[KafkaListener] = []

    async def stop() -> None:
        await listeners[0].stop()

    async def run() -> None:
        listener = KafkaListener(dispatcher=harness.dispatcher, limits=Limits(), pressures=())
        listeners.append(listener)
        port = await listener.bind("127.0.0.1", 0)
        await listener.serve()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(encode_request(ApiKey.PRODUCE, 3, 9, "test", {"acks": 1}))
        async with asyncio.timeout(60):
            assert await reader.readexactly(8) == struct.pack(">ii", 4, 9)
            await stops[0]
        writer.close()

    asyncio.run(run())
