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
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from chronik.model import ErrorCode, PeerError
from chronik.wire.shape import FIXED, EntityType, FieldShape, layout_of, runs_of, shape_of

__all__ = ["Buffer", "Cursor", "position_of", "read_entity"]

Buffer: TypeAlias = bytes | memoryview
Reader: TypeAlias = Callable[["Cursor"], Any]
PartReader: TypeAlias = Callable[["Cursor", Any], None]
"""Reads one field of a message, or several at once, into the message."""
Setter: TypeAlias = Callable[[Any, Any], None]

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)
_DURATION_MS_MIN: Final = datetime.timedelta.min // _MILLISECOND
_DURATION_MS_MAX: Final = datetime.timedelta.max // _MILLISECOND
_TIME_MS_MIN: Final = (datetime.datetime.min.replace(tzinfo=datetime.UTC) - _EPOCH) // _MILLISECOND
_TIME_MS_MAX: Final = (datetime.datetime.max.replace(tzinfo=datetime.UTC) - _EPOCH) // _MILLISECOND
_ZERO_UUID: Final = bytes(16)
_ERROR_CODES: Final[Mapping[int, ErrorCode]] = {code.value: code for code in ErrorCode}


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
        if position < self.end and (byte := buffer[position]) < 0x80:  # nearly all of them
            self.position = position + 1
            return byte
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


def read_entity(entity: EntityType, cursor: Cursor, target: EntityType | None = None) -> Any:
    """Build one message from the cursor's bytes; PeerError on anything that does not fit.

    The bytes are laid out as `entity` says. The message is of class `target`, which must have all fields of
    `entity`; fields that it has beyond these get the defaults of Kafka's schema.
    """
    try:
        return _entity_reader(entity, entity if target is None else target)(cursor)
    except (struct.error, ValueError, OverflowError) as error:
        raise PeerError(f"malformed {entity.__name__} v{entity.__version__}: {error}") from None
    except PeerError as error:
        raise PeerError(f"malformed {entity.__name__} v{entity.__version__}: {error}") from None


def position_of(entity: EntityType, name: str, cursor: Cursor) -> int | None:
    """Where a field of the message at the cursor begins; None if its version has no such field."""
    for field in shape_of(entity):
        if field.name == name:
            return cursor.position
        if field.tag is None:
            _field_reader(field, entity.__flexible__, field.entity)(cursor)
    return None


@cache
def _entity_reader(entity: EntityType, target: EntityType) -> Reader:
    """Fields are set through their slots: the constructor of a frozen class is several times slower."""
    flexible = entity.__flexible__
    shape = shape_of(entity)
    nested = {field.name: field.entity for field in shape_of(target)}
    parts = [
        _run_reader(target, fields)
        if is_run
        else _part_reader(target, fields[0], flexible, nested[fields[0].name])
        for is_run, fields in runs_of(entity)
    ]
    tagged = {
        f.tag: (f.name, _setter(target, f), _field_reader(f, flexible, nested[f.name]))
        for f in shape
        if f.tag is not None
    }
    untagged = {field.name for field in shape if field.tag is None}
    defaults = [(_setter(target, f), _decoded_default(f)) for f in shape_of(target) if f.name not in untagged]
    new = object.__new__

    def read(cursor: Cursor) -> Any:
        message = new(target)
        for part in parts:
            part(cursor, message)
        for put, default in defaults:
            put(message, default)
        if flexible:
            count = cursor.uvarint()
            if count:
                _read_tags(cursor, count, tagged, message)
        return message

    return read


def _setter(target: EntityType, field: FieldShape) -> Setter:
    setter: Setter = vars(target)[field.name].__set__
    return setter


def _run_reader(target: EntityType, fields: Sequence[FieldShape]) -> PartReader:
    layout = layout_of(fields)
    unpack, size = layout.unpack_from, layout.size
    converters = [_converter(field) for field in fields]
    setters = [_setter(target, field) for field in fields]
    if not any(converters):

        def read_plain(cursor: Cursor, message: Any) -> None:
            position = cursor.position
            for put, value in zip(setters, unpack(cursor.buffer, position), strict=True):
                put(message, value)
            cursor.position = position + size

        return read_plain
    steps = list(zip(setters, converters, strict=True))

    def read_converted(cursor: Cursor, message: Any) -> None:
        position = cursor.position
        for (put, convert), value in zip(steps, unpack(cursor.buffer, position), strict=True):
            put(message, value if convert is None else convert(value))
        cursor.position = position + size

    return read_converted


def _part_reader(
    target: EntityType, field: FieldShape, flexible: bool, nested: EntityType | None
) -> PartReader:
    put, reader = _setter(target, field), _field_reader(field, flexible, nested)

    def read(cursor: Cursor, message: Any) -> None:
        put(message, reader(cursor))

    return read


def _decoded_default(field: FieldShape) -> Any:
    """The value of a field that is absent: a tag, or a field that the request's version does not have."""
    if field.entity is None or field.is_array:
        # The schema's default is a number where the class has a duration or a time.
        convert = None if field.is_array else _converter(field)
        return convert(field.default) if convert is not None and type(field.default) is int else field.default
    if field.default is not None or field.nullable:
        return field.default
    return field.entity(**{nested.name: nested.default for nested in shape_of(field.entity)})


def _read_tags(
    cursor: Cursor, count: int, tagged: Mapping[int, tuple[str, Setter, Reader]], message: Any
) -> None:
    for _ in range(count):
        tag, size = cursor.uvarint(), cursor.uvarint()
        end = cursor.position + size
        if end > cursor.end:
            raise PeerError("tagged field is cut short")
        known = tagged.get(tag)
        if known is not None:
            name, put, reader = known
            put(message, reader(cursor))
            if cursor.position != end:
                raise PeerError(f"tagged field {name} is not {size} bytes long")
        cursor.position = end


def _field_reader(field: FieldShape, flexible: bool, nested: EntityType | None) -> Reader:
    item = _item_reader(field, flexible, nested)
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


def _item_reader(field: FieldShape, flexible: bool, nested: EntityType | None) -> Reader:
    nullable = field.nullable and not field.is_array
    if field.entity is not None:
        reader = _entity_reader(field.entity, nested)
        # A tagged struct is nullable by its absence; any other carries a marker byte (KIP-893).
        return _nullable_entity_reader(reader) if nullable and field.tag is None else reader
    kafka_type = str(field.kafka_type)
    if kafka_type == "string":
        return _sized_reader(field.name, flexible, nullable, struct.Struct(">h"), _to_str)
    if kafka_type in ("bytes", "records"):
        return _sized_reader(field.name, flexible, nullable, struct.Struct(">i"), bytes)
    return _fixed_reader(FIXED[kafka_type], _converter(field))


def _converter(field: FieldShape) -> Callable[[Any], Any] | None:
    """What makes the value of a field of fixed size out of the number on the wire; None: it is the value."""
    convert = _FROM_WIRE.get(str(field.kafka_type))
    if convert is None or not field.nullable or field.is_array:
        return convert
    return lambda value: None if value == -1 else convert(value)


def _nullable_entity_reader(reader: Reader) -> Reader:
    def read(cursor: Cursor) -> Any:
        return None if cursor.take(1)[0] == 0xFF else reader(cursor)

    return read


def _fixed_reader(layout: struct.Struct, convert: Callable[[Any], Any] | None) -> Reader:
    unpack, size = layout.unpack_from, layout.size

    def read(cursor: Cursor) -> Any:
        position = cursor.position
        cursor.position = position + size
        return unpack(cursor.buffer, position)[0]

    if convert is None:
        return read

    def read_converted(cursor: Cursor) -> Any:
        return convert(read(cursor))

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


def _to_duration(milliseconds: int) -> datetime.timedelta:
    """The longest that Python can express, 2.7 million years, stands for whatever is longer."""
    return datetime.timedelta(milliseconds=min(max(milliseconds, _DURATION_MS_MIN), _DURATION_MS_MAX))


def _to_time(milliseconds: int) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(milliseconds=min(max(milliseconds, _TIME_MS_MIN), _TIME_MS_MAX))


_FROM_WIRE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "error_code": lambda value: _ERROR_CODES[value] if value in _ERROR_CODES else ErrorCode(value),
    "timedelta_i32": lambda value: datetime.timedelta(milliseconds=value),
    "timedelta_i64": _to_duration,
    "datetime_i64": _to_time,
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
