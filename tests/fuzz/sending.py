"""Sends an input and says what was wrong with the answer. Connections never outlive their input."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Final

import msgspec

from chronik.links.handshake import Handshake, LinkIdentity
from chronik.links.seal import Seal
from tests.fuzz import canaries, jobs_door, logins_door, readers_door, telemetry_door, tiered_door
from tests.fuzz.inputs import Input
from tests.fuzz.peers_door import NODE_ID, framed
from tests.process import HOST

ANSWER_WITHIN_S: Final = 30.0
"""What takes longer is a finding; SQL may take its time-out and a little more."""
RELEASE_WITHIN_S: Final = 20.0
"""So long a node may hold a connection whose client has closed its side."""
BROKEN_HTTP_S: Final = 0.3
"""What breaks HTTP may be waited on for more bytes; so long we listen for an answer."""
REFUSALS: Final = (501, 503, 504, 505, 507)
TRACES: Final = (b"Traceback (most recent", b"site-packages", b'File "/', b"Stack Trace")

_READ_BYTES: Final = 1 << 16


class _Beside:
    """A process of its own, which is replaced if an input ends it or blocks it. One input at a time."""

    def __init__(self, prepare: Callable[[], None], seconds_max: float) -> None:
        self._prepare = prepare
        self._seconds_max = seconds_max
        self._pool: ProcessPoolExecutor | None = None
        self._turn = asyncio.Lock()

    async def run(self, function: Callable[..., str | None], *arguments: Any) -> str | None:
        async with self._turn:
            if self._pool is None:
                self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), self._prepare)
            try:
                work = asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)
                return await asyncio.wait_for(work, self._seconds_max)
            except (BrokenProcessPool, TimeoutError) as error:
                self.close()
                return f"the process beside: {error!r}"

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


class Sender:
    def __init__(self, ports: Mapping[str, int], secret: bytes, store: Path) -> None:
        """`store` is the folder of the node's object store."""
        self._ports = ports
        self._store = store
        self._secret = secret
        self._readers = _Beside(readers_door.limit_memory, ANSWER_WITHIN_S)
        self._jobs = _Beside(jobs_door.prepare, jobs_door.ANSWER_WITHIN_S)

    def close(self) -> None:
        self._readers.close()
        self._jobs.close()

    async def send(self, one: Input) -> str | None:
        """What was wrong, or None."""
        if one.port in readers_door.READERS:
            return await self._readers.run(readers_door.read, one.port, one.pieces[0].data)
        if one.port == jobs_door.PORT:
            return await self._jobs.run(jobs_door.run, self._ports["kafka"], one.pieces[0].data)
        if one.port == tiered_door.PORT:
            tiered_door.damage(self._store, one.pieces[0].data)
            return None
        if one.port == logins_door.PORT:
            return await self._log_in_by_sasl(one)
        if one.port == telemetry_door.PORT:
            return await self._push(one)
        links: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        seals: dict[int, Seal] = {}
        try:
            for number in sorted({piece.connection for piece in one.pieces}):
                links[number] = await asyncio.open_connection(HOST, self._ports[one.port])
                if one.login is not None:
                    seals[number] = await self._log_in(*links[number], *one.login)
            with contextlib.suppress(ConnectionError):
                for number, data in one.pieces:
                    links[number][1].write(_sealed(data, seals[number]) if number in seals else data)
                    if len(one.pieces) > 1:
                        await asyncio.sleep(0)  # let the pieces leave by turns
            return await self._listen(one, links)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            return f"connection refused or broken: {error!r}" if one.answers else None
        except TimeoutError:
            return f"no answer within {ANSWER_WITHIN_S} s"
        finally:
            for _, writer in links.values():
                writer.transport.abort()

    async def _log_in_by_sasl(self, one: Input) -> str | None:
        told = one.pieces[0].data
        source = (logins_door.address(told), 0)
        reader, writer = await asyncio.open_connection(HOST, self._ports[one.port], local_addr=source)
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await logins_door.Talk(reader, writer, told).run()
        except TimeoutError:
            return f"no answer within {ANSWER_WITHIN_S} s"
        finally:
            writer.transport.abort()

    async def _push(self, one: Input) -> str | None:
        (_, ask), (_, push) = one.pieces
        reader, writer = await asyncio.open_connection(HOST, self._ports["kafka"])
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                writer.write(ask)
                writer.write(telemetry_door.answered(push, await _frame(reader)))
                await _frame(reader)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            return f"connection refused or broken: {error!r}"
        except TimeoutError:
            return f"no answer within {ANSWER_WITHIN_S} s"
        finally:
            writer.transport.abort()
        return None

    async def _listen(
        self, one: Input, links: Mapping[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    ) -> str | None:
        if one.port == "http":
            return await _http_answer(one, links[0][0])
        reader = links[0][0]
        async with asyncio.timeout(ANSWER_WITHIN_S):
            for _ in range(one.answers):
                size = int.from_bytes(await reader.readexactly(4), "big")
                answer = await reader.readexactly(size)
                if answer[:4] != one.pieces[0].data[8:12]:
                    return f"the answer has another correlation id: {answer[:4].hex()}"
        try:
            async with asyncio.timeout(RELEASE_WITHIN_S):
                for other, writer in links.values():
                    with contextlib.suppress(ConnectionError, OSError):
                        if writer.can_write_eof():
                            writer.write_eof()
                        while await other.read(_READ_BYTES):
                            pass
        except TimeoutError:
            return f"the connection was not let go within {RELEASE_WITHIN_S} s"
        return None

    async def _log_in(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node_id: int, purpose: str
    ) -> Seal:
        """Open a link as this node; what seals its frames. ConnectionError if it is refused."""
        identity = LinkIdentity(node_id, (self._secret,), os.urandom)
        shaking = Handshake(identity, dial=(NODE_ID, purpose))
        async with asyncio.timeout(ANSWER_WITHIN_S):
            writer.write(framed(msgspec.msgpack.encode(shaking.hello())))
            proof = shaking.received(memoryview(await _frame(reader)))
            writer.write(framed(msgspec.msgpack.encode(proof)))
            welcome = await _frame(reader)
        assert shaking.peer is not None
        assert shaking.peer.sealing is not None
        assert shaking.peer.opening is not None
        shaking.received(shaking.peer.opening.opened(memoryview(welcome)))
        return shaking.peer.sealing


def _sealed(data: bytes, seal: Seal) -> bytes:
    """The frames of `data`, each with its tag; what is no whole frame stays as it is."""
    out, place = bytearray(), 0
    while place + 4 <= len(data):
        size = int.from_bytes(data[place : place + 4], "big")
        frame = data[place + 4 : place + 4 + size]
        if not frame or len(frame) < size:
            break
        out += framed(frame + seal.tag(frame))
        place += 4 + size
    return bytes(out) + data[place:]


async def _frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def _http_answer(one: Input, reader: asyncio.StreamReader) -> str | None:
    answer = bytearray()
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S if one.answers else BROKEN_HTTP_S):
            while part := await reader.read(_READ_BYTES):
                answer += part
    except TimeoutError:
        if one.answers:
            raise
    if one.answers and not answer.startswith(b"HTTP/1.1 "):
        return f"no HTTP answer but {bytes(answer[:60])!r}"
    status = int(answer[9:12] or b"0")
    if status >= 500 and status not in REFUSALS:
        return f"status {status}: {bytes(answer[-300:])!r}"
    if found := [trace for trace in TRACES if trace in answer]:
        return f"the answer shows {found[0]!r}: {bytes(answer[-300:])!r}"
    return canaries.shown(answer)
