"""A broker that answers our own client with whatever fits the schema, or with damaged bytes."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Final
from uuid import UUID

from kio.index import load_response_schema

from chronik.client import Admin, ClientOptions, Cluster, Consumer
from chronik.client.groups import Groups
from chronik.client.offsets import EARLIEST, list_offsets
from chronik.model import ChronikError, TopicPartition
from chronik.wire.api import ApiKey
from chronik.wire.schema import encode_response
from tests.fuzz.kafka_door import ALL, RANGES, Fields
from tests.fuzz.values import damaged
from tests.process import HOST

OPTIONS: Final = ClientOptions(
    deadline_ms=400, request_timeout_ms=200, connect_timeout_ms=200, response_bytes_max=1 << 22
)
WITHIN_S: Final = 5.0
"""Each call ends by its deadline; a busy machine gets some more."""
TP: Final = TopicPartition("fuzz-0", 0)


def ask(seed: bytes) -> None:
    """Use the client; AssertionError if it ends otherwise than by an answer or an error that it promises."""
    asyncio.run(_ask(random.Random(seed)))


async def _ask(pick: random.Random) -> None:
    broker = _Broker(pick)
    server = await asyncio.start_server(broker.serve, HOST, 0)
    broker.port = server.sockets[0].getsockname()[1]
    try:
        async with asyncio.timeout(WITHIN_S), Cluster(f"{HOST}:{broker.port}", OPTIONS) as cluster:
            with contextlib.suppress(ChronikError):
                await _use(pick, cluster)
    finally:
        server.close()
        for writer in broker.writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # what serves them hears of it


async def _use(pick: random.Random, cluster: Cluster) -> None:
    match pick.randrange(5):
        case 0:
            await cluster.topics()
        case 1:
            await Admin(cluster).list_topics()
        case 2:
            await Groups(cluster).list()
        case 3:
            await list_offsets(cluster, {TP: EARLIEST})
        case _:
            async with Consumer(cluster) as consumer:
                consumer.assign({TP: 0})
                await consumer.poll(200)


class _Broker:
    def __init__(self, pick: random.Random) -> None:
        self._pick = pick
        self.port = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                request = await reader.readexactly(size)
                key, version = (int.from_bytes(request[at : at + 2], "big") for at in (0, 2))
                writer.write(self._answer(key, version, int.from_bytes(request[4:8], "big")))
                await writer.drain()
        writer.transport.abort()

    def _answer(self, key: int, version: int, number: int) -> bytes:
        pick = self._pick
        if (ApiKey(key), version) not in ALL:
            return pick.randbytes(20)
        if key == ApiKey.API_VERSIONS and pick.random() < 0.9:
            keys = [
                {"api_key": one, "min_version": low, "max_version": high}
                for one, (low, high) in RANGES.items()
            ]
            return encode_response(key, version, number, {"error_code": 0, "api_keys": keys})
        fields = Fields(pick, ApiKey(key), [UUID(int=7)])
        # The client must not go elsewhere: names would be looked up in the network.
        fields._fixed = {"host": (HOST,), "port": (self.port, self.port, 1)}
        number = number if pick.random() < 0.95 else pick.getrandbits(31)
        made = encode_response(key, version, number, fields.of(load_response_schema(key, version)))
        return damaged(pick, made, start=pick.choice((8, 8, 0))) if pick.random() < 0.4 else made
