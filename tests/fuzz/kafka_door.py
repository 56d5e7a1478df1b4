"""Every API and version that a node offers: hostile fields, damaged frames, interleaved connections."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

from kio.index import load_request_schema

from chronik.server.handlers import all_handlers
from chronik.wire.api import ApiKey
from chronik.wire.schema import encode_request, schema_versions
from chronik.wire.shape import FieldShape, shape_of
from tests.fuzz.inputs import Input, Piece
from tests.fuzz.records_door import hostile_batch
from tests.fuzz.values import NAMES, damaged, integer, text
from tests.wire import integer_bits

RANGES: Final = {
    handler.api_key: (max(handler.versions[0], schema_versions(handler.api_key)[0]), handler.versions[1])
    for handler in all_handlers()
}
ALL: Final = [(key, version) for key, (low, high) in RANGES.items() for version in range(low, high + 1)]
MAY_WAIT: Final = {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}
"""These may wait for others, or be meant to have no answer."""
ARRAY_SIZES: Final = (0, 1, 1, 1, 2, 3)
LARGE_ARRAY: Final = 1_000
WHOLE_NODE: Final = {
    ApiKey.ALTER_CONFIGS: {"resource_type": (0, 2, 3, 8, 16, 32, 99), "validate_only": (True, False)},
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {"resource_type": (0, 2, 3, 16, 32, 99)},
    ApiKey.ALTER_CLIENT_QUOTAS: {"entity_name": ("fuzz",), "entity_type": ("user", "client-id", "x")},
    ApiKey.CREATE_ACLS: {"resource_name": ("fuzz-0",), "principal": ("User:fuzz",)},
    ApiKey.UNREGISTER_BROKER: {"broker_id": (1, 2, -1, 2**31 - 1)},
}
"""Fields by which an administrator may change things for everybody: a broker's configs, default quotas. Doing
so is not hostile input, so these take other values."""


class Fields:
    """Hostile values for the fields of one request."""

    def __init__(self, pick: random.Random, api_key: ApiKey, topic_ids: list[UUID]) -> None:
        self._pick = pick
        self._topic_ids = topic_ids
        self._fixed = WHOLE_NODE.get(api_key, {})
        self._left = 3_000
        """Elements that may still be made: arrays within arrays multiply."""

    def of(self, entity: Any) -> dict[str, Any]:
        return {field.name: self._value(field) for field in shape_of(entity)}

    def _value(self, field: FieldShape) -> Any:
        pick = self._pick
        if field.nullable and field.tag is None and field.name not in self._fixed and pick.random() < 0.15:
            return None
        if not field.is_array:
            return self._item(field)
        size = LARGE_ARRAY if pick.random() < 0.02 else pick.choice(ARRAY_SIZES)
        size = min(size, self._left)
        self._left -= size
        made = [self._item(field) for _ in range(size)]
        return made * 2 if size < 5 and pick.random() < 0.1 else made  # the same ones twice

    def _item(self, field: FieldShape) -> Any:
        pick = self._pick
        if field.name in self._fixed:
            return pick.choice(self._fixed[field.name])
        if field.entity is not None:
            return self.of(field.entity)
        if (bits := integer_bits(field)) is not None:
            return self._number(field, bits)
        match str(field.kafka_type):
            case "string":
                return self._text(field.name)
            case "records":
                return b"".join(
                    hostile_batch(pick, may_be_large=False) for _ in range(pick.choice((0, 1, 1, 2)))
                )
            case "bytes":
                return pick.randbytes(pick.choice((0, 1, 127, 5_000)))
            case "bool":
                return pick.random() < 0.5
            case "float64":
                return pick.choice((0.0, -1.5, 1e300, float("nan"), float("inf")))
            case "uuid":
                return (
                    pick.choice(self._topic_ids) if pick.random() < 0.7 else UUID(int=pick.getrandbits(128))
                )
            case "uint16":
                return pick.choice((0, 1, 9092, 65535))
        raise AssertionError(field)

    def _number(self, field: FieldShape, bits: int) -> int:
        pick, name, kind = self._pick, field.name, str(field.kafka_type)
        if kind == "error_code":
            return pick.choice((0, 1, -1, 35))
        if kind.startswith(("datetime", "timedelta")) or name.endswith(("timeout", "timeout_ms", "max_wait")):
            return pick.choice((0, 0, 1, 100, 1_000, -1, (1 << (min(bits, 40) - 1)) - 1))
        if "partition" in name and name not in ("num_partitions",) and pick.random() < 0.7:
            return pick.choice((0, 0, 1))
        if name == "num_partitions":
            return pick.choice((-1, 1, 2, 0, -2, 2**31 - 1))
        if name in ("leader_id", "broker_id", "replica_id", "node_id", "broker_ids", "replicas"):
            return pick.choice((1, -1, 2, 0, 2**31 - 1, -2))
        return integer(pick, bits)

    def _text(self, name: str) -> str:
        if any(part in name for part in ("name", "topic", "group", "member", "transactional", "key")):
            return self._pick.choice(NAMES)
        return text(self._pick)


def inputs(pick: random.Random, topic_ids: list[UUID]) -> Iterator[Input]:
    order: list[tuple[ApiKey, int]] = []
    while True:
        if not order:
            order = pick.sample(ALL, len(ALL))  # each version of each API in every turn
        match pick.randrange(8):
            case 0 | 1 | 2:
                yield _well_formed(pick, *order.pop(), topic_ids)
            case 3 | 4:
                yield _one(pick, "damaged", *order.pop(), topic_ids)
            case 5:
                yield _one(pick, "cut", *order.pop(), topic_ids)
            case 6:
                yield _interleaved(pick, order, topic_ids)
            case _:
                yield _noise(pick)


def frame_of(pick: random.Random, key: ApiKey, version: int, topic_ids: list[UUID]) -> bytes:
    fields = Fields(pick, key, topic_ids).of(load_request_schema(key, version))
    client = pick.choice(("fuzz", None, "", "é" * 100))
    return encode_request(key, version, pick.randrange(1 << 31), client, fields)


def reframed(data: bytes) -> bytes:
    """With the length that the bytes really have, so that they get past the framing."""
    return (len(data) - 4).to_bytes(4, "big") + data[4:] if len(data) > 4 else data


def _well_formed(pick: random.Random, key: ApiKey, version: int, topic_ids: list[UUID]) -> Input:
    frame = frame_of(pick, key, version, topic_ids)
    answers = 0 if key in MAY_WAIT else 1
    return Input(what=f"{key.name} v{version}", port="kafka", pieces=(Piece(0, frame),), answers=answers)


def _one(pick: random.Random, how: str, key: ApiKey, version: int, topic_ids: list[UUID]) -> Input:
    frame = frame_of(pick, key, version, topic_ids)
    if how == "cut":
        frame = frame[: pick.randrange(len(frame))]
    else:
        # The header decides who reads the body: leave it alone most of the time.
        frame = damaged(pick, frame, start=pick.choice((14, 14, 14, 4, 0)))
        frame = reframed(frame) if pick.random() < 0.9 else frame
    return Input(what=f"{key.name} v{version} {how}", port="kafka", pieces=(Piece(0, frame),))


def _interleaved(pick: random.Random, order: list[tuple[ApiKey, int]], topic_ids: list[UUID]) -> Input:
    """Several connections whose frames arrive in pieces, by turns."""
    waiting: list[tuple[int, bytes]] = []
    names = []
    for number in range(min(pick.randrange(2, 6), len(order))):
        key, version = order.pop()
        names.append(f"{key.name} v{version}")
        frame = frame_of(pick, key, version, topic_ids)
        frame = reframed(damaged(pick, frame, start=14)) if pick.random() < 0.4 else frame
        waiting.append((number, frame * pick.choice((1, 1, 3))))
    pieces = []
    while waiting:
        number, data = waiting.pop(pick.randrange(len(waiting)))
        size = max(pick.choice((1, 3, 10, len(data) // 2, len(data))), 1)
        pieces.append(Piece(number, data[:size]))
        if data[size:] and len(pieces) < 200:
            waiting.append((number, data[size:]))
    return Input(what="by turns: " + ", ".join(names), port="kafka", pieces=tuple(pieces))


def _noise(pick: random.Random) -> Input:
    data = pick.choice(
        (
            pick.randbytes(pick.choice((1, 3, 4, 60, 2_000))),
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + pick.randbytes(200),
            b"\x7f\xff\xff\xff" + bytes(100),
            b"\x06\x40\x00\x00" + bytes(10_000),
            bytes(4) * 50,
            (14).to_bytes(4, "big") + pick.randbytes(14),
        )
    )
    return Input(what="noise", port="kafka", pieces=(Piece(0, data),))
