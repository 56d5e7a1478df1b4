"""The requests: some made for each API, and a few shapes of every message that need no thought.

A case gives the fields of all versions at once; each version takes those that it has. Cases of one API run in
order, so a later one may rely on what an earlier one did under the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from kio.index import load_request_schema

from chronik.wire.api import ApiKey
from chronik.wire.shape import FieldShape
from tests.compat.differential import (
    cases_admin,
    cases_data,
    cases_groups,
    cases_refused,
    cases_security,
    cases_states,
    cases_telemetry,
    cases_times,
)
from tests.compat.differential.makers import Make
from tests.compat.differential.world import (
    MISSING,
    NO_TOPIC_ID,
)
from tests.wire import Fields, filled, integer_bits, zero_of

K = ApiKey
# States last: an open transaction must not disturb the cases before it.
_PARTS: Final = (
    cases_data,
    cases_times,
    cases_groups,
    cases_admin,
    cases_refused,
    cases_telemetry,
    cases_security,
    cases_states,
)


def _merged(api_key: ApiKey) -> Mapping[str, Make]:
    cases: dict[str, Make] = {}
    for part in _PARTS:
        more: Mapping[str, Make] = part.MADE.get(api_key, {})
        assert not cases.keys() & more.keys(), f"{api_key.name}: the same case twice in {part.__name__}"
        cases.update(more)
    return cases


MADE: Final[Mapping[ApiKey, Mapping[str, Make]]] = {api_key: _merged(api_key) for api_key in ApiKey}


class Case(NamedTuple):
    name: str
    make: Make


def cases_of(api_key: ApiKey, version: int) -> Iterator[Case]:
    for name, make in MADE.get(api_key, {}).items():
        yield Case(name, make)
    entity = load_request_schema(api_key, version)
    for name, (choose, elements) in SHAPES.items():
        if (api_key, name) in NEVER_ANSWERED:
            continue
        fields = {**filled(entity, choose, elements=elements), **FIXED.get(api_key, {})}
        if fields.get("timeout") == SMALL:
            fields["timeout"] = 10_000  # Apache Kafka may or may not find an answer within 3 ms
        yield Case(name, lambda _world, fields=fields: fields)


# --- any message ------------------------------------------------------------------------------


def _nothing(field: FieldShape) -> Any:
    return None if field.nullable and field.tag is None else zero_of(field)


def _negative(field: FieldShape) -> Any:
    return _unknown(field) if integer_bits(field) is None else -1


def _huge(field: FieldShape) -> Any:
    bits = integer_bits(field)
    return _unknown(field) if bits is None else (1 << (bits - 1)) - 1


SMALL: Final = 3


def _unknown(field: FieldShape) -> Any:
    """Names that nobody has, small numbers."""
    match str(field.kafka_type):
        case "string":
            return MISSING
        case "uuid":
            return NO_TOPIC_ID
        case "bytes" | "records":
            return b""
        case _:
            # Not 1: that is the broker, which one of these requests would unregister.
            return zero_of(field) if integer_bits(field) is None else SMALL


SHAPES: Final[Mapping[str, tuple[Callable[[FieldShape], Any], int]]] = {
    "all empty": (zero_of, 0),
    "null where it may be": (_nothing, 1),
    "names that nobody has": (_unknown, 1),
    "the same twice": (_unknown, 2),
    "negative numbers": (_negative, 1),
    "largest numbers": (_huge, 1),
}
NEVER_ANSWERED: Final = frozenset(
    {
        (K.PRODUCE, "null where it may be"),
        (K.ALTER_CONFIGS, "the same twice"),
        (K.ADD_PARTITIONS_TO_TXN, "all empty"),
    }
)
"""Apache Kafka neither answers these nor closes the connection: there is nothing to compare with."""
# What would make a request wait, or get no answer at all.
FIXED: Final[Mapping[ApiKey, Fields]] = {
    K.PRODUCE: {"acks": -1, "timeout": 1_000},
    K.FETCH: {"max_wait": 0, "session_id": 0, "session_epoch": -1},
    K.API_VERSIONS: {"client_software_name": "wire", "client_software_version": "1"},
}
