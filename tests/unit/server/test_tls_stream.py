"""TLS on a Kafka listener: what it costs an idle client, and what half of a handshake may hold."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.server import tls_stream
from chronik.testing import free_ports
from chronik.wire.api import ApiKey
from chronik.wire.schema import decode_response, encode_request
from tests.process import HOST
from tests.tls import make_certificate
from tests.unit.server.live import Live, live


@asynccontextmanager
async def secured(folder: Path, **settings: Any) -> AsyncIterator[tuple[Live, int, ssl.SSLContext]]:
    cert, key = make_certificate(folder)
    (port,) = free_ports(1)
    async with live(
        folder / "data",
        listeners=f"CLIENTS://{HOST}:{port}",
        listener_security_protocol_map="CLIENTS:SSL",
        kafka_tls_cert=cert,
        kafka_tls_key=key,
        **settings,
    ) as node:
        yield node, port, ssl.create_default_context(cafile=str(cert))


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, api_key: ApiKey, version: int, **fields: Any
) -> Any:
    writer.write(encode_request(api_key, version, 1, "client", fields))
    size = int.from_bytes(await reader.readexactly(4), "big")
    return decode_response(api_key, version, await reader.readexactly(size))[1]


def streams(node: Live) -> list[Any]:
    return [connection._transport for connection in node.node.parts.listener._connections]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_large_requests_and_answers(tmp_path: Path, version: ssl.TLSVersion) -> None:
    async with secured(tmp_path) as (node, port, context):
        context.maximum_version = version
        await node.topic("orders")
        reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
        value = bytes(range(256)) * 4_000
        records = bytes(build_batch([Record(key=None, value=value, timestamp_ms=1)]))
        data = [{"name": "orders", "partition_data": [{"index": 0, "records": records}]}]
        done = await ask(reader, writer, ApiKey.PRODUCE, 9, acks=1, timeout=1000, topic_data=data)
        assert done.responses[0].partition_responses[0].error_code == 0
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 24}
        wanted = [{"topic": "orders", "partitions": [part]}]
        limits = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 24}
        got = await ask(reader, writer, ApiKey.FETCH, 12, topics=wanted, **limits)
        assert value in got.responses[0].partitions[0].records
        (stream,) = streams(node)
        assert not stream._incoming.pending
        assert not stream._outgoing.pending
        writer.close()
        await writer.wait_closed()


async def test_requests_in_small_pieces_and_many_at_once(tmp_path: Path) -> None:
    """Records, frames and reads of the socket begin and end where they like."""
    async with secured(tmp_path) as (_, port, context):
        reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
        frames = b"".join(
            encode_request(ApiKey.API_VERSIONS, 0, number, "x" * number, {}) for number in range(300)
        )
        for start in range(0, len(frames), 997):
            writer.write(frames[start : start + 997])
            await writer.drain()
        for number in range(300):
            size = int.from_bytes(await reader.readexactly(4), "big")
            assert decode_response(ApiKey.API_VERSIONS, 0, await reader.readexactly(size))[0] == number
        writer.close()


async def test_a_handshake_that_does_not_come_is_counted_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_stream, "HANDSHAKE_SECONDS_MAX", 0.3)
    async with secured(tmp_path, connections_per_ip_max=3) as (node, port, context):
        silent = [await asyncio.open_connection(HOST, port) for _ in range(3)]
        silent[1][1].write(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello
        listener = node.node.parts.listener
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await asyncio.open_connection(HOST, port, ssl=context)
        assert listener.stats.refused["per_ip"] == 1
        for reader, _ in silent:
            assert await asyncio.wait_for(reader.read(), 5) == b""
        assert listener.connection_count == 0
        reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
        assert (await ask(reader, writer, ApiKey.API_VERSIONS, 0)).error_code == 0
        writer.close()


async def test_what_is_no_tls_ends_its_connection_alone(tmp_path: Path) -> None:
    async with secured(tmp_path) as (_, port, context):
        good_reader, good_writer = await asyncio.open_connection(HOST, port, ssl=context)
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(encode_request(ApiKey.API_VERSIONS, 0, 1, "in the clear", {}))
        assert b"in the clear" not in await asyncio.wait_for(reader.read(), 5), "an alert, and the end"
        assert (await ask(good_reader, good_writer, ApiKey.API_VERSIONS, 0)).error_code == 0
        good_writer.close()


async def test_connections_beyond_the_rate_wait_and_then_are_refused(tmp_path: Path) -> None:
    """Ten seconds' worth at once, five seconds' worth held back, no more."""
    async with secured(tmp_path, connections_per_second_max=1) as (node, port, context):
        first = [await asyncio.open_connection(HOST, port, ssl=context) for _ in range(10)]
        loop = asyncio.get_running_loop()
        began = loop.time()
        waiting = [asyncio.create_task(asyncio.open_connection(HOST, port, ssl=context)) for _ in range(7)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        refused = [task for task in waiting if task.done() and task.exception() is not None]
        assert refused
        assert node.node.parts.listener.stats.refused["rate"] == len(refused)
        assert node.node.parts.listener.stats.throttled_connections >= 4
        served = [task for task in waiting if task not in refused]
        await asyncio.wait(served, return_when=asyncio.FIRST_COMPLETED)
        assert 0.5 < loop.time() - began < 3, "the next one came in after a second"
        for task in waiting:
            task.cancel()
        for _, writer in first:
            writer.close()
