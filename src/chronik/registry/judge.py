"""Parses a schema and compares it with earlier ones. Pure: no clock, no I/O."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from chronik.registry.avro import parse_avro
from chronik.registry.avro_compat import avro_differences
from chronik.registry.errors import InvalidSchema
from chronik.registry.json_compat import json_differences
from chronik.registry.json_schema import parse_json_schema
from chronik.registry.limits import MESSAGES_MAX, StepBudget

__all__ = ["TYPES", "Directions", "Judgement", "SchemaQuestion", "directions_of", "judge"]


_VERDICT_BYTES: Final = 500


class _Type(NamedTuple):
    parse: Any
    differences: Any


TYPES: Final = ("JSON", "PROTOBUF", "AVRO")


def _type(name: str) -> _Type:
    """Protobuf's library is large: it is loaded with the first schema that needs it."""
    if name == "JSON":
        return _Type(parse_json_schema, json_differences)
    if name == "AVRO":
        return _Type(parse_avro, avro_differences)
    from chronik.registry.proto_compat import proto_differences
    from chronik.registry.protobuf import parse_protobuf

    return _Type(parse_protobuf, proto_differences)


class SchemaText(msgspec.Struct, frozen=True, kw_only=True):
    schema_type: str
    text: str
    references: dict[str, str] = {}
    """Texts of what it refers to, directly or not, by name: each after those it needs itself."""

    @property
    def size_bytes(self) -> int:
        return len(self.text) + sum(map(len, self.references.values()))


class Directions(NamedTuple):
    """Who must be able to read whose data."""

    new_reads_old: bool
    old_reads_new: bool
    is_transitive: bool
    """Whether to compare with all earlier versions, not only the latest."""


class SchemaQuestion(msgspec.Struct, frozen=True, kw_only=True):
    schema: SchemaText
    normalize: bool = False
    earlier: list[tuple[int, SchemaText]] = []
    """Versions to compare with, by number."""
    level: str = "NONE"
    wants_serialized: bool = False

    @property
    def size_bytes(self) -> int:
        return self.schema.size_bytes + sum(one.size_bytes for _, one in self.earlier)


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    canonical: str = ""
    """The text that the schema is kept as; if so asked, its descriptor in base64."""
    differences: list[str] = []
    """Why it is not compatible."""
    invalid: str = ""
    """Why it is no schema."""

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about."""
        return _VERDICT_BYTES + 2 * (
            len(self.canonical) + sum(map(len, self.differences)) + len(self.invalid)
        )


def directions_of(level: str) -> Directions:
    kind = level.removesuffix("_TRANSITIVE")
    return Directions(kind in ("BACKWARD", "FULL"), kind in ("FORWARD", "FULL"), level != kind)


def judge(question: SchemaQuestion, budget: StepBudget) -> Judgement:
    """TooExpensive if that takes more steps than the budget has."""
    schema = question.schema
    try:
        if question.wants_serialized:
            from chronik.registry.protobuf import serialized

            return Judgement(canonical=serialized(schema.text, schema.references, budget))
        kind = _type(schema.schema_type)
        parsed, canonical = kind.parse(schema.text, schema.references, budget, normalize=question.normalize)
        canonical.encode()
    except InvalidSchema as error:
        return Judgement(invalid=str(error))
    except UnicodeEncodeError:
        return Judgement(invalid="The schema has characters that are not Unicode.")
    except RecursionError:
        return Judgement(invalid="The schema nests too deep.")
    found: list[str] = []
    for version, earlier in question.earlier:
        found += _compare(parsed, schema, version, earlier, directions_of(question.level), budget)
        if len(found) >= MESSAGES_MAX:
            break
    return Judgement(canonical=canonical, differences=found[:MESSAGES_MAX])


def _compare(
    parsed: Any,
    schema: SchemaText,
    version: int,
    earlier: SchemaText,
    directions: Directions,
    budget: StepBudget,
) -> list[str]:
    if earlier.schema_type != schema.schema_type:
        return [f"version {version} is {earlier.schema_type}, the new schema {schema.schema_type}"]
    kind = _type(schema.schema_type)
    try:
        other, _ = kind.parse(earlier.text, earlier.references, budget)
    except InvalidSchema as error:
        return [f"version {version} cannot be parsed: {error}"]
    found = []
    if directions.new_reads_old:
        found += [f"reading version {version}: {one}" for one in kind.differences(parsed, other, budget)]
    if directions.old_reads_new:
        found += [f"read by version {version}: {one}" for one in kind.differences(other, parsed, budget)]
    return found
