"""Requests as bytes over a socket of our own: any API, any version, any values, to any broker."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from uuid import UUID

from chronik.wire.api import ApiKey
from chronik.wire.schema import decode_response, encode_request
from chronik.wire.shape import FieldShape, shape_of
from tests.process import HOST

Fields: TypeAlias = Mapping[str, Any]
ANSWER_WITHIN_S = 10


class Closed(Exception):
    """The broker closed the connection instead of answering."""


class WireClient:
    """One connection, one request at a time; connects anew after the broker closed it."""

    def __init__(
        self, port: int, *, client_id: str | None = "wire", timeout_s: float = ANSWER_WITHIN_S
    ) -> None:
        self._port = port
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._correlation_id = 0

    def ask(self, api_key: ApiKey, version: int, fields: Fields) -> Any:
        """The decoded answer. Closed if the connection was closed, TimeoutError if nothing came."""
        self._correlation_id += 1
        frame = encode_request(api_key, version, self._correlation_id, self._client_id, fields)
        answer = self.exchange(frame)
        correlation_id, body = decode_response(api_key, version, answer)
        assert correlation_id == self._correlation_id
        return body

    def exchange(self, frame: bytes) -> bytes:
        """Send a whole frame; the answer without its four bytes of length."""
        if self._socket is None:
            self._socket = socket.create_connection((HOST, self._port), timeout=self._timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.sendall(frame)
            (size,) = struct.unpack(">i", self._read(4))
            return self._read(size)
        except TimeoutError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise Closed(str(error)) from None

    def _read(self, size: int) -> bytes:
        assert self._socket is not None
        data = bytearray()
        while len(data) < size:
            if not (part := self._socket.recv(size - len(data))):
                raise ConnectionResetError("closed by the broker")
            data += part
        return bytes(data)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


Chooser: TypeAlias = Callable[[FieldShape], Any]
"""The value of a field that is neither an array nor a struct."""


def filled(entity: Any, choose: Chooser, *, elements: int = 1) -> dict[str, Any]:
    """Fields of a message class, each array with so many elements, plain values as `choose` says."""
    return {field.name: _value(field, choose, elements) for field in shape_of(entity)}


def _value(field: FieldShape, choose: Chooser, elements: int) -> Any:
    if field.is_array and field.nullable and choose(field) is None:
        return None
    if field.is_array:
        return [_item(field, choose, elements) for _ in range(elements)]
    return _item(field, choose, elements)


def _item(field: FieldShape, choose: Chooser, elements: int) -> Any:
    return choose(field) if field.entity is None else filled(field.entity, choose, elements=elements)


def integer_bits(field: FieldShape) -> int | None:
    """How many bits a number of this field has; None for what is no number."""
    kind = str(field.kafka_type)
    if kind == "error_code":
        return 16
    for prefix in ("timedelta_i", "datetime_i", "int"):
        if kind.startswith(prefix):
            return int(kind.removeprefix(prefix))
    return None


def zero_of(field: FieldShape) -> Any:
    """The smallest plain value: zero, false, nothing."""
    kind = str(field.kafka_type)
    if kind == "string":
        return ""
    if kind in ("bytes", "records"):
        return b""
    if kind == "uuid":
        return None if field.nullable else UUID(int=0)
    if kind == "bool":
        return False
    return 0.0 if kind == "float64" else 0
