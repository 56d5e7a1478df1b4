"""Kafka's primitive types, for the keys and values of internal topics.

Classic types have fixed-width lengths; compact ones (flexible versions, KIP-482) have varints and end
every struct with tagged fields. Readers raise ValueError for bytes that end too early or mean nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar
from uuid import UUID

T = TypeVar("T")

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class FieldWriter:
    """Appends fields; chain the calls, then take `data`."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = bytearray()

    def int8(self, value: int) -> FieldWriter:
        self.data += _INT8.pack(value)
        return self

    def int16(self, value: int) -> FieldWriter:
        self.data += _INT16.pack(value)
        return self

    def int32(self, value: int) -> FieldWriter:
        self.data += _INT32.pack(value)
        return self

    def int64(self, value: int) -> FieldWriter:
        self.data += _INT64.pack(value)
        return self

    def uuid(self, value: UUID) -> FieldWriter:
        self.data += value.bytes
        return self

    def string(self, value: str | None) -> FieldWriter:
        return self.int16(-1) if value is None else self._with_length(self.int16, value.encode())

    def blob(self, value: bytes) -> FieldWriter:
        return self._with_length(self.int32, value)

    def _with_length(self, length: Callable[[int], FieldWriter], content: bytes) -> FieldWriter:
        length(len(content))
        self.data += content
        return self

    def varint(self, value: int) -> FieldWriter:
        """Unsigned."""
        while value > 0x7F:
            self.data.append((value & 0x7F) | 0x80)
            value >>= 7
        self.data.append(value)
        return self

    def compact_string(self, value: str | None) -> FieldWriter:
        if value is None:
            return self.varint(0)
        content = value.encode()
        self.varint(len(content) + 1)
        self.data += content
        return self

    def array(self, items: Iterable[T], write: Callable[[T], object]) -> FieldWriter:
        found = list(items)
        self.int32(len(found))
        for item in found:
            write(item)
        return self

    def compact_array(self, items: Iterable[T], write: Callable[[T], object]) -> FieldWriter:
        found = list(items)
        self.varint(len(found) + 1)
        for item in found:
            write(item)
        return self

    def tags(self, fields: Mapping[int, bytes] | None = None) -> FieldWriter:
        """The end of a struct of a flexible version."""
        self.varint(len(fields or {}))
        for tag, content in sorted((fields or {}).items()):
            self.varint(tag).varint(len(content))
            self.data += content
        return self


class FieldReader:
    """Takes fields off the front."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise ValueError("a field is longer than its record")
        content = self._data[self._position : end]
        self._position = end
        return content

    def int8(self) -> int:
        return int(_INT8.unpack(self._take(1))[0])

    def int16(self) -> int:
        return int(_INT16.unpack(self._take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self._take(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack(self._take(8))[0])

    def uuid(self) -> UUID:
        return UUID(bytes=self._take(16))

    def optional_string(self) -> str | None:
        length = self.int16()
        return None if length < 0 else self._take(length).decode()

    def string(self) -> str:
        return self.optional_string() or ""

    def blob(self) -> bytes:
        return self._take(max(self.int32(), 0))

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a varint does not end")

    def optional_compact_string(self) -> str | None:
        length = self.varint()
        return None if length == 0 else self._take(length - 1).decode()

    def compact_string(self) -> str:
        return self.optional_compact_string() or ""

    def compact_blob(self) -> bytes:
        return self._take(max(self.varint() - 1, 0))

    def array(self, read: Callable[[], T]) -> list[T]:
        return [read() for _ in range(self._count(self.int32()))]

    def compact_array(self, read: Callable[[], T]) -> list[T]:
        return [read() for _ in range(self._count(self.varint() - 1))]

    def _count(self, count: int) -> int:
        if count > len(self._data):  # every element takes at least a byte
            raise ValueError("an array is longer than its record")
        return max(count, 0)

    def tags(self) -> dict[int, bytes]:
        return {self.varint(): self._take(self.varint()) for _ in range(self._count(self.varint()))}
