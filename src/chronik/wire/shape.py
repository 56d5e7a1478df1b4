"""What kio's dataclasses say about the bytes of a message.

kio carries the schema of every Kafka message and version as dataclasses; this module turns their fields
into the few facts that reading and writing need.
"""

from __future__ import annotations

import struct
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeAlias

from chronik.model import ErrorCode

__all__ = ["FIXED", "EntityType", "FieldShape", "layout_of", "runs_of", "shape_of"]

EntityType: TypeAlias = Any
"""A dataclass of kio: one struct of one version of one message."""


class FieldShape(NamedTuple):
    """What a dataclass field of kio says about its place on the wire."""

    name: str
    kafka_type: str | None
    entity: EntityType | None
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any


@cache
def shape_of(entity: EntityType) -> tuple[FieldShape, ...]:
    return tuple(_field_shape(field) for field in fields(entity))


@cache
def runs_of(entity: EntityType) -> tuple[tuple[bool, tuple[FieldShape, ...]], ...]:
    """The fields without a tag, in order. Those of fixed size that follow each other form a run (True), which
    takes one call to pack or unpack; every other field stands alone."""
    untagged = [field for field in shape_of(entity) if field.tag is None]
    found: list[tuple[bool, tuple[FieldShape, ...]]] = []
    for is_fixed, group in groupby(untagged, lambda field: not field.is_array and field.kafka_type in FIXED):
        if is_fixed:
            found.append((True, tuple(group)))
        else:
            found += [(False, (field,)) for field in group]
    return tuple(found)


def layout_of(run: Iterable[FieldShape]) -> struct.Struct:
    return struct.Struct(">" + "".join(FIXED[str(field.kafka_type)].format[1:] for field in run))


def _field_shape(field: Field[Any]) -> FieldShape:
    inner, nullable = _without_none(field.type)
    is_array = typing.get_origin(inner) is tuple
    if is_array:
        inner, _ = _without_none(typing.get_args(inner)[0])
    entity = inner if is_dataclass(inner) else None
    kafka_type = field.metadata.get("kafka_type")
    default = field.default if field.default is not MISSING else None
    if default is None and not nullable:
        default = () if is_array else _EMPTY.get(str(kafka_type))
    return FieldShape(field.name, kafka_type, entity, is_array, nullable, field.metadata.get("tag"), default)


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (inner,) = (arg for arg in typing.get_args(hint) if arg is not types.NoneType)
        return inner, True
    return hint, False


_EMPTY: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint16", "timedelta_i32", "timedelta_i64"), 0),
    "datetime_i64": -1,
    "float64": 0.0,
    "bool": False,
    "error_code": ErrorCode.none,
    "string": "",
    "bytes": b"",
    "records": b"",
}

FIXED: Final[Mapping[str, struct.Struct]] = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
    "uint16": struct.Struct(">H"),
    "float64": struct.Struct(">d"),
    "bool": struct.Struct(">?"),
    "error_code": struct.Struct(">h"),
    "timedelta_i32": struct.Struct(">i"),
    "timedelta_i64": struct.Struct(">q"),
    "datetime_i64": struct.Struct(">q"),
    "uuid": struct.Struct(">16s"),
}
