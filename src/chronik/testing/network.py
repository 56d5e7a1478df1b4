"""The network between nodes, with scissors.

A proxy stands in front of each port on which a node listens for other nodes. Who dials is read from the
first frame of a connection, in which a node names itself. What may not pass is held back, as packets are
in a network that lost a route: connections stay open and silent, and go on where they were when it heals.
The proxies of a node that was ended refuse connections, as its host would, until it listens again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

import msgspec

from chronik.local.layout import HOST
from chronik.model import NodeId
from chronik.tasks import Tasks

_FRAME_BYTES_MAX: Final = 4096
_CHUNK_BYTES: Final = 256 * 1024
_LOOK_SECONDS: Final = 0.02


class Network:
    """Used from one event loop."""

    def __init__(self) -> None:
        self._gates: dict[tuple[NodeId, NodeId], asyncio.Event] = {}
        """One gate for each direction in which bytes flow; open when set."""
        self._cut: set[tuple[NodeId, NodeId]] = set()
        self._servers: dict[tuple[NodeId, int, int], asyncio.Server | None] = {}
        """Servers by node and both ports; None while the node does not listen."""
        self._rising: dict[tuple[NodeId, int, int], asyncio.Task[None]] = {}
        self._tasks = Tasks("network")

    async def expose(self, node_id: NodeId, outside: int, inside: int) -> None:
        """Listen on `outside` for a node that really listens on `inside`."""
        self._servers[node_id, outside, inside] = await self._listen(node_id, outside, inside)

    async def _listen(self, node_id: NodeId, outside: int, inside: int) -> asyncio.Server:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._tasks.spawn(self._serve(node_id, inside, reader, writer), f"a connection to node {node_id}")

        return await asyncio.start_server(connected, HOST, outside)

    def hide(self, node_id: NodeId) -> None:
        """The node ended."""
        for place, server in self._servers.items():
            if place[0] == node_id:
                if place in self._rising:
                    self._rising.pop(place).cancel()
                if server is not None:
                    server.close()
                    self._servers[place] = None

    def show(self, node_id: NodeId) -> None:
        """The node is about to run: listen as soon as it does."""
        for place, server in self._servers.items():
            if place[0] == node_id and server is None and place not in self._rising:
                self._rising[place] = self._tasks.spawn(self._rise(place), f"waiting for node {node_id}")

    async def _rise(self, place: tuple[NodeId, int, int]) -> None:
        while True:
            try:
                _, writer = await asyncio.open_connection(HOST, place[2])
            except OSError:
                await asyncio.sleep(_LOOK_SECONDS)
            else:
                writer.transport.abort()
                break
        self._servers[place] = await self._listen(*place)
        del self._rising[place]

    def cut(self, ones: Iterable[NodeId], others: Iterable[NodeId], *, one_way: bool = False) -> None:
        """Let nothing pass between two sets of nodes; `one_way` only what the first say to the second."""
        others = tuple(others)
        for one in ones:
            for other in others:
                self._cut.add((one, other))
                if not one_way:
                    self._cut.add((other, one))
        self._set_gates()

    def heal(self) -> None:
        self._cut.clear()
        self._set_gates()

    async def close(self) -> None:
        for server in self._servers.values():
            if server is not None:
                server.close()
        await self._tasks.close()

    def _gate(self, sender: NodeId, receiver: NodeId) -> asyncio.Event:
        gate = self._gates.get((sender, receiver))
        if gate is None:
            gate = self._gates[sender, receiver] = asyncio.Event()
            if (sender, receiver) not in self._cut:
                gate.set()
        return gate

    def _set_gates(self) -> None:
        for pair, gate in self._gates.items():
            if pair in self._cut:
                gate.clear()
            else:
                gate.set()

    async def _serve(
        self, node_id: NodeId, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        inner: asyncio.StreamWriter | None = None
        try:
            head = await reader.readexactly(4)
            size = int.from_bytes(head, "big")
            hello = await reader.readexactly(min(size, _FRAME_BYTES_MAX))
            dialer = int(msgspec.msgpack.decode(hello)["node_id"])
            await self._gate(dialer, node_id).wait()
            answers, inner = await asyncio.open_connection(HOST, port)
            inner.write(head + hello)
            there = self._pump(reader, inner, self._gate(dialer, node_id))
            back = self._pump(answers, writer, self._gate(node_id, dialer))
            tasks = [asyncio.ensure_future(there), asyncio.ensure_future(back)]
            try:
                # A connection that ends on one side ends on the other; nodes do not half-close.
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        except (OSError, EOFError, ValueError, KeyError, TypeError, msgspec.DecodeError):
            pass
        finally:
            for side in (writer, inner):
                if side is not None:
                    side.transport.abort()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK_BYTES):
                await gate.wait()
                sink.write(data)
                await sink.drain()
            # The news that a side has gone does not cross a cut either.
            await gate.wait()
