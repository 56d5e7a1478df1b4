"""A real node and clients that send nonsense: nobody crashes, nobody hangs, nobody else notices."""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path
from typing import NamedTuple

import pytest

from chronik.config import Settings
from chronik.model import ErrorCode
from chronik.node import Node
from chronik.wire.api import ApiKey
from chronik.wire.schema import decode_response, encode_request, schema_versions
from tests.unit.wire.test_schema import Generator, load_request_schema, mutated

DEADLINE_S = 20
MAY_WAIT = {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}


def reframed(data: bytes) -> bytes:
    """The same bytes with the length they really have, so that they get past the framing."""
    return (len(data) - 4).to_bytes(4, "big") + data[4:] if len(data) > 4 else data


class Message(NamedTuple):
    data: bytes
    is_answered: bool
    """Well-formed, and nothing that waits or wants no answer: there must be one."""


def hostile(pick: random.Random, ranges: dict[ApiKey, tuple[int, int]]) -> Message:
    key = pick.choice(list(ranges))
    low, high = max(ranges[key][0], schema_versions(key)[0]), ranges[key][1]
    version = pick.randint(low, high)
    fields = Generator(pick.random()).fields(load_request_schema(key, version))
    frame = encode_request(key, version, pick.randrange(1 << 31), "hostile", fields)
    match pick.randrange(6):
        case 0 | 1:
            return Message(frame, key not in MAY_WAIT)
        case 2 | 3:
            return Message(reframed(mutated(pick, frame)), False)
        case 4:
            return Message(frame[: pick.randrange(len(frame))], False)
        case _:
            return Message(pick.randbytes(pick.randrange(1, 60)), False)


async def send_and_hang_up(port: int, message: Message) -> None:
    """The node must let go of the connection whatever it made of the bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(DEADLINE_S):
            writer.write(message.data)
            if message.is_answered:
                size = int.from_bytes(await reader.readexactly(4), "big")
                assert (await reader.readexactly(size))[:4] == message.data[8:12]
            writer.write_eof()
            while await reader.read(1 << 16):
                pass
    except ConnectionError:
        assert not message.is_answered
    finally:
        writer.close()


class GoodClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self) -> None:
        self.writer.write(encode_request(ApiKey.METADATA, 12, 7, "good", {"topics": [{"name": "good"}]}))
        async with asyncio.timeout(DEADLINE_S):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            correlation_id, response = decode_response(
                ApiKey.METADATA, 12, await self.reader.readexactly(size)
            )
        assert correlation_id == 7
        assert response.topics[0].error_code == ErrorCode.none


@pytest.mark.parametrize("seed", range(4))
async def test_a_node_outlives_hostile_clients(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    pick = random.Random(seed)

    with caplog.at_level(logging.WARNING):
        node = Node(Settings(data_dir=tmp_path / "data", bind="127.0.0.1", kafka_port=0))
        await node.start()
        try:
            ranges = dict(node.parts.dispatcher.api_ranges)
            good = GoodClient(*await asyncio.open_connection("127.0.0.1", node.kafka_port))
            for _ in range(12):
                messages = [hostile(pick, ranges) for _ in range(12)]
                await asyncio.gather(*(send_and_hang_up(node.kafka_port, message) for message in messages))
                await good.ask()
            good.writer.close()
        finally:
            await node.stop()
    bugs = [record.getMessage() for record in caplog.records if record.exc_info or record.name == "asyncio"]
    assert bugs == []
