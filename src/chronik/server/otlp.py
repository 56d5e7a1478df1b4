"""Reads OpenTelemetry's MetricsData, in which clients push their metrics (KIP-714). Pure.

Of each data point the name, unit, kind, attributes, time and value are taken; what else there is gets
skipped. The fields are those of opentelemetry/proto/metrics/v1/metrics.proto. Everything is bounded: points,
attributes, the lengths of texts, the bytes of all points together, and the work. Bytes that are no
MetricsData raise ValueError.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

__all__ = ["POINTS_BYTES_MAX", "POINTS_MAX", "MetricPoint", "PackedPoints", "read_metrics"]

POINTS_MAX: Final = 200
"""Points that are taken of one push; further ones are left out."""
POINTS_BYTES_MAX: Final = 32 * 1024
"""Bytes of all points of one push, packed: enough for 200 with the names that clients have."""
ATTRIBUTES_MAX: Final = 16
TEXT_CHARS_MAX: Final = 200
FIELDS_MAX: Final = 20_000
"""Fields that are looked at in one push, in all messages of it: some ten milliseconds of work."""

Kind: TypeAlias = Literal["gauge", "sum", "histogram"]
_Field: TypeAlias = tuple[int, int, "int | bytes"]
"""Number, wire type and value: an int for varints, bytes for the rest."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_KINDS: Final[dict[int, Kind]] = {5: "gauge", 7: "sum", 9: "histogram"}
_DELTA: Final = 1
_LIST_BYTES: Final = 5
"""What a packed list takes besides its points."""


class MetricPoint(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    name: str
    unit: str
    kind: Kind
    is_delta: bool
    """The value is what was added since the last push, not since the start."""
    attributes: tuple[tuple[str, str], ...]
    time_ms: int
    value: float
    """For a histogram this is the sum."""
    count: int | None = None
    """Only for a histogram: how many values there were."""


@dataclass(frozen=True, slots=True)
class PackedPoints:
    """The points of one push, packed: they take about the bytes of their texts.

    As objects they would take up to two hundred times as much.
    """

    data: bytes = msgspec.msgpack.encode(())
    count: int = 0
    left_out: int = 0
    """Further points of the push, which are not in `data`; at least so many."""

    def unpack(self) -> list[MetricPoint]:
        return msgspec.msgpack.decode(self.data, type=list[MetricPoint])


class _RawPoint(NamedTuple):
    data: bytes
    name: str
    unit: str
    kind: Kind
    is_delta: bool


def read_metrics(data: bytes) -> PackedPoints:
    """The first points in the order in which they come, within POINTS_MAX and POINTS_BYTES_MAX."""
    return _PointReader().read(data)


class _PointReader:
    def __init__(self) -> None:
        self._left = FIELDS_MAX

    def read(self, data: bytes) -> PackedPoints:
        taken: list[msgspec.Raw] = []
        size, left_out = _LIST_BYTES, 0
        try:
            for raw in self._all_points(data):
                if left_out == 0 and len(taken) < POINTS_MAX:
                    point = msgspec.msgpack.encode(self._point(raw))
                    if size + len(point) <= POINTS_BYTES_MAX:
                        size += len(point)
                        taken.append(msgspec.Raw(point))
                        continue
                left_out += 1
        except ValueError:
            if left_out == 0:
                raise  # else what is wanted has been read, and the rest is only counted
        return PackedPoints(msgspec.msgpack.encode(taken), len(taken), left_out)

    def _all_points(self, data: bytes) -> Iterator[_RawPoint]:
        for resource in self._messages(data, 1):
            for scope in self._messages(resource, 2):
                for metric in self._messages(scope, 2):
                    yield from self._points(metric)

    def _points(self, metric: bytes) -> Iterator[_RawPoint]:
        name = unit = ""
        bodies: list[tuple[Kind, bytes]] = []
        for number, wire, value in self._fields(metric):
            if number == 1 and wire == _LENGTH:
                name = _text(value)
            elif number == 3 and wire == _LENGTH:
                unit = _text(value)
            elif number in _KINDS and isinstance(value, bytes) and wire == _LENGTH:
                bodies.append((_KINDS[number], value))
        for kind, body in bodies:
            temporality = next((v for n, w, v in self._fields(body) if n == 2 and w == _VARINT), 0)
            for point in self._messages(body, 1):
                yield _RawPoint(point, name, unit, kind, temporality == _DELTA)

    def _point(self, point: _RawPoint) -> MetricPoint:
        data, name, unit, kind, is_delta = point
        fixed: dict[int, bytes] = {}
        attributes: list[tuple[str, str]] = []
        attributes_field = 9 if kind == "histogram" else 7
        for number, wire, raw in self._fields(data):
            if wire == _LENGTH and number == attributes_field and isinstance(raw, bytes):
                if len(attributes) < ATTRIBUTES_MAX:
                    attributes.append(self._attribute(raw))
            elif wire == _FIXED64 and isinstance(raw, bytes):
                fixed[number] = raw
        count = None
        if kind == "histogram":
            value = _number("<d", fixed.get(5))
            count = int(_number("<Q", fixed.get(4)))
        else:
            value = _number("<d", fixed.get(4)) if 4 in fixed else float(_number("<q", fixed.get(6)))
        return MetricPoint(
            name=name,
            unit=unit,
            kind=kind,
            is_delta=is_delta,
            attributes=tuple(attributes),
            time_ms=int(_number("<Q", fixed.get(3))) // 1_000_000,
            value=value if math.isfinite(value) else 0.0,
            count=count,
        )

    def _attribute(self, data: bytes) -> tuple[str, str]:
        key = value = ""
        for number, wire, raw in self._fields(data):
            if number == 1 and wire == _LENGTH:
                key = _text(raw)
            elif number == 2 and isinstance(raw, bytes) and wire == _LENGTH:
                value = self._any_value(raw)
        return key, value

    def _any_value(self, data: bytes) -> str:
        """The value as text; lists, maps and bytes are left out."""
        for number, wire, raw in self._fields(data):
            if number == 1 and wire == _LENGTH:
                return _text(raw)
            if number == 2 and wire == _VARINT:
                return "true" if raw else "false"
            if number == 3 and isinstance(raw, int):
                return str(raw - (1 << 64) if raw >= 1 << 63 else raw)
            if number == 4 and wire == _FIXED64 and isinstance(raw, bytes):
                return f"{_number('<d', raw):g}"
        return ""

    def _messages(self, data: bytes, wanted: int) -> Iterator[bytes]:
        for number, wire, value in self._fields(data):
            if number == wanted and wire == _LENGTH and isinstance(value, bytes):
                yield value

    def _fields(self, data: bytes) -> Iterator[_Field]:
        """The fields of one protobuf message; groups, which nobody writes any more, are refused."""
        at = 0
        while at < len(data):
            if self._left == 0:
                raise ValueError(f"more than {FIELDS_MAX} fields")
            self._left -= 1
            tag, at = _varint(data, at)
            number, wire = tag >> 3, tag & 7
            if wire == _VARINT:
                value, at = _varint(data, at)
                yield number, wire, value
                continue
            if wire == _LENGTH:
                size, at = _varint(data, at)
            elif wire in (_FIXED64, _FIXED32):
                size = 8 if wire == _FIXED64 else 4
            else:
                raise ValueError(f"wire type {wire} at byte {at}")
            if at + size > len(data):
                raise ValueError(f"a field of {size} bytes at byte {at} of {len(data)}")
            yield number, wire, data[at : at + size]
            at += size


def _number(form: str, raw: bytes | None) -> float:
    """0 for a field that is not there, as protobuf has it."""
    return 0 if raw is None else struct.unpack(form, raw)[0]


def _text(raw: int | bytes) -> str:
    if not isinstance(raw, bytes):
        return ""
    return raw[: 4 * TEXT_CHARS_MAX].decode(errors="replace")[:TEXT_CHARS_MAX]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("a number that does not end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
    raise ValueError("a number of more than ten bytes")
