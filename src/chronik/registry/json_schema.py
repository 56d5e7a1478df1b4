"""JSON Schemas (drafts 4 to 2020-12): parsed, their keywords checked in shape, their `$ref`s found.

Nothing is validated here, no pattern is ever run and nothing is fetched: a `$ref` leads into the schema
itself or to one that was registered and is named as a reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from chronik.registry.errors import InvalidSchema
from chronik.registry.json_text import canonical_json, parse_json, sorted_json
from chronik.registry.limits import DEPTH_MAX, StepBudget

__all__ = ["TYPES", "JsonDocument", "parse_json_schema"]

TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_MAPS: Final = ("properties", "patternProperties", "definitions", "$defs", "dependentSchemas")
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_ONE: Final = (
    *("additionalProperties", "additionalItems", "propertyNames", "contains", "not", "if", "then", "else"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
_IN_PLACE: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
"""Keywords whose schemas apply to the same value as the schema that they stand in."""
_COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NUMBERS: Final = ("minimum", "maximum")
_TEXTS: Final = ("$ref", "$id", "$schema", "pattern", "format", "$anchor")
_META: Final = ("http://json-schema.org/", "https://json-schema.org/")


class JsonDocument:
    """One schema with what it refers to."""

    def __init__(self, root: Any, others: Mapping[str, JsonDocument]) -> None:
        self.root = root
        self._others = others
        self.anchors: dict[str, Any] = {}
        self.refs: dict[str, tuple[JsonDocument, Any]] = {}

    def resolve(self, ref: str) -> tuple[JsonDocument, Any]:
        """Where a `$ref` leads: a document and a part of it. InvalidSchema if nowhere."""
        found = self.refs.get(ref)
        if found is None:
            found = self.refs[ref] = self._find(ref)
        return found

    def _find(self, ref: str) -> tuple[JsonDocument, Any]:
        name, _, fragment = ref.partition("#")
        own = self.root.get("$id", self.root.get("id", "")) if isinstance(self.root, dict) else ""
        document = self if name in ("", own) else self._others.get(name)
        if document is None:
            raise InvalidSchema(f"The $ref {ref[:200]!r} is in no schema that is named as a reference.")
        if fragment and not fragment.startswith("/"):
            if fragment not in document.anchors:
                raise InvalidSchema(f"The $ref {ref[:200]!r} leads nowhere.")
            return document, document.anchors[fragment]
        part = document.root
        for step in fragment.split("/")[1:]:
            part = _step(part, unquote(step).replace("~1", "/").replace("~0", "~"), ref)
        if not isinstance(part, dict | bool):
            raise InvalidSchema(f"The $ref {ref[:200]!r} leads to what is no schema.")
        return document, part


def _step(part: Any, step: str, ref: str) -> Any:
    if isinstance(part, dict) and step in part:
        return part[step]
    if isinstance(part, list) and step.isdecimal() and len(step) < 10 and int(step) < len(part):
        return part[int(step)]
    raise InvalidSchema(f"The $ref {ref[:200]!r} leads nowhere.")


def parse_json_schema(
    text: str, references: Mapping[str, str], budget: StepBudget, *, normalize: bool = False
) -> tuple[JsonDocument, str]:
    """The document and its canonical text. `references` are texts of other schemas by the names that `$ref`
    uses, each after those it needs."""
    others: dict[str, JsonDocument] = {}
    for name, reference in references.items():
        others[name] = _document(reference, others, budget)
    found = _document(text, others, budget)
    return found, sorted_json(found.root) if normalize else canonical_json(found.root)


def _document(text: str, others: Mapping[str, JsonDocument], budget: StepBudget) -> JsonDocument:
    root = parse_json(text, budget)
    if isinstance(root, dict) and not str(root.get("$schema", _META[0])).startswith(_META):
        raise InvalidSchema("The $schema is none of json-schema.org.")
    document = JsonDocument(root, dict(others))
    refs: list[str] = []
    _check(root, document, refs, budget, 0)
    for ref in refs:
        document.resolve(ref)
    _refuse_circles(document, refs, budget)
    return document


def _refuse_circles(document: JsonDocument, refs: list[str], budget: StepBudget) -> None:
    """A schema that applies to the same value again and again, without going into it, says nothing."""
    done: set[int] = set()
    for ref in refs:
        under_way: set[int] = set()
        stack: list[tuple[JsonDocument, Any, bool]] = [(document, {"$ref": ref}, False)]
        while stack:
            budget.step()
            where, part, is_left = stack.pop()
            if is_left:
                under_way.discard(id(part))
                done.add(id(part))
                continue
            if id(part) in under_way:
                raise InvalidSchema(f"The $ref {ref[:200]!r} leads in a circle.")
            if not isinstance(part, dict) or id(part) in done:
                continue
            under_way.add(id(part))
            stack.append((where, part, True))
            stack += [
                (where, one, False) for keyword in _IN_PLACE for one in _inner(keyword, part.get(keyword))
            ]
            if "$ref" in part:
                stack.append((*where.resolve(part["$ref"]), False))


def _check(schema: Any, document: JsonDocument, refs: list[str], budget: StepBudget, depth: int) -> None:
    budget.step()
    if depth > DEPTH_MAX:
        raise InvalidSchema(f"The schema nests deeper than {DEPTH_MAX} levels.")
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise InvalidSchema(f"A schema is an object or true or false, not {canonical_json(schema)[:100]}.")
    for keyword, value in schema.items():
        _require(value is not None or keyword in _MAY_BE_NULL or keyword not in _KNOWN, keyword, "a value")
        for inner in _inner(keyword, value):
            _check(inner, document, refs, budget, depth + 1)
        _check_keyword(keyword, value)
    if "$ref" in schema:
        refs.append(schema["$ref"])
    if "$anchor" in schema:
        document.anchors[schema["$anchor"]] = schema


def _inner(keyword: str, value: Any) -> list[Any]:
    """The schemas that a keyword holds."""
    if value is None:
        return []
    if keyword in _MAPS:
        _require(isinstance(value, dict), keyword, "an object of schemas")
        return list(value.values())
    if keyword in _LISTS:
        _require(
            isinstance(value, list) and (bool(value) or keyword == "prefixItems"),
            keyword,
            "a list of schemas",
        )
        return list(value)
    if keyword == "items":
        return list(value) if isinstance(value, list) else [value]
    if keyword == "dependencies":
        _require(isinstance(value, dict), keyword, "an object")
        return [one for one in value.values() if isinstance(one, dict | bool)]
    return [value] if keyword in _ONE else []


def _check_keyword(keyword: str, value: Any) -> None:
    check = _CHECKS.get(keyword)
    if check is not None:
        holds, what = check
        _require(holds(value), keyword, what)


def _require(holds: bool, keyword: str, what: str) -> None:
    if not holds:
        raise InvalidSchema(f"The value of {keyword!r} is not {what}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _are_types(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(one, str) and one in TYPES for one in names)


_CHECKS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    **dict.fromkeys(_COUNTS, (_is_count, "a number of things")),
    **dict.fromkeys(_NUMBERS, (_is_number, "a number")),
    **{keyword: (lambda value: isinstance(value, str), "text") for keyword in _TEXTS},
    **{
        keyword: (lambda value: isinstance(value, bool) or _is_number(value), "a number or true or false")
        for keyword in ("exclusiveMinimum", "exclusiveMaximum")
    },
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "required": (_are_names, "a list of names"),
    "enum": (lambda value: isinstance(value, list), "a list"),
    "type": (_are_types, "a type of JSON or a list of types"),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
}

_MAY_BE_NULL: Final = frozenset({"const", "default", "examples"})
_KNOWN: Final = frozenset({*_MAPS, *_LISTS, *_ONE, *_CHECKS, "items", "dependencies"})
