"""Fetches the raw batches of one range over a plain blocking socket, inside a task.

The next request leaves before the answer at hand is scanned, so the node works while we do. Receiving
goes into one buffer that is used again and again. Leadership and failures are the asyncio client's
business: it is asked for the leader at the start and whenever a node refuses or goes away.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from chronik.client import BrokerAddress, Cluster
from chronik.client.apis import FETCH, SASL_AUTHENTICATE, SASL_HANDSHAKE
from chronik.client.fetching import FetchOptions, fetch_fields
from chronik.client.login import Login, log_in
from chronik.client.metadata import Metadata
from chronik.client.retry import Unanswered, Unreachable, is_retriable
from chronik.client.visibility import AbortedTransaction
from chronik.model import ChronikError, ErrorCode, NodeId, PeerError, RequestError, TopicPartition
from chronik.records.batch import headers
from chronik.spark.options import Connect
from chronik.spark.planning import ask
from chronik.spark.ranges import OffsetRange
from chronik.wire import schema
from chronik.wire.api import ApiKey
from chronik.wire.cursor import Reader
from chronik.wire.fetch import FIRST_FLEXIBLE

FRAME_BYTES_MAX: Final = 1024 * 1024 * 1024
MAX_WAIT_MS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Batches as they came; `data` is overwritten when the next chunk is asked for."""

    data: memoryview
    next_offset: int
    aborted: tuple[AbortedTransaction, ...]
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class FetchedNode:
    """Where a partition's batches are read, and how."""

    address: BrokerAddress
    version: int
    metadata: Metadata


def find_leader(connect: Connect, tp: TopicPartition, replica: NodeId | None = None) -> FetchedNode:
    """The leader of a partition, or the node asked for in its place."""

    async def work(cluster: Cluster) -> FetchedNode:
        async def attempt() -> FetchedNode:
            node_id = await cluster.leader(tp) if replica is None else replica
            if replica is not None:
                await cluster.partitions(tp.topic)
            connection = await cluster.connection(node_id)
            version = FETCH.pick(connection.versions, node_id)
            return FetchedNode(cluster.metadata.nodes[node_id].address, version, cluster.metadata)

        return await cluster.retry().run(attempt)

    return ask(connect, work)


class Channel:
    """One blocking connection that sends Fetch requests and receives their answers, in order."""

    def __init__(self, connect: Connect, node: FetchedNode) -> None:
        self._client_id = connect.client_id
        self._node = node
        self._buffer = bytearray()
        timeout_s = connect.request_timeout_ms / 1000
        try:
            plain = socket.create_connection(node.address, timeout=timeout_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tls = connect.tls()
            self._socket = tls.wrap_socket(plain, server_hostname=node.address.host) if tls else plain
        except OSError as error:
            raise Unreachable(str(node.address), str(error)) from error
        if connect.login is not None:
            self._log_in(connect.login)

    def _log_in(self, login: Login) -> None:
        """Log in. There is no re-authentication: when the session ends the node closes the connection, and a
        new channel logs in."""

        async def exchange(message: bytes) -> bytes:
            return bytes(self._ask(SASL_AUTHENTICATE.key, {"auth_bytes": message}).auth_bytes)

        self._ask(SASL_HANDSHAKE.key, {"mechanism": login.mechanism})
        asyncio.run(log_in(login, exchange))

    def _ask(self, api_key: ApiKey, fields: Mapping[str, object]) -> Any:
        """One request of the login. Every node offers its APIs in version 1."""
        try:
            self._socket.sendall(schema.encode_request(api_key, 1, 0, self._client_id, fields))
        except OSError as error:
            raise Unanswered(f"{self._node.address}: {error}") from error
        _, answer = schema.decode_response(api_key, 1, self.receive())
        if answer.error_code != ErrorCode.none:
            raise RequestError(answer.error_code, getattr(answer, "error_message", None))
        return answer

    def close(self) -> None:
        self._socket.close()

    def send(self, tp: TopicPartition, offset: int, options: FetchOptions) -> None:
        fields = fetch_fields({tp: offset}, self._node.metadata, options)
        frame = schema.encode_request(FETCH.key, self._node.version, 0, self._client_id, fields)
        try:
            self._socket.sendall(frame)
        except OSError as error:
            raise Unanswered(f"{self._node.address}: {error}") from error

    def receive(self) -> memoryview:
        """The next answer without its length; stands in a buffer that the next call reuses."""
        (size,) = struct.unpack(">i", self._read(4))
        if not 4 <= size <= FRAME_BYTES_MAX:
            raise PeerError(f"{self._node.address} sent an answer of {size} bytes")
        return self._read(size)

    def _read(self, size: int) -> memoryview:
        if len(self._buffer) < size:
            self._buffer = bytearray(size + size // 4)
        view = memoryview(self._buffer)
        have = 0
        while have < size:
            try:
                count = self._socket.recv_into(view[have:size])
            except OSError as error:
                raise Unanswered(f"{self._node.address}: {error}") from error
            if not count:
                raise Unanswered(f"{self._node.address} closed the connection")
            have += count
        return view[:size]


@dataclass(frozen=True, slots=True)
class _Answer:
    error_code: int
    high_watermark: int
    log_start_offset: int
    aborted: tuple[AbortedTransaction, ...]
    records: memoryview


def decode(frame: memoryview, version: int) -> _Answer:
    """The one partition of a Fetch response."""
    flexible = version >= FIRST_FLEXIBLE
    reader = Reader(frame, 4)
    if flexible:
        reader.tags()
    reader.i32()  # throttle time
    code = 0
    if version >= 7:
        code = reader.i16()
        reader.i32()
    topics = reader.array_length(flexible, 2)
    if topics:
        reader.string(flexible)
    if not topics or not reader.array_length(flexible, 16):
        return _Answer(code or int(ErrorCode.unknown_server_error), -1, -1, (), memoryview(b""))
    reader.i32()
    code = reader.i16() or code
    high_watermark = reader.i64()
    reader.i64()  # last stable offset
    log_start_offset = reader.i64() if version >= 5 else -1
    aborted = []
    for _ in range(reader.array_length(flexible, 16)):
        producer_id = reader.i64()
        aborted.append(AbortedTransaction(reader.i64(), producer_id))
        if flexible:
            reader.tags()
    if version >= 11:
        reader.i32()  # preferred read replica
    records = reader.data(flexible)
    return _Answer(
        code, high_watermark, log_start_offset, tuple(aborted), records if records is not None else frame[:0]
    )


def end_of(data: memoryview) -> tuple[int, int]:
    """Bytes of whole batches, and the offset behind them (-1 if there are none)."""
    size, next_offset = 0, -1
    for position, header in headers(data):
        size, next_offset = position + header.size_bytes, header.next_offset
    return size, next_offset


class RangeFetcher:
    """Everything between two offsets of one partition, chunk by chunk, through leader changes.

    A chunk may begin before the range and end behind it: batches are never cut.
    """

    def __init__(
        self,
        connect: Connect,
        wanted: OffsetRange,
        options: FetchOptions,
        *,
        replica: NodeId | None = None,
    ) -> None:
        self._connect = connect
        self._wanted = wanted
        self._options = options
        self._replica = replica
        self._position = wanted.start
        self._backoff_s = 0.05
        self._deadline = 0.0

    def __iter__(self) -> Iterator[Chunk]:
        while self._position < self._wanted.end:
            channel = None
            try:
                node = find_leader(self._connect, self._wanted.tp, self._replica)
                channel = Channel(self._connect, node)
                yield from self._drain(channel, node)
            except ChronikError as error:
                self._pause(error)
            finally:
                if channel is not None:
                    channel.close()

    def _drain(self, channel: Channel, node: FetchedNode) -> Iterator[Chunk]:
        tp, end = self._wanted.tp, self._wanted.end
        channel.send(tp, self._position, self._options)
        while True:
            answer = decode(channel.receive(), node.version)
            if answer.error_code:
                code = ErrorCode(answer.error_code)
                raise RequestError(code, f"{tp} at offset {self._position}: {code.name.replace('_', ' ')}")
            size, next_offset = end_of(answer.records)
            if not size:
                if len(answer.records):
                    raise RequestError(
                        ErrorCode.corrupt_message, f"{tp} at offset {self._position}: no whole batch came"
                    )
                self._nothing_came(answer)
                channel.send(tp, self._position, self._options)
                continue
            self._deadline, self._backoff_s = 0.0, 0.05
            self._position = max(self._position, next_offset)
            if self._position < end:
                channel.send(tp, self._position, self._options)
            yield Chunk(
                data=answer.records[:size],
                next_offset=self._position,
                aborted=answer.aborted,
                high_watermark=answer.high_watermark,
                log_start_offset=answer.log_start_offset,
            )
            if self._position >= end:
                return

    def _nothing_came(self, answer: _Answer) -> None:
        """The log is shorter than it was when the range was planned, or its end is not yet readable."""
        now = time.monotonic()
        self._deadline = self._deadline or now + self._connect.deadline_ms / 1000
        if now > self._deadline:
            raise RequestError(
                ErrorCode.offset_out_of_range,
                f"{self._wanted.tp}: nothing can be read at offset {self._position}, the range goes to "
                f"{self._wanted.end} (the high watermark is {answer.high_watermark})",
            )

    def _pause(self, error: ChronikError) -> None:
        """Wait before the next attempt; raise what cannot be healed or took too long."""
        now = time.monotonic()
        self._deadline = self._deadline or now + self._connect.deadline_ms / 1000
        retriable = is_retriable(error) and not isinstance(error, PeerError)
        if not retriable or now + self._backoff_s > self._deadline:
            raise error
        time.sleep(self._backoff_s)
        self._backoff_s = min(self._backoff_s * 2, 1.0)
