"""Strangers on the WAL and Raft ports of a real node, with and without TLS (X05).

Nothing is served, nothing stops, a client beside them is served, and memory stays within a budget.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from chronik.client import Cluster
from chronik.client.admin import Admin, NewTopic
from chronik.client.options import parse_bootstrap
from chronik.cluster.transport import QuorumFrame
from chronik.links.handshake import Handshake, LinkIdentity
from chronik.model import RequestError
from tests.node import ChronikNode
from tests.process import HOST
from tests.security.nodes import certificates, node_tls

SECRET = b"what the nodes know"
CONNECTIONS = 1_000
CLIENT_SECONDS_MAX = 5.0
MEMORY_BUDGET_BYTES = 32 << 20
"""What strangers on both ports may make a node hold more than it did before."""


def start(folder: Path, *, has_tls: bool) -> ChronikNode:
    given = node_tls(certificates(folder / "certs"), 1) if has_tls else {}
    node = ChronikNode(folder, env={"CHRONIK_CLUSTER_SECRET": SECRET.decode()}, node_id=1, **given)
    node.open_peer_ports()
    return node


def ports(node: ChronikNode) -> list[int]:
    return [int(str(node.settings[name])) for name in ("wal_port", "raft_port")]


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def hello() -> bytes:
    shaking = Handshake(LinkIdentity(2, (b"guessed",), os.urandom), dial=(1, "data"))
    return framed(msgspec.msgpack.encode(shaking.hello()))


def openings() -> list[bytes]:
    """What strangers begin with: a slow handshake, nothing, too much, nonsense, half of TLS."""
    client_hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"
    return [
        hello()[:20],
        b"",
        (2**31 - 1).to_bytes(4, "big") + bytes(100_000),
        framed(bytes(4000)),
        hello(),
        client_hello,
        b"\x16\x03\x03\x40\x00" + bytes(100_000),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        framed(b"\x81\xa4type\xa7welcome"),
    ]


@asynccontextmanager
async def strangers(targets: list[int], count: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """So many connections at once, half of them to each port, which say their opening and stay."""
    said, readers, writers = openings(), [], []
    for number in range(count):
        reader, writer = await asyncio.open_connection(HOST, targets[number % 2])
        writer.write(said[number % len(said)])
        readers.append(reader)
        writers.append(writer)
    try:
        yield readers
    finally:
        for writer in writers:
            writer.transport.abort()


async def works(node: ChronikNode, topic: str) -> float:
    """How long a well-behaved client takes."""
    began = time.monotonic()
    async with Cluster(parse_bootstrap(f"{HOST}:{node.kafka_port}")) as cluster:
        (made,) = await Admin(cluster).create_topics([NewTopic(name=topic, partitions=1)])
    assert not isinstance(made, RequestError)
    return time.monotonic() - began


async def said(reader: asyncio.StreamReader) -> bytes:
    """Everything that a stranger hears before the node hangs up."""
    heard = b""
    try:
        async with asyncio.timeout(30):
            while part := await reader.read(1 << 16):
                heard += part
    except ConnectionError:
        pass
    return heard


async def attack(node: ChronikNode, heard_bytes_max: int, *, until_closed: bool) -> None:
    """Many strangers at once; none may hear more than this, and all are hung up on in the end."""
    await works(node, "before")
    before = node.rss_bytes()
    async with strangers(ports(node), CONNECTIONS) as readers:
        took = await works(node, "beside")
        held = node.rss_bytes() - before
        if until_closed:
            heard = await asyncio.gather(*map(said, readers))
            assert max(map(len, heard)) <= heard_bytes_max
    print(f"{CONNECTIONS} strangers: {held >> 10} KiB more, a client beside them took {took:.2f} s")
    assert held < MEMORY_BUDGET_BYTES
    assert took < CLIENT_SECONDS_MAX
    await works(node, "after")


async def test_strangers_and_a_secret(tmp_path: Path) -> None:
    with start(tmp_path, has_tls=False) as node:
        await attack(node, 0, until_closed=True)  # not even a challenge for who does not know the secret
        for port, purpose in zip(ports(node), ("metadata", "raft"), strict=True):
            words = await conversation(port, purpose)
            for target in ports(node):
                reader, writer = await asyncio.open_connection(HOST, target)
                writer.write(b"".join(words))
                heard = await said(reader)
                assert len(heard) <= 4 + int.from_bytes(heard[:4], "big"), "an answer after the challenge"
                writer.transport.abort()
        node.stop()


async def conversation(port: int, purpose: str) -> list[bytes]:
    """What a node says that nobody knows yet: it has the secret, and asks for the status."""
    shaking = Handshake(LinkIdentity(2, (SECRET,), os.urandom), dial=(1, purpose))
    reader, writer = await asyncio.open_connection(HOST, port)
    words = [framed(msgspec.msgpack.encode(shaking.hello()))]
    writer.write(words[0])
    words.append(framed(msgspec.msgpack.encode(shaking.received(memoryview(await frame(reader))))))
    writer.write(words[1])
    assert shaking.peer is not None
    assert shaking.peer.opening is not None
    assert shaking.peer.sealing is not None
    shaking.received(shaking.peer.opening.opened(memoryview(await frame(reader))))
    assert shaking.is_done
    query = bytes([QuorumFrame.QUERY]) + bytes(8)
    words.append(framed(query + shaking.peer.sealing.tag(query)))
    writer.write(words[2])
    await frame(reader)
    writer.transport.abort()
    return words


async def frame(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(30):
        return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def test_strangers_and_tls(tmp_path: Path) -> None:
    with start(tmp_path, has_tls=True) as node:
        await attack(node, 0, until_closed=False)
        context = ssl.create_default_context(cafile=str(tmp_path / "certs" / "ca.pem"))
        context.check_hostname = False
        for port in ports(node):
            assert await ask(port, context) == b"", "somebody without a certificate is answered"
        node.stop()


async def ask(port: int, context: ssl.SSLContext) -> bytes:
    try:
        reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
        writer.write(hello())
        async with asyncio.timeout(30):
            return await reader.read(1)
    except (ssl.SSLError, ConnectionError):
        return b""
