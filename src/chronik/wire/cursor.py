"""Read and write the primitive types of the Kafka protocol, for the hand-written codecs.

A `Reader` raises PeerError when the bytes end too early or a length makes no sense; nothing is copied
but strings.
"""

from __future__ import annotations

import struct
from typing import Final, NoReturn
from uuid import UUID

from chronik.model import PeerError

_I8: Final = struct.Struct(">b")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")


class Reader:
    __slots__ = ("buffer", "end", "position")

    def __init__(self, buffer: memoryview, position: int) -> None:
        self.buffer = buffer
        self.position = position
        self.end = len(buffer)

    def _short(self) -> NoReturn:
        raise PeerError("the request ends too early")

    def _take(self, size: int) -> int:
        position = self.position
        if size < 0 or position + size > self.end:
            self._short()
        self.position = position + size
        return position

    def i8(self) -> int:
        value: int = _I8.unpack_from(self.buffer, self._take(1))[0]
        return value

    def i16(self) -> int:
        value: int = _I16.unpack_from(self.buffer, self._take(2))[0]
        return value

    def i32(self) -> int:
        value: int = _I32.unpack_from(self.buffer, self._take(4))[0]
        return value

    def i64(self) -> int:
        value: int = _I64.unpack_from(self.buffer, self._take(8))[0]
        return value

    def uuid(self) -> UUID:
        position = self._take(16)
        return UUID(bytes=bytes(self.buffer[position : position + 16]))

    def take(self, size: int) -> memoryview:
        position = self._take(size)
        return self.buffer[position : position + size]

    def uvarint(self) -> int:
        value = 0
        for shift in (0, 7, 14, 21, 28):
            byte = self.buffer[self._take(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise PeerError("a number is longer than five bytes")

    def array_length(self, flexible: bool, item_bytes_min: int) -> int:
        """Number of items, 0 for a null array; refused if the rest of the frame could not hold them."""
        count = self.uvarint() - 1 if flexible else self.i32()
        if count * item_bytes_min > self.end - self.position:
            self._short()
        return max(count, 0)

    def string(self, flexible: bool) -> str | None:
        length = self.uvarint() - 1 if flexible else self.i16()
        if length < 0:
            return None
        position = self._take(length)
        try:
            return str(self.buffer[position : position + length], "utf-8")
        except UnicodeDecodeError:
            raise PeerError("a string is not UTF-8") from None

    def data(self, flexible: bool) -> memoryview | None:
        """Bytes as a view into the frame."""
        length = self.uvarint() - 1 if flexible else self.i32()
        if length < 0:
            return None
        position = self._take(length)
        return self.buffer[position : position + length]

    def tags(self) -> dict[int, memoryview] | None:
        """Tagged fields by their number; None if there are none, which is nearly always so."""
        count = self.uvarint()
        if not count:
            return None
        found = {}
        for _ in range(count):
            tag = self.uvarint()
            size = self.uvarint()
            position = self._take(size)
            found[tag] = self.buffer[position : position + size]
        return found


def put_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def put_string(out: bytearray, text: str | None, flexible: bool) -> None:
    data = None if text is None else text.encode()
    if flexible:
        put_uvarint(out, 0 if data is None else len(data) + 1)
    else:
        out += _I16.pack(-1 if data is None else len(data))
    if data:
        out += data


def put_array_length(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        put_uvarint(out, count + 1)
    else:
        out += _I32.pack(count)
