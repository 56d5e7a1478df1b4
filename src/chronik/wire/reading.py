"""Reads messages by their schema: bytes in, kio entities out.

kio's own native reader is not used: an array length taken from hostile bytes makes it allocate until the
process aborts. Here every length is checked against the bytes that are left, and the number of array
elements in one message is bounded, before anything is built. A reader is compiled once per class, out of
small closures. Values have the types that kio documents (timedelta, UUID or None for zero, ErrorCode).
"""

from __future__ import annotations

import datetime
import struct
import uuid
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, TypeAlias

from chronik.model import ErrorCode, PeerError
from chronik.wire.shape import FIXED, EntityType, FieldShape, shape_of

__all__ = ["Buffer", "Cursor", "read_entity"]

Buffer: TypeAlias = bytes | memoryview
Reader: TypeAlias = Callable[["Cursor"], Any]

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_ZERO_UUID: Final = bytes(16)


class Cursor:
    """A place in received bytes, and how many more array elements may be built from them."""

    __slots__ = ("buffer", "elements_left", "end", "position")

    def __init__(self, buffer: Buffer, position: int, elements_max: int) -> None:
        self.buffer = buffer
        self.position = position
        self.end = len(buffer)
        self.elements_left = elements_max

    def take(self, size: int) -> Buffer:
        start = self.position
        stop = start + size
        if size < 0 or stop > self.end:
            raise PeerError(f"field of {size} bytes where {self.end - start} are left")
        self.position = stop
        return self.buffer[start:stop]

    def uvarint(self) -> int:
        buffer, position, value = self.buffer, self.position, 0
        for shift in (0, 7, 14, 21, 28):
            if position >= self.end:
                raise PeerError("number is cut short")
            byte = buffer[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.position = position
                return value
        raise PeerError("number is longer than five bytes")

    def reserve(self, count: int, item_size_min: int) -> None:
        if count * item_size_min > self.end - self.position:
            raise PeerError(f"array of {count} elements where {self.end - self.position} bytes are left")
        self.elements_left -= count
        if self.elements_left < 0:
            raise PeerError("message has too many array elements")


def read_entity(entity: EntityType, cursor: Cursor) -> Any:
    """Build one message of this class from the cursor's bytes; PeerError on anything that does not fit."""
    try:
        return _entity_reader(entity)(cursor)
    except (struct.error, ValueError, OverflowError) as error:
        raise PeerError(f"malformed {entity.__name__} v{entity.__version__}: {error}") from None
    except PeerError as error:
        raise PeerError(f"malformed {entity.__name__} v{entity.__version__}: {error}") from None


@cache
def _entity_reader(entity: EntityType) -> Reader:
    flexible = entity.__flexible__
    plain = [(f.name, _field_reader(f, flexible)) for f in shape_of(entity) if f.tag is None]
    tagged = {f.tag: (f.name, _field_reader(f, flexible)) for f in shape_of(entity) if f.tag is not None}
    tagged_defaults = {
        f.name: _decoded_default(f) for f in shape_of(entity) if f.tag is not None and f.entity is not None
    }

    def read(cursor: Cursor) -> Any:
        values: dict[str, Any] = {name: reader(cursor) for name, reader in plain}
        if flexible:
            _read_tags(cursor, tagged, values)
            for name, default in tagged_defaults.items():
                if name not in values and default is not None:
                    values[name] = default
        return entity(**values)

    return read


def _decoded_default(field: FieldShape) -> Any:
    """The value of an absent tagged struct (kio gives some of them no default)."""
    if field.is_array or field.entity is None or field.default is not None:
        return field.default
    return field.entity(**{nested.name: nested.default for nested in shape_of(field.entity)})


def _read_tags(cursor: Cursor, tagged: Mapping[int, tuple[str, Reader]], values: dict[str, Any]) -> None:
    for _ in range(cursor.uvarint()):
        tag, size = cursor.uvarint(), cursor.uvarint()
        end = cursor.position + size
        if end > cursor.end:
            raise PeerError("tagged field is cut short")
        known = tagged.get(tag)
        if known is not None:
            name, reader = known
            values[name] = reader(cursor)
            if cursor.position != end:
                raise PeerError(f"tagged field {name} is not {size} bytes long")
        cursor.position = end


def _field_reader(field: FieldShape, flexible: bool) -> Reader:
    item = _item_reader(field, flexible)
    if not field.is_array:
        return item
    item_size_min = _size_min(field, flexible)
    nullable = field.nullable

    def read_array(cursor: Cursor) -> Any:
        count = cursor.uvarint() - 1 if flexible else _unpack_int32(cursor)
        if count < 0:
            if nullable:
                return None
            raise PeerError(f"{field.name} is null")
        cursor.reserve(count, item_size_min)
        return tuple([item(cursor) for _ in range(count)])

    return read_array


def _unpack_int32(cursor: Cursor) -> int:
    (value,) = FIXED["int32"].unpack_from(cursor.buffer, cursor.position)
    cursor.position += 4
    return int(value)


def _item_reader(field: FieldShape, flexible: bool) -> Reader:
    nullable = field.nullable and not field.is_array
    if field.entity is not None:
        reader = _entity_reader(field.entity)
        # A tagged struct is nullable by its absence; any other carries a marker byte (KIP-893).
        return _nullable_entity_reader(reader) if nullable and field.tag is None else reader
    kafka_type = str(field.kafka_type)
    if kafka_type == "string":
        return _sized_reader(field.name, flexible, nullable, struct.Struct(">h"), _to_str)
    if kafka_type in ("bytes", "records"):
        return _sized_reader(field.name, flexible, nullable, struct.Struct(">i"), bytes)
    return _fixed_reader(FIXED[kafka_type], _FROM_WIRE.get(kafka_type), nullable)


def _nullable_entity_reader(reader: Reader) -> Reader:
    def read(cursor: Cursor) -> Any:
        return None if cursor.take(1)[0] == 0xFF else reader(cursor)

    return read


def _fixed_reader(layout: struct.Struct, convert: Callable[[Any], Any] | None, nullable: bool) -> Reader:
    unpack, size = layout.unpack_from, layout.size

    def read(cursor: Cursor) -> Any:
        position = cursor.position
        cursor.position = position + size
        return unpack(cursor.buffer, position)[0]

    if convert is None:
        return read

    def read_converted(cursor: Cursor) -> Any:
        value = read(cursor)
        return None if nullable and value == -1 else convert(value)

    return read_converted


def _sized_reader(
    name: str, flexible: bool, nullable: bool, length: struct.Struct, convert: Callable[[Buffer], Any]
) -> Reader:
    def read(cursor: Cursor) -> Any:
        if flexible:
            size = cursor.uvarint() - 1
        else:
            (size,) = length.unpack_from(cursor.buffer, cursor.position)
            cursor.position += length.size
        if size < 0:
            if nullable:
                return None
            raise PeerError(f"{name} is null")
        return convert(cursor.take(size))

    return read


def _to_str(data: Buffer) -> str:
    return str(data, "utf-8")


def _to_uuid(data: bytes) -> uuid.UUID | None:
    return None if data == _ZERO_UUID else uuid.UUID(bytes=data)


_FROM_WIRE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "error_code": ErrorCode,
    "timedelta_i32": lambda value: datetime.timedelta(milliseconds=value),
    "timedelta_i64": lambda value: datetime.timedelta(milliseconds=value),
    "datetime_i64": lambda value: _EPOCH + datetime.timedelta(milliseconds=value),
    "uuid": _to_uuid,
}


def _size_min(field: FieldShape, flexible: bool) -> int:
    """Fewest bytes that one element of this field can take; never less than one."""
    if field.entity is not None:
        sizes = [
            _size_min(nested, field.entity.__flexible__) if not nested.is_array else (1 if flexible else 4)
            for nested in shape_of(field.entity)
            if nested.tag is None and not (nested.entity is not None and nested.nullable)
        ]
        return max(1, sum(sizes) + (1 if flexible else 0))
    kafka_type = str(field.kafka_type)
    if kafka_type in FIXED:
        return FIXED[kafka_type].size
    if flexible:
        return 1
    return 2 if kafka_type == "string" else 4
