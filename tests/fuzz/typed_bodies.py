"""Values by the types that they are decoded to, so that they pass validation: HTTP bodies and parameters, and
what nodes write in msgpack.

Most fit in every field. Some hold one number that no field of Kafka can hold, others one item very often.
"""

from __future__ import annotations

import json
import random
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import inspect

from tests.fuzz.values import LONG_NUMBERS, NAMES, json_value, text

BYTES_MAX: Final = 900_000
"""Below the limit of a body, which would be refused unread."""
REPEATS: Final = 50_000
REPEAT_CHANCE: Final = 0.3
TOO_LARGE_CHANCE: Final = 0.25
IN_MSGPACK: Final = (2**63, 2**64 - 1)
TOO_LARGE: Final = (2**63, -(2**63) - 1, 2**64 - 1, 2**64, 2**70, -(2**70))
WIDE: Final = "fuzz-wide"
"""A topic of many partitions, in bodies only: nothing deletes it."""
TOPICS: Final = (WIDE, WIDE, WIDE, WIDE, "fuzz-0", "fuzz-1", "fuzz-2")
FIXED: Final[dict[str, tuple[Any, ...]]] = {
    "next_producer_id": (0,),
    "principal": ("User:fuzz",),
    "partitions": (1, 2, 0, -1, 2**31 - 1),
    "count": (1, 2, 3, 0, -1, 2**31 - 1),
    "iterations": (4096, 0, 2**31 - 1),
}
"""By field: what would change things for everybody, or make more than a round can hold."""
LEFT_OUT: Final = ("broker_configs", "quotas")


class TypedBodies:
    """Makes values of one body or one query."""

    def __init__(self, pick: random.Random, *, in_msgpack: bool = False) -> None:
        self._pick = pick
        self._in_msgpack = in_msgpack
        self._may_repeat = pick.random() < REPEAT_CHANCE
        self._too_large = TOO_LARGE_CHANCE if pick.random() < 0.5 else 0.0

    def of(self, kind: type) -> dict[str, Any]:
        made = self._value(inspect.type_info(kind), "")
        assert isinstance(made, dict)
        return made

    def value(self, kind: Any) -> Any:
        """Of any type, as msgspec encodes it."""
        return self._value(inspect.type_info(kind), "")

    def msgpack(self, kind: Any) -> bytes:
        return msgspec.msgpack.encode(self._value(inspect.type_info(kind), ""))

    def parameters(self, kind: type) -> dict[str, str]:
        made = {name: _parameter(value) for name, value in self.of(kind).items() if value is not None}
        return dict(self._pick.sample(sorted(made.items()), self._pick.randint(min(1, len(made)), len(made))))

    def _value(self, kind: inspect.Type, name: str) -> Any:
        pick = self._pick
        if name in FIXED and isinstance(kind, inspect.IntType | inspect.StrType):
            return pick.choice(FIXED[name])
        match kind:
            case inspect.StructType():
                fields = [one for one in kind.fields if one.required or pick.random() < 0.8]
                return self._struct(kind, [one for one in fields if one.name not in LEFT_OUT])
            case inspect.UnionType():
                # None as often as one of the others, however many there are.
                others = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
                is_none = len(others) < len(kind.types) and pick.random() < 0.25
                return None if is_none else self._value(pick.choice(others), name)
            case inspect.LiteralType():
                return pick.choice(kind.values)
            case inspect.EnumType():
                return pick.choice(list(kind.cls)).value
            case inspect.TupleType():
                return [self._value(one, name) for one in kind.item_types]
            case inspect.ListType() | inspect.VarTupleType() | inspect.SetType():
                return self._list(kind.item_type, name)
            case inspect.DictType():
                keys = [self._value(kind.key_type, name) for _ in range(pick.randrange(4))]
                return {key: self._value(kind.value_type, name) for key in keys}
            case _:
                return self._plain(kind, name)

    def _plain(self, kind: inspect.Type, name: str) -> Any:
        pick = self._pick
        match kind:
            case inspect.IntType():
                return self._number(kind, name)
            case inspect.FloatType():
                return pick.choice((0.0, 1.0, 0.5, -1.0, 1e300, 5e-324))
            case inspect.BoolType():
                return pick.random() < 0.5
            case inspect.StrType():
                return self._text(name)
            case inspect.BytesType():
                return pick.randbytes(pick.choice((0, 1, 4_000))) if self._in_msgpack else "AA=="
            case inspect.UUIDType():
                return str(UUID(int=pick.choice((0, 1, pick.getrandbits(128)))))
            case inspect.NoneType():
                return None
            case _ if self._in_msgpack:
                return pick.choice((None, 1, "x", [1, {"a": b"x"}], {"a": 2**64 - 1}, text(pick)))
            case _:
                return json_value(pick)

    def _struct(self, kind: inspect.StructType, fields: list[inspect.Field]) -> Any:
        if not kind.array_like:
            tag = {} if kind.tag_field is None else {kind.tag_field: kind.tag}
            return tag | {one.encode_name: self._value(one.type, one.encode_name) for one in fields}
        values = [self._value(one.type, one.name) for one in kind.fields]
        return values if kind.tag is None else [kind.tag, *values]

    def _list(self, kind: inspect.Type, name: str) -> list[Any]:
        pick = self._pick
        made = [self._value(kind, name) for _ in range(pick.choice((0, 1, 1, 2, 3)))]
        if made and self._may_repeat:
            self._may_repeat = False
            size = len(repr(made[0])) + 2
            return made + made[:1] * min(REPEATS, BYTES_MAX // size)
        return made

    def _number(self, kind: inspect.IntType, name: str) -> int:
        pick = self._pick
        if pick.random() < self._too_large:
            return pick.choice(IN_MSGPACK if self._in_msgpack else TOO_LARGE)
        low = -(2**63) if kind.ge is None else int(kind.ge)
        high = 2**63 - 1 if kind.le is None else int(kind.le)
        if name in ("partition", "partitions"):
            return pick.choice((0, 0, 0, 1, -1, high))
        if name in ("drain", "replicas", "node_id"):
            return pick.choice((1, 1, 1, 2, high))
        return min(max(pick.choice((*LONG_NUMBERS, low, high)), low), high)

    def _text(self, name: str) -> str:
        pick = self._pick
        if name in ("topic", "topics"):
            return pick.choice(TOPICS) if pick.random() < 0.8 else pick.choice(NAMES)
        if name in ("config", "configs"):
            return pick.choice(("retention.ms", "segment.bytes", "cleanup.policy", "searchable", "x"))
        return pick.choice(NAMES) if name in ("name", "user", "transactional_id") else text(pick)


def _parameter(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def body_bytes(made: Any) -> bytes:
    return json.dumps(made).encode("utf-8", "surrogatepass")
