"""What a server that speaks S3, or claims to, can do to a reader."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from chronik.objects.s3 import S3Objects
from chronik.objects.store import ObjectStoreError

pytest.importorskip("obstore")

FLOOD_BYTES = 256 * 1024 * 1024
PARTIAL = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 5-14/1000000000\r\nETag: x\r\n"
LAST_MODIFIED = b"Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"


class Server:
    """Answers each request with `head`, then as many bytes as it is let, up to `body_bytes`."""

    def __init__(self, head: bytes, body_bytes: int, *, is_chunked: bool) -> None:
        self.head = head + LAST_MODIFIED
        self.body_bytes = body_bytes
        self.is_chunked = is_chunked
        self.sent_bytes = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            sized = b"Content-Length: %d" % self.body_bytes
            length = b"Transfer-Encoding: chunked" if self.is_chunked else sized
            writer.write(self.head + length + b"\r\n\r\n")
            left = self.body_bytes
            while left:
                piece = bytes(min(left, 1 << 20))
                left -= len(piece)
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self.is_chunked else piece)
                await writer.drain()
                self.sent_bytes += len(piece)
            if self.is_chunked:
                writer.write(b"0\r\n\r\n")
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def serving(server: Server) -> AsyncIterator[S3Objects]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    store = S3Objects(
        "bucket",
        "",
        endpoint=f"http://127.0.0.1:{port}",
        region="us-east-1",
        access_key_id="key",
        secret_access_key="secret",
        timeout_s=30.0,
    )
    try:
        yield store
    finally:
        listening.close()


async def test_a_range_comes_back() -> None:
    async with serving(Server(PARTIAL, 10, is_chunked=False)) as store:
        assert await store.get("a", 5, 10) == bytes(10)


@pytest.mark.parametrize(
    "server",
    [
        lambda: Server(b"HTTP/1.1 200 OK\r\nETag: x\r\n", FLOOD_BYTES, is_chunked=False),
        lambda: Server(b"HTTP/1.1 200 OK\r\nETag: x\r\n", FLOOD_BYTES, is_chunked=True),
        lambda: Server(PARTIAL, FLOOD_BYTES, is_chunked=True),
        lambda: Server(PARTIAL, FLOOD_BYTES, is_chunked=False),
    ],
    ids=["ignores-range", "ignores-range-chunked", "sends-more-chunked", "sends-more"],
)
async def test_a_server_that_sends_more_is_not_read_to_its_end(server: Callable[[], Server]) -> None:
    flooding = server()
    async with serving(flooding) as store:
        with pytest.raises(ObjectStoreError):
            await asyncio.wait_for(store.get("a", 5, 10), 60)
        assert flooding.sent_bytes < FLOOD_BYTES // 4
