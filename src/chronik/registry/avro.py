"""Avro schemas: parsed and checked by the specification, and their canonical text.

The canonical text is the one that Avro's Java library prints: attributes in a fixed order, names without the
namespace that surrounds them, primitives without an object around them, other attributes kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from chronik.registry.errors import InvalidSchema
from chronik.registry.json_text import canonical_json, parse_json, sorted_json
from chronik.registry.limits import DEPTH_MAX, StepBudget

__all__ = ["NO_DEFAULT", "PRIMITIVES", "AvroField", "AvroType", "parse_avro"]

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
NO_DEFAULT: Final = object()
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ORDERS: Final = ("ascending", "descending", "ignore")
_OWN: Final[Mapping[str, frozenset[str]]] = {
    "record": frozenset({"type", "name", "namespace", "doc", "fields", "aliases"}),
    "error": frozenset({"type", "name", "namespace", "doc", "fields", "aliases"}),
    "enum": frozenset({"type", "name", "namespace", "doc", "symbols", "default", "aliases"}),
    "fixed": frozenset({"type", "name", "namespace", "doc", "size", "aliases"}),
    "array": frozenset({"type", "items"}),
    "map": frozenset({"type", "values"}),
}
_LIMITS: Final = {"int": 1 << 31, "long": 1 << 63}


@dataclass(slots=True, eq=False)
class AvroField:
    name: str
    type: AvroType
    default: Any
    aliases: frozenset[str]

    @property
    def has_default(self) -> bool:
        return self.default is not NO_DEFAULT


@dataclass(slots=True, eq=False)
class AvroType:
    kind: str
    name: str = ""
    """The full name of a record, an enum or a fixed."""
    aliases: frozenset[str] = frozenset()
    fields: dict[str, AvroField] = field(default_factory=dict)
    inner: AvroType | None = None
    """Elements of an array, values of a map."""
    branches: tuple[AvroType, ...] = ()
    symbols: frozenset[str] = frozenset()
    default: str | None = None
    """The default symbol of an enum."""
    size: int = 0
    decimal: tuple[int, int] | None = None
    """Precision and scale."""

    @property
    def simple_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def label(self) -> str:
        return self.name or self.kind


def parse_avro(
    text: str, references: Mapping[str, str], budget: StepBudget, *, normalize: bool = False
) -> tuple[AvroType, str]:
    """The type and its canonical text. `references` are texts of other schemas, each after those it needs."""
    names: dict[str, AvroType] = {}
    for reference in references.values():
        _AvroParser(names, budget).parse(_read(reference, budget), "", 0)
    found, canonical = _AvroParser(names, budget).parse(_read(text, budget), "", 0)
    return found, sorted_json(canonical) if normalize else canonical_json(canonical)


def _read(text: str, budget: StepBudget) -> Any:
    if _NAME.fullmatch(text.strip()):
        return text.strip()  # a primitive's name alone, which Avro's libraries take without quotes
    return parse_json(text, budget)


class _AvroParser:
    def __init__(self, names: dict[str, AvroType], budget: StepBudget) -> None:
        self._names = names
        self._budget = budget

    def parse(self, raw: Any, space: str, depth: int) -> tuple[AvroType, Any]:
        self._budget.step()
        if depth > DEPTH_MAX:
            raise InvalidSchema(f"The schema nests deeper than {DEPTH_MAX} levels.")
        if isinstance(raw, str):
            return self._by_name(raw, space)
        if isinstance(raw, list):
            return self._union(raw, space, depth)
        if not isinstance(raw, dict):
            raise InvalidSchema(f"A type is a name, an object or a list, not {_shown(raw)}.")
        kind = raw.get("type")
        if isinstance(kind, dict | list):
            return self.parse(kind, space, depth + 1)
        if not isinstance(kind, str):
            raise InvalidSchema(f'A type has no "type": {_shown(raw)}.')
        if kind in NAMED:
            return self._named(kind, raw, space, depth)
        if kind in ("array", "map"):
            return self._collection(kind, raw, space, depth)
        found, canonical = self._by_name(kind, space)
        extra = {name: value for name, value in raw.items() if name != "type"}
        if found.kind not in PRIMITIVES or not extra:
            return found, canonical
        return AvroType(found.kind, decimal=_decimal(found.kind, raw)), {"type": canonical, **extra}

    def _by_name(self, name: str, space: str) -> tuple[AvroType, Any]:
        if name in PRIMITIVES:
            return AvroType(name), name
        full = name if "." in name or not space else f"{space}.{name}"
        found = self._names.get(full) or self._names.get(name)
        if found is None:
            raise InvalidSchema(f"There is no type {_shown(name)}.")
        return found, _relative(found.name, space)

    def _union(self, raw: list[Any], space: str, depth: int) -> tuple[AvroType, Any]:
        branches, texts, seen = [], [], set()
        for one in raw:
            branch, text = self.parse(one, space, depth + 1)
            if branch.kind == "union":
                raise InvalidSchema("A union may not hold a union.")
            if branch.label in seen:
                raise InvalidSchema(f"A union has {branch.label} twice.")
            seen.add(branch.label)
            branches.append(branch)
            texts.append(text)
        return AvroType("union", branches=tuple(branches)), texts

    def _collection(self, kind: str, raw: dict[str, Any], space: str, depth: int) -> tuple[AvroType, Any]:
        part = "items" if kind == "array" else "values"
        if part not in raw:
            raise InvalidSchema(f'The {kind} has no "{part}".')
        inner, text = self.parse(raw[part], space, depth + 1)
        return AvroType(kind, inner=inner), {"type": kind, part: text, **_extra(kind, raw)}

    def _named(self, kind: str, raw: dict[str, Any], space: str, depth: int) -> tuple[AvroType, Any]:
        name = _full_name(raw, space)
        if name in self._names:
            raise InvalidSchema(f"The type {name} is defined twice.")
        own_space = name.rpartition(".")[0]
        found = AvroType(kind="record" if kind == "error" else kind, name=name)
        found.aliases = _aliases(raw, own_space)
        self._names[name] = found
        text: dict[str, Any] = {"type": kind, "name": found.simple_name}
        if own_space != space:
            text["namespace"] = own_space
        if "doc" in raw:
            text["doc"] = raw["doc"]
        match found.kind:
            case "record":
                text["fields"] = self._fields(found, raw, own_space, depth)
            case "enum":
                text |= _enum(found, raw)
            case _:
                text["size"] = found.size = _size(raw)
                found.decimal = _decimal(kind, raw)
        if found.aliases:
            text["aliases"] = [_relative(alias, own_space) for alias in sorted(found.aliases)]
        return found, text | _extra(kind, raw)

    def _fields(self, record: AvroType, raw: dict[str, Any], space: str, depth: int) -> list[Any]:
        fields = raw.get("fields")
        if not isinstance(fields, list):
            raise InvalidSchema(f'The record {record.name} has no list "fields".')
        texts = []
        for one in fields:
            name = one.get("name") if isinstance(one, dict) else None
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise InvalidSchema(f"A field of {record.name} has no valid name: {_shown(one)}.")
            if name in record.fields:
                raise InvalidSchema(f"The record {record.name} has two fields {name}.")
            if "type" not in one:
                raise InvalidSchema(f"The field {record.name}.{name} has no type.")
            kind, text = self.parse(one["type"], space, depth + 1)
            texts.append(_field_text(record, name, one, text))
            default = one.get("default", NO_DEFAULT)
            aliases = _names_in(one, f"{record.name}.{name}")
            record.fields[name] = AvroField(name, kind, default, frozenset(aliases))
        for known in record.fields.values():
            if known.has_default and not self._is_datum(known.default, known.type, depth):
                raise InvalidSchema(
                    f"The default of {record.name}.{known.name} is no {known.type.label}: "
                    f"{_shown(known.default)}."
                )
        return texts

    def _is_datum(self, value: Any, kind: AvroType, depth: int) -> bool:
        """Whether a default is a datum of a type, as JSON writes it."""
        self._budget.step()
        if depth > 2 * DEPTH_MAX:
            return False
        match kind.kind:
            case "null":
                return value is None
            case "boolean":
                return isinstance(value, bool)
            case "int" | "long":
                limit = _LIMITS[kind.kind]
                return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
            case "float" | "double":
                return isinstance(value, int | float) and not isinstance(value, bool)
            case "string" | "bytes":
                return isinstance(value, str)
            case "fixed":
                return isinstance(value, str) and len(value) == kind.size
            case "enum":
                return isinstance(value, str) and value in kind.symbols
            case "union":
                return any(self._is_datum(value, branch, depth + 1) for branch in kind.branches)
            case "array" | "map":
                inner = kind.inner
                holds = isinstance(value, list if kind.kind == "array" else dict)
                parts = value if isinstance(value, list) else value.values() if holds else ()
                return (
                    holds
                    and inner is not None
                    and all(self._is_datum(one, inner, depth + 1) for one in parts)
                )
        return isinstance(value, dict) and all(
            self._is_datum(value[one.name], one.type, depth + 1) if one.name in value else one.has_default
            for one in kind.fields.values()
        )


def _field_text(record: AvroType, name: str, raw: dict[str, Any], kind: Any) -> dict[str, Any]:
    text: dict[str, Any] = {"name": name, "type": kind}
    for part in ("doc", "default"):
        if part in raw:
            text[part] = raw[part]
    order = raw.get("order", "ascending")
    if order not in _ORDERS:
        raise InvalidSchema(f"The order of {record.name}.{name} is {' or '.join(_ORDERS)}.")
    if order != "ascending":
        text["order"] = order
    if raw.get("aliases"):
        text["aliases"] = raw["aliases"]
    known = ("name", "type", "doc", "default", "order", "aliases")
    return text | {part: value for part, value in raw.items() if part not in known}


def _enum(found: AvroType, raw: dict[str, Any]) -> dict[str, Any]:
    symbols = raw.get("symbols")
    if not isinstance(symbols, list) or not all(isinstance(one, str) for one in symbols):
        raise InvalidSchema(f'The enum {found.name} has no list "symbols".')
    for one in symbols:
        if not _NAME.fullmatch(one):
            raise InvalidSchema(f"The enum {found.name} has an invalid symbol: {_shown(one)}.")
    found.symbols = frozenset(symbols)
    if len(found.symbols) < len(symbols):
        raise InvalidSchema(f"The enum {found.name} has a symbol twice.")
    if "default" not in raw:
        return {"symbols": symbols}
    if raw["default"] not in symbols:
        raise InvalidSchema(f"The default of the enum {found.name} is none of its symbols.")
    found.default = raw["default"]
    return {"symbols": symbols, "default": found.default}


def _size(raw: dict[str, Any]) -> int:
    size = raw.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise InvalidSchema(f"The size of a fixed is a number: {_shown(size)}.")
    return size


def _decimal(kind: str, raw: dict[str, Any]) -> tuple[int, int] | None:
    """A logical type that is not valid is ignored, as the specification says."""
    precision, scale = raw.get("precision"), raw.get("scale", 0)
    if raw.get("logicalType") != "decimal" or kind not in ("bytes", "fixed"):
        return None
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision:
        return None
    return precision, scale


def _full_name(raw: dict[str, Any], space: str) -> str:
    name, own = raw.get("name"), raw.get("namespace", space)
    if not isinstance(name, str) or not isinstance(own, str | None):
        raise InvalidSchema(f"A {raw['type']} has no name.")
    full = name if "." in name or not own else f"{own}.{name}"
    if not all(_NAME.fullmatch(part) for part in full.split(".")):
        raise InvalidSchema(f"{_shown(full)} is no name of a type.")
    if full in PRIMITIVES:
        raise InvalidSchema(f"A type may not be called {full}.")
    return full


def _aliases(raw: dict[str, Any], space: str) -> frozenset[str]:
    names = _names_in(raw, str(raw.get("name")))
    return frozenset(name if "." in name or not space else f"{space}.{name}" for name in names)


def _names_in(raw: dict[str, Any], whose: str) -> list[str]:
    aliases = raw.get("aliases") or []
    if not isinstance(aliases, list) or not all(isinstance(one, str) for one in aliases):
        raise InvalidSchema(f"The aliases of {whose} are no list of names.")
    return aliases


def _relative(name: str, space: str) -> str:
    own_space, _, simple = name.rpartition(".")
    return simple if own_space == space else name


def _extra(kind: str, raw: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name not in _OWN[kind]}


def _shown(value: object) -> str:
    text = canonical_json(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
