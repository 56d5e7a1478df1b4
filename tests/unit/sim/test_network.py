from __future__ import annotations

import asyncio
import random

import pytest

from chronik.sim.loop import SimLoop
from chronik.sim.network import SimNetwork
from chronik.sim.process import Process


class World:
    """A server that echoes, and a client, on two hosts."""

    def __init__(self, seed: int = 1) -> None:
        self.loop = SimLoop(random.Random(seed))
        self.network = SimNetwork(self.loop, random.Random(seed), jitter_s=0.01, fragment_probability=0.5)
        self.server = Process("server", "s")
        self.client = Process("client", "c")

    def run(self, main):
        async def both():
            await self.loop.spawn(self.server, self._serve())
            return await self.loop.spawn(self.client, main())

        return self.loop.run(both(), seconds_max=500, steps_max=100_000)

    async def _serve(self) -> None:
        await asyncio.start_server(self._echo, "s", 9000)

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
            await writer.drain()
        writer.close()


def test_bytes_arrive_in_order_whatever_happens_on_the_way() -> None:
    for seed in range(20):
        world = World(seed)
        sent = random.Random(seed).randbytes(20_000)

        async def main(world: World = world, sent: bytes = sent) -> bytes:
            reader, writer = await asyncio.open_connection("s", 9000)
            rng = random.Random(1)
            for start in range(0, len(sent), 1000):
                writer.write(sent[start : start + 1000])
                world.network.block("c", "s") if rng.random() < 0.3 else world.network.unblock("c", "s")
                world.network.block("s", "c") if rng.random() < 0.3 else world.network.unblock("s", "c")
                await asyncio.sleep(rng.random() * 0.02)
            world.network.heal()
            return await reader.readexactly(len(sent))

        assert world.run(main) == sent


def test_nobody_listening_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("s", 1)

    World().run(main)


def test_a_blocked_link_leaves_a_connection_attempt_unanswered() -> None:
    world = World()

    async def main() -> float:
        world.network.block("s", "c")
        with pytest.raises(TimeoutError):
            await asyncio.open_connection("s", 9000)
        return world.loop.now

    assert world.run(main) > 4


def test_a_killed_peer_is_noticed_and_a_dead_host_only_by_silence() -> None:
    for power_lost in (False, True):
        world = World()

        async def main(world: World = world, power_lost: bool = power_lost) -> float:
            reader, writer = await asyncio.open_connection("s", 9000)
            world.network.process_died(world.server, power_lost=power_lost)
            world.loop.kill(world.server)
            writer.write(b"hello")
            before = world.loop.now
            with pytest.raises((ConnectionResetError, TimeoutError)):
                await reader.readexactly(5)
            return world.loop.now - before

        waited = world.run(main)
        assert (waited > 10) == power_lost


def test_a_one_way_block_lets_the_other_way_through() -> None:
    world = World()

    async def main() -> bytes:
        reader, writer = await asyncio.open_connection("s", 9000)
        writer.write(b"before")
        await asyncio.sleep(0.1)
        world.network.block("c", "s")
        writer.write(b" after")
        got = await reader.readexactly(6)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await reader.read(1)
        world.network.unblock("c", "s")
        return got + await reader.readexactly(6)

    assert world.run(main) == b"before after"


def test_a_reader_that_does_not_read_makes_the_writer_wait() -> None:
    class Deaf(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.pause_reading()  # type: ignore[attr-defined]

    world = World()

    async def main() -> None:
        await world.loop.create_server(Deaf, "c", 9001)
        _, writer = await asyncio.open_connection("c", 9001)
        writer.write(bytes(10_000_000))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await writer.drain()

    world.run(main)


def test_a_broken_connection_is_told_to_both_ends() -> None:
    world = World()

    async def main() -> None:
        reader, _ = await asyncio.open_connection("s", 9000)
        await asyncio.sleep(0.1)
        for transport in world.network.connections():
            world.network.break_connection(transport)
        with pytest.raises(ConnectionResetError):
            await reader.read(1)

    world.run(main)
