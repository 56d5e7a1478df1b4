"""One TCP connection to one node: pipelined requests, matched to answers by correlation id.

A request that nobody waits for any more still holds its place, since Kafka answers in order: its
answer is taken off the socket and dropped. A request unanswered past its time condemns
the connection, because everything behind it is stuck as well.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Mapping
from typing import Any, Final, cast

from chronik.client.apis import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, Api
from chronik.client.login import Login, log_in
from chronik.client.options import BrokerAddress, ClientOptions
from chronik.client.retry import Unanswered, Unreachable
from chronik.model import ErrorCode, PeerError, RequestError
from chronik.wire import schema

_LENGTH: Final = struct.Struct(">i")
REAUTHENTICATE_AT: Final = 0.85
"""Part of a session's lifetime after which this client logs in again."""
_ERROR_CODE_AT: Final = 4
"""Where the error code of an ApiVersions answer stands in every version: behind the correlation id."""


class Connection(asyncio.Protocol):
    def __init__(self, address: BrokerAddress, options: ClientOptions) -> None:
        self.address = address
        self.versions: Mapping[int, tuple[int, int]] = {}
        """Version range of each API the node knows; known once `open` returned."""
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[memoryview]] = {}
        self._slots = asyncio.Semaphore(options.in_flight_max)
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._correlation_id = 0
        self._login: asyncio.Task[None] | None = None
        self._received = bytearray()
        self._needed = _LENGTH.size

    @classmethod
    async def open(cls, address: BrokerAddress, options: ClientOptions) -> Connection:
        loop = asyncio.get_running_loop()
        connection = cls(address, options)
        try:
            async with asyncio.timeout(options.connect_timeout_ms / 1000):
                tls = options.tls() if callable(options.tls) else options.tls
                await loop.create_connection(lambda: connection, address.host, address.port, ssl=tls)
                connection.versions = await connection._negotiate()
                login = options.login_now()
                if login is not None:
                    await connection._log_in(login)
        except TimeoutError as error:
            connection.close()
            raise Unreachable(str(address), "no answer in time") from error
        except OSError as error:
            raise Unreachable(str(address), _reason(error)) from error
        except Unanswered as error:
            raise Unreachable(str(address), "the connection was closed before an answer") from error
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._closed.done()

    async def request(self, api: Api, fields: Mapping[str, object]) -> Any:
        """Send a request in the newest version both sides speak; return its decoded answer.

        Raises Unanswered when the connection breaks or stays silent, RequestError when the node lacks it.
        """
        version = api.pick(self.versions, self.address)
        answer = await self._exchange(api.key, version, fields)
        return self._decode(api.key, version, answer)

    async def post(self, api: Api, fields: Mapping[str, object]) -> None:
        """Send a request that the node does not answer (Produce with acks=0)."""
        version = api.pick(self.versions, self.address)
        await self._writable.wait()
        self._write(api.key, version, self._next_correlation_id(), fields)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._fail(Unanswered(f"the connection to {self.address} was closed"))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        why = f": {_reason(exc)}" if exc else ""
        self._fail(Unanswered(f"{self.address} closed the connection{why}"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= self._needed:
            if self._needed == _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._received)
                if not _LENGTH.size <= length <= self._options.response_bytes_max:
                    self._condemn(f"{self.address} sent an answer of {length} bytes: is it a Kafka port?")
                    return
                self._needed += length
                continue
            frame = bytes(memoryview(self._received)[_LENGTH.size : self._needed])
            del self._received[: self._needed]
            self._needed = _LENGTH.size
            self._deliver(frame)

    # requests

    async def _exchange(self, api_key: int, version: int, fields: Mapping[str, object]) -> memoryview:
        await self._slots.acquire()
        correlation_id = self._next_correlation_id()
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        try:
            await self._writable.wait()
            self._write(api_key, version, correlation_id, fields)
        except BaseException:
            self._slots.release()
            raise
        self._waiting[correlation_id] = answer
        answer.add_done_callback(_retrieve)
        timer = self._loop.call_later(
            self._options.request_timeout_ms / 1000,
            self._condemn,
            f"{self.address} left a request unanswered for {self._options.request_timeout_ms} ms",
        )
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            # The answer still comes and still times out: the timer now belongs to it.
            answer.add_done_callback(lambda _: timer.cancel())
            raise
        finally:
            if answer.done():
                timer.cancel()

    def _write(self, api_key: int, version: int, correlation_id: int, fields: Mapping[str, object]) -> None:
        frame = schema.encode_request(api_key, version, correlation_id, self._options.client_id, fields)
        if self._transport is None or self._closed.done():
            raise Unreachable(str(self.address), "the connection is closed")
        self._transport.write(frame)

    def _next_correlation_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def _deliver(self, frame: bytes) -> None:
        (correlation_id,) = _LENGTH.unpack_from(frame)
        answer = self._waiting.pop(correlation_id, None)
        if answer is None:
            self._condemn(f"{self.address} answered a request that was not asked")
            return
        self._slots.release()
        if not answer.done():
            answer.set_result(memoryview(frame))

    def _condemn(self, why: str) -> None:
        self._fail(Unanswered(why))
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: Unanswered) -> None:
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            self._slots.release()
            if not answer.done():
                answer.set_exception(error)
        self._writable.set()
        if not self._closed.done():
            self._closed.set_result(None)

    def _decode(self, api_key: int, version: int, frame: memoryview) -> Any:
        try:
            return schema.decode_response(api_key, version, frame)[1]
        except PeerError as error:
            self._condemn(f"{self.address} sent an answer that cannot be read: {error}")
            raise

    async def _log_in(self, login: Login) -> None:
        """Prove who this client is, and again before the session ends that it gets for it (KIP-368)."""
        shaken = await self.request(SASL_HANDSHAKE, {"mechanism": login.mechanism})
        if shaken.error_code != ErrorCode.none:
            offered = ", ".join(shaken.mechanisms) or "no mechanism"
            raise RequestError(
                shaken.error_code, f"{self.address} does not take {login.mechanism}: it offers {offered}"
            )
        lifetime_s = 0.0

        async def exchange(message: bytes) -> bytes:
            nonlocal lifetime_s
            answer = await self.request(SASL_AUTHENTICATE, {"auth_bytes": message})
            if answer.error_code != ErrorCode.none:
                raise RequestError(answer.error_code, answer.error_message)
            lifetime = getattr(answer, "session_lifetime", None)
            lifetime_s = 0.0 if lifetime is None else lifetime.total_seconds()
            return bytes(answer.auth_bytes)

        await log_in(login, exchange, channel=self._channel())
        if lifetime_s:
            self._loop.call_later(lifetime_s * REAUTHENTICATE_AT, self._log_in_again, login)

    def _channel(self) -> bytes:
        """Digest of the certificate that the node has shown; empty without TLS."""
        tls = None if self._transport is None else self._transport.get_extra_info("ssl_object")
        shown = None if tls is None else tls.getpeercert(binary_form=True)
        return b"" if shown is None else hashlib.sha256(shown).digest()

    def _log_in_again(self, login: Login) -> None:
        if self.is_open:
            self._login = self._loop.create_task(self._log_in(login))
            self._login.add_done_callback(self._logged_in_again)  # a failure closes the connection

    def _logged_in_again(self, login: asyncio.Task[None]) -> None:
        if not login.cancelled() and (error := login.exception()) is not None:
            self._condemn(f"{self.address} did not take the login again: {error}")

    async def _negotiate(self) -> dict[int, tuple[int, int]]:
        """Ask what the node speaks; one that does not know our question answers in version 0 (KIP-511)."""
        version = API_VERSIONS.highest
        fields = {"client_software_name": "chronik", "client_software_version": "1"}
        frame = await self._exchange(API_VERSIONS.key, version, fields)
        code = int.from_bytes(frame[_ERROR_CODE_AT : _ERROR_CODE_AT + 2], "big", signed=True)
        if code == ErrorCode.unsupported_version and version > 0:
            version = 0
            frame = await self._exchange(API_VERSIONS.key, version, {})
        response = self._decode(API_VERSIONS.key, version, frame)
        if response.error_code != ErrorCode.none:
            raise RequestError(response.error_code)
        return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.lower() if isinstance(error, ConnectionError) else text


def _retrieve(answer: asyncio.Future[memoryview]) -> None:
    """Mark the exception of an answer that nobody waits for any more as seen."""
    if not answer.cancelled():
        answer.exception()
