"""Asks the other nodes over their HTTP ports: one small JSON client, bounded in bytes and time."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import h11
import msgspec

from chronik.admin.errors import Failure, HttpError
from chronik.metadata.commands import Endpoint as Address
from chronik.metadata.state import ClusterState
from chronik.model import NodeId, Unavailable
from chronik.server.node_signature import NodeSignature

__all__ = ["HTTP_ENDPOINT", "AnswerBudget", "HttpPeers", "request_json", "understood"]

T = TypeVar("T")

HTTP_ENDPOINT: Final = "http"
"""Name of the HTTP port among the endpoints a broker registers."""
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024


class AnswerBudget:
    """Bytes that one answer may have, or the answers to one question to several nodes together."""

    def __init__(self, bytes_max: int, within: AnswerBudget | None = None) -> None:
        self._left = bytes_max
        self._within = within
        self._taken = 0

    def take(self, count: int) -> None:
        """OSError if there is no room: the answer that it is for is given up."""
        if count > self._left:
            raise OSError("the answer is too long")
        if self._within is not None:
            self._within.take(count)
        self._left -= count
        self._taken += count

    def give_up(self) -> None:
        """The answer is none: others have its room, or one node could keep all others from being heard."""
        if self._within is not None:
            self._within._left += self._taken


class HttpPeers:
    def __init__(
        self,
        node_id: NodeId,
        state: Callable[[], ClusterState],
        tls: Callable[[], ssl.SSLContext] | None = None,
        signature: NodeSignature | None = None,
    ) -> None:
        """`signature` is how this node proves who it is; without one, others see who asked this node.

        `tls`, asked at each connection, if this node's HTTP port speaks TLS, since then all of the cluster
        do."""
        self._node_id = node_id
        self._tls = tls
        self._signature = signature
        self._state = state

    def addresses(self) -> dict[NodeId, Address]:
        """The other nodes that the cluster believes to be alive and that serve HTTP."""
        return {
            broker.broker_id: broker.endpoints[HTTP_ENDPOINT]
            for broker in self._state().live_brokers()
            if broker.broker_id != self._node_id and HTTP_ENDPOINT in broker.endpoints
        }

    async def ask(
        self,
        node_id: NodeId,
        method: str,
        path: str,
        body: object = None,
        *,
        timeout_s: float,
        authorization: str | None = None,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
        budget: AnswerBudget | None = None,
    ) -> Any:
        """Another node's answer; HttpError as it gave it, Unavailable when it did not answer or answered at
        greater length. `budget` is for several answers together."""
        address = self.addresses().get(node_id)
        if address is None:
            raise Unavailable(f"node {node_id} is not there")
        data = None if body is None else msgspec.json.encode(body)
        if self._signature is not None:
            authorization = self._signature.header(node_id, method, path, data or b"")
        headers = {} if authorization is None else {"authorization": authorization}
        tls = None if self._tls is None else self._tls()
        room = AnswerBudget(answer_bytes_max, budget)
        try:
            async with asyncio.timeout(timeout_s):
                status, answer = await request_json(
                    address.host, address.port, method, path, data, headers, tls, room
                )
            failure = msgspec.convert(answer, Failure) if status >= 400 else None
        except TimeoutError:
            room.give_up()
            raise Unavailable(f"node {node_id} did not answer within {timeout_s:g} s") from None
        except (OSError, h11.ProtocolError, ValueError, RecursionError) as error:
            # ValueError: of msgspec, and for bytes that are no UTF-8.
            room.give_up()
            raise Unavailable(f"node {node_id} cannot be asked: {error}") from None
        if failure is not None:
            raise HttpError(status, failure.code, f"Node {node_id}: {failure.message}")
        return answer


def understood(node_id: NodeId, answer: object, kind: type[T]) -> T:
    """What a node answered, which may run another release; Unavailable if it is something else."""
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise Unavailable(f"node {node_id} sent an answer that cannot be read: {error}") from None


async def request_json(
    host: str,
    port: int,
    method: str,
    path: str,
    body: bytes | None,
    headers: Mapping[str, str],
    tls: ssl.SSLContext | None = None,
    room: AnswerBudget | None = None,
) -> tuple[int, Any]:
    """One request on a connection of its own; status and decoded body."""
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    connection = h11.Connection(h11.CLIENT)
    try:
        sent = {"host": f"{host}:{port}", "connection": "close", "accept": "application/json", **headers}
        if body is not None:
            sent |= {"content-type": "application/json", "content-length": str(len(body))}
        head = h11.Request(method=method, target=path, headers=list(sent.items()))
        writer.write(connection.send(head) or b"")
        if body:
            writer.write(connection.send(h11.Data(data=body)) or b"")
        writer.write(connection.send(h11.EndOfMessage()) or b"")
        await writer.drain()
        return await _answer(connection, reader, room or AnswerBudget(ANSWER_BYTES_MAX))
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _answer(
    connection: h11.Connection, reader: asyncio.StreamReader, room: AnswerBudget
) -> tuple[int, Any]:
    status, parts = 0, []
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            room.take(len(event.data))
            parts.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            return status, msgspec.json.decode(b"".join(parts) or b"null")
        elif isinstance(event, h11.ConnectionClosed):
            raise OSError("the connection was closed before the answer")
