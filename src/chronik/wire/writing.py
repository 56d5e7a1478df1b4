"""Writes messages by their schema: plain nested mappings in, bytes out.

One reply serves every version: a field that the version lacks is dropped, a missing one gets the schema's
default (a nullable field without default: null). A writer is compiled once per class, out of small closures.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from chronik.wire.shape import FIXED, EntityType, FieldShape, layout_of, runs_of, shape_of

__all__ = ["Encoded", "write_element", "write_entity"]

Writer: TypeAlias = Callable[[bytearray, Any], None]

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)
_ZERO_UUID: Final = bytes(16)


class Encoded(bytes):
    """An element of an array of structs that was written before, by `write_element`."""


def write_element(entity: EntityType, array: str, values: Mapping[str, Any]) -> Encoded:
    """One element of an array of structs that the message has at its top level."""
    out = bytearray()
    _element_writer(entity, array)(out, values)
    return Encoded(out)


@cache
def _element_writer(entity: EntityType, array: str) -> Writer:
    (field,) = (field for field in shape_of(entity) if field.name == array)
    return _item_writer(field, entity.__flexible__)


def write_entity(entity: EntityType, out: bytearray, values: Mapping[str, Any]) -> None:
    """Append a message of this class, taking its fields from nested mappings and sequences."""
    _entity_writer(entity)(out, values)


@cache
def _entity_writer(entity: EntityType) -> Writer:
    flexible = entity.__flexible__
    parts = [
        _run_writer(fields) if is_run else _part_writer(fields[0], flexible)
        for is_run, fields in runs_of(entity)
    ]
    tagged = sorted(
        (f.tag, f.name, _encoded_default(f, flexible), _field_writer(f, flexible))
        for f in shape_of(entity)
        if f.tag is not None
    )

    def write(out: bytearray, values: Mapping[str, Any] | None) -> None:
        if values is None:
            values = {}
        for part in parts:
            part(out, values)
        if flexible:
            if tagged:
                _write_tags(out, tagged, values)
            else:
                out.append(0)

    return write


def _run_writer(run: Sequence[FieldShape]) -> Writer:
    """Fields of fixed size that follow each other, packed at once."""
    pack = layout_of(run).pack
    steps = [(field.name, field.default, _TO_WIRE.get(str(field.kafka_type))) for field in run]

    def write_converted(out: bytearray, values: Mapping[str, Any]) -> None:
        get = values.get
        row = []
        for name, default, convert in steps:
            value = get(name, default)
            if convert is not None:
                value = convert(value)
            row.append(default if value is None else value)
        out += pack(*row)

    if any(convert is not None for _, _, convert in steps):
        return write_converted
    names, defaults = [field.name for field in run], [field.default for field in run]

    def write(out: bytearray, values: Mapping[str, Any]) -> None:
        row = list(map(values.get, names, defaults))
        if None in row:
            row = [d if value is None else value for value, d in zip(row, defaults, strict=True)]
        out += pack(*row)

    return write


def _part_writer(field: FieldShape, flexible: bool) -> Writer:
    name, default, writer = field.name, field.default, _field_writer(field, flexible)

    def write(out: bytearray, values: Mapping[str, Any]) -> None:
        writer(out, values.get(name, default))

    return write


def _encoded_default(field: FieldShape, flexible: bool) -> bytes | None:
    if field.default is None and field.entity is None:
        return None
    out = bytearray()
    default = {} if field.entity is not None and not field.is_array else field.default
    _field_writer(field, flexible)(out, default)
    return bytes(out)


def _write_tags(
    out: bytearray, tagged: Sequence[tuple[int, str, bytes | None, Writer]], values: Mapping[str, Any]
) -> None:
    """Absent tags mean defaults: one that equals its default is left out, as Kafka does."""
    count, section = 0, bytearray()
    for tag, name, default, writer in tagged:
        value = values.get(name)
        if value is None:
            continue
        encoded = bytearray()
        writer(encoded, value)
        if default is not None and encoded == default:
            continue
        count += 1
        _write_uvarint(section, tag)
        _write_uvarint(section, len(encoded))
        section += encoded
    _write_uvarint(out, count)
    out += section


def _field_writer(field: FieldShape, flexible: bool) -> Writer:
    item = _item_writer(field, flexible)
    if not field.is_array:
        return item
    nullable = field.nullable

    def write_array(out: bytearray, items: Sequence[Any] | None) -> None:
        if items is None:
            if nullable:
                out += b"\x00" if flexible else b"\xff\xff\xff\xff"
                return
            items = ()
        if flexible:
            _write_uvarint(out, len(items) + 1)
        else:
            out += FIXED["int32"].pack(len(items))
        for element in items:
            if type(element) is Encoded:
                out += element
            else:
                item(out, element)

    return write_array


def _item_writer(field: FieldShape, flexible: bool) -> Writer:
    nullable = field.nullable and not field.is_array
    if field.entity is not None:
        return _entity_item_writer(field.entity, nullable and field.tag is None)
    kafka_type = str(field.kafka_type)
    if kafka_type == "string":
        return _sized_writer(flexible, nullable, struct.Struct(">h"), str.encode)
    if kafka_type in ("bytes", "records"):
        return _sized_writer(flexible, nullable, struct.Struct(">i"), None)
    return _fixed_writer(FIXED[kafka_type].pack, _TO_WIRE.get(kafka_type), field.default)


def _entity_item_writer(entity: EntityType, marked: bool) -> Writer:
    writer = _entity_writer(entity)
    if not marked:
        return writer

    def write(out: bytearray, values: Mapping[str, Any] | None) -> None:
        if values is None:
            out.append(0xFF)
        else:
            out.append(1)
            writer(out, values)

    return write


def _fixed_writer(pack: Callable[[Any], bytes], convert: Callable[[Any], Any] | None, default: Any) -> Writer:
    if convert is None:

        def write(out: bytearray, value: Any) -> None:
            out += pack(default if value is None else value)

        return write

    def write_converted(out: bytearray, value: Any) -> None:
        out += pack(convert(value))

    return write_converted


def _sized_writer(
    flexible: bool, nullable: bool, length: struct.Struct, convert: Callable[[Any], bytes] | None
) -> Writer:
    null = b"\x00" if flexible else length.pack(-1)
    empty = b"\x01" if flexible else length.pack(0)

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            # A field that may be null in newer versions only: the old ones get it empty.
            out += null if nullable else empty
            return
        data = value if convert is None else convert(value)
        if flexible:
            _write_uvarint(out, len(data) + 1)
        else:
            out += length.pack(len(data))
        out += data

    return write


def _milliseconds(value: Any) -> int:
    if isinstance(value, datetime.timedelta):
        return value // _MILLISECOND
    return int(value or 0)


def _timestamp(value: Any) -> int:
    if isinstance(value, datetime.datetime):
        return (value - _EPOCH) // _MILLISECOND
    return -1 if value is None else int(value)


_TO_WIRE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "timedelta_i32": _milliseconds,
    "timedelta_i64": _milliseconds,
    "datetime_i64": _timestamp,
    "uuid": lambda value: _ZERO_UUID if value is None else value.bytes,
}


def _write_uvarint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
