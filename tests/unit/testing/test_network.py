"""The proxies between nodes: what passes, what is held back, what comes out after healing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from chronik.testing import free_ports
from chronik.testing.network import Network

Connect = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def until_connected(
    dial: Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]],
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await dial()
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)


def with_network(work: Callable[[Network, Connect], Awaitable[None]]) -> None:
    """Node 2 listens and answers every byte with the same byte; `connect(n)` dials it as node n."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(size)
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    async def main() -> None:
        inside, outside = free_ports(2)
        server = await asyncio.start_server(echo, "127.0.0.1", inside)
        network = Network()
        await network.expose(2, outside, inside)

        async def connect(node_id: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", outside)
            hello = msgspec.msgpack.encode({"type": "hello", "node_id": node_id})
            writer.write(len(hello).to_bytes(4, "big") + hello)
            return reader, writer

        try:
            async with asyncio.timeout(20):
                await work(network, connect)
        finally:
            await network.close()
            server.close()

    asyncio.run(main())


def test_bytes_pass() -> None:
    async def work(network: Network, connect: Connect) -> None:
        reader, writer = await connect(1)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"

    with_network(work)


def test_a_cut_holds_back_both_ways_and_others_do_not_notice() -> None:
    async def work(network: Network, connect: Connect) -> None:
        reader, writer = await connect(1)
        third_reader, third_writer = await connect(3)
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        network.cut([1], [2])
        writer.write(b"b")
        third_writer.write(b"c")
        assert await third_reader.readexactly(1) == b"c"
        waiting = asyncio.ensure_future(reader.readexactly(1))
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
        network.heal()
        assert await waiting == b"b"

    with_network(work)


def test_a_new_connection_over_a_cut_gets_no_answer() -> None:
    async def work(network: Network, connect: Connect) -> None:
        network.cut([2], [1])
        reader, writer = await connect(1)
        writer.write(b"a")
        waiting = asyncio.ensure_future(reader.readexactly(1))
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
        network.heal()
        assert await waiting == b"a"

    with_network(work)


def test_one_way() -> None:
    async def work(network: Network, connect: Connect) -> None:
        reader, writer = await connect(1)
        writer.write(b"a")
        assert await reader.readexactly(1) == b"a"
        network.cut([2], [1], one_way=True)
        writer.write(b"b")  # arrives; the answer does not
        waiting = asyncio.ensure_future(reader.readexactly(1))
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
        network.cut([1], [2], one_way=True)
        network.heal()
        assert await waiting == b"b"

    with_network(work)


def test_a_connection_that_ends_on_one_side_ends_on_the_other() -> None:
    async def work(network: Network, connect: Connect) -> None:
        reader, writer = await connect(1)
        writer.write(b"a")
        await reader.readexactly(1)
        writer.close()
        try:
            assert await reader.read() == b""
        except ConnectionResetError:
            pass

    with_network(work)


def test_a_node_that_ended_is_refused_until_it_runs_again() -> None:
    async def work(network: Network, connect: Connect) -> None:
        network.hide(3)
        await connect(1)
        network.hide(2)
        with pytest.raises(ConnectionRefusedError):
            await connect(1)
        network.show(2)
        network.show(2)
        reader, writer = await until_connected(lambda: connect(1))
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"

    with_network(work)


async def test_a_node_that_has_yet_to_listen_is_refused() -> None:
    inside, outside = free_ports(2)
    network = Network()
    await network.expose(2, outside, inside)
    dial = lambda: asyncio.open_connection("127.0.0.1", outside)  # noqa: E731
    for _ in range(2):
        network.hide(2)
        network.show(2)
        with pytest.raises(ConnectionRefusedError):
            await dial()
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", inside)
    async with asyncio.timeout(20):
        await until_connected(dial)
    server.close()
    network.hide(2)
    network.show(2)
    await network.close()


async def test_nobody_behind_the_proxy() -> None:
    inside, outside = free_ports(2)
    network = Network()
    await network.expose(2, outside, inside)
    reader, writer = await asyncio.open_connection("127.0.0.1", outside)
    hello = msgspec.msgpack.encode({"type": "hello", "node_id": 1})
    writer.write(len(hello).to_bytes(4, "big") + hello)
    try:
        assert await reader.read() == b""
    except ConnectionResetError:
        pass
    writer.write(b"\xff\xff\xff\xffnonsense")
    await network.close()
