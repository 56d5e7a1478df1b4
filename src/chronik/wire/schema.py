"""Requests and responses of every API and version, by the schemas that kio carries.

A schema module costs a few milliseconds and some memory to import, so each is loaded when the first
message of its API and version comes along. All functions here are pure but for that cache.
"""

from __future__ import annotations

import datetime
import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Literal, TypeAlias

from kio.schema.index import PayloadEntityType, api_key_map, schema_name_map
from kio.static.constants import EntityType

from chronik.model import PeerError
from chronik.wire.api import ApiKey, is_flexible
from chronik.wire.reading import Buffer, Cursor, position_of, read_entity
from chronik.wire.shape import FieldShape, shape_of
from chronik.wire.writing import Encoded, write_element, write_entity

__all__ = [
    "REQUEST_ELEMENTS_MAX",
    "check_fields",
    "decode_request",
    "decode_response",
    "encode_element",
    "encode_request",
    "encode_response",
    "in_ms",
    "response_has_field",
    "schema_versions",
    "tell_throttle_time",
]

_KIND: Final[Mapping[str, PayloadEntityType]] = {
    "request": EntityType.request,
    "response": EntityType.response,
}
Direction: TypeAlias = Literal["request", "response"]
Fields: TypeAlias = Mapping[str, Any]

REQUEST_ELEMENTS_MAX: Final = 200_000
"""Array elements in one request. An element of a few bytes becomes an object of a hundred and costs a
microsecond of the event loop, so the frame limit alone bounds neither."""
RESPONSE_ELEMENTS_MAX: Final = 5_000_000


_MILLISECOND: Final = datetime.timedelta(milliseconds=1)


def in_ms(duration: datetime.timedelta) -> int:
    """Exactly what the request said; by way of float seconds 1001 becomes 1000."""
    return duration // _MILLISECOND


@cache
def schema_versions(api_key: int) -> tuple[int, int]:
    """Oldest and newest version that there is a schema for."""
    versions = schema_name_map[api_key_map[api_key]]
    return min(versions), max(versions)


@cache
def _entity(api_key: int, version: int, direction: Direction) -> Any:
    try:
        path = schema_name_map[api_key_map[api_key]][version][_KIND[direction]]
    except KeyError:
        raise PeerError(f"no schema for API {api_key} version {version}") from None
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def decode_request(
    api_key: int,
    version: int,
    buffer: Buffer,
    offset: int = 0,
    *,
    decoded_as: int | None = None,
    elements_max: int = REQUEST_ELEMENTS_MAX,
) -> Any:
    """The request body that starts at `offset`, as kio's entity. PeerError if the bytes make no sense.

    The entity is that of version `decoded_as`, which must have all fields of `version`; what `version` lacks
    has its default there. Bytes beyond the body are ignored, as Kafka ignores them.
    """
    target = None if decoded_as is None else _entity(api_key, decoded_as, "request")
    return read_entity(_entity(api_key, version, "request"), Cursor(buffer, offset, elements_max), target)


def encode_response(api_key: int, version: int, correlation_id: int, fields: Fields) -> bytes:
    """A whole response frame: four bytes of length, the response header, the body."""
    out = bytearray(8)
    out[4:8] = correlation_id.to_bytes(4, "big", signed=True)
    if _response_has_tags(api_key, version):
        out.append(0)
    write_entity(_entity(api_key, version, "response"), out, fields)
    out[0:4] = (len(out) - 4).to_bytes(4, "big")
    return bytes(out)


def encode_element(api_key: int, version: int, array: str, fields: Fields) -> Encoded:
    """An element of an array of the response, to be put into the fields of several responses as it is."""
    return write_element(_entity(api_key, version, "response"), array, fields)


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, fields: Fields
) -> bytes:
    """A whole request frame: four bytes of length, the request header, the body."""
    out = bytearray(4)
    out += api_key.to_bytes(2, "big", signed=True)
    out += version.to_bytes(2, "big", signed=True)
    out += correlation_id.to_bytes(4, "big", signed=True)
    if client_id is None:
        out += b"\xff\xff"
    else:
        encoded = client_id.encode()
        out += len(encoded).to_bytes(2, "big", signed=True) + encoded
    if is_flexible(api_key, version):
        out.append(0)
    write_entity(_entity(api_key, version, "request"), out, fields)
    out[0:4] = (len(out) - 4).to_bytes(4, "big")
    return bytes(out)


def decode_response(api_key: int, version: int, buffer: Buffer, offset: int = 0) -> tuple[int, Any]:
    """Correlation id and body of a response frame (without its four bytes of length)."""
    cursor = Cursor(buffer, offset, RESPONSE_ELEMENTS_MAX)
    correlation_id = int.from_bytes(cursor.take(4), "big", signed=True)
    if _response_has_tags(api_key, version):
        for _ in range(cursor.uvarint()):
            cursor.uvarint()
            cursor.take(cursor.uvarint())
    return correlation_id, read_entity(_entity(api_key, version, "response"), cursor)


def tell_throttle_time(
    api_key: int, version: int, frame: bytes | bytearray, throttle_ms: int
) -> bytes | bytearray:
    """A response frame that says how long the client is throttled; the same one if it has no place for that.

    Of a frame in several buffers the first will do where the throttle time comes first, as in Fetch.
    A version older than the first schema was refused: its client gets the error code and no more.
    """
    if version < schema_versions(api_key)[0]:
        return frame
    entity = _entity(api_key, version, "response")
    start = 9 if _response_has_tags(api_key, version) else 8
    at = position_of(entity, "throttle_time", Cursor(memoryview(frame), start, RESPONSE_ELEMENTS_MAX))
    if at is None:
        return frame
    with_wait = bytearray(frame)
    with_wait[at : at + 4] = throttle_ms.to_bytes(4, "big")
    return with_wait


def _response_has_tags(api_key: int, version: int) -> bool:
    # A client that asks with a version we do not know must be able to read our answer (KIP-511).
    return api_key != ApiKey.API_VERSIONS and is_flexible(api_key, version)


def check_fields(api_key: int, direction: Direction, fields: Fields) -> None:
    """ValueError if a field, at any depth, exists in no version of the API's schema.

    Writing drops what a version lacks, which would also drop a misspelt name without a word. Tests and
    debug runs check every message; it loads all versions' schemas, so serving does not.
    """
    _check(_field_names(api_key, direction), fields, f"{api_key_map[api_key]} {direction}")


_Tree: TypeAlias = "dict[str, _Tree]"


@cache
def _field_names(api_key: int, direction: Direction) -> _Tree:
    names: _Tree = {}
    for version in schema_name_map[api_key_map[api_key]]:
        _collect(names, shape_of(_entity(api_key, version, direction)))
    return names


def _collect(names: _Tree, shape: tuple[FieldShape, ...]) -> None:
    for field in shape:
        nested = names.setdefault(field.name, {})
        if field.entity is not None:
            _collect(nested, shape_of(field.entity))


def _check(names: _Tree, fields: Fields, where: str) -> None:
    for name, value in fields.items():
        if name not in names:
            raise ValueError(f"{where} has no field {name!r} in any version; it has {', '.join(names)}")
        items = value if isinstance(value, (list, tuple)) else (value,)
        for item in items:
            if isinstance(item, Mapping):
                _check(names[name], item, f"{where}.{name}")


@cache
def response_has_field(api_key: int, version: int, name: str) -> bool:
    """Whether the response has this field at its top level."""
    return any(field.name == name for field in shape_of(_entity(api_key, version, "response")))
