"""Whether a reader's JSON Schema takes every document that a writer's takes.

The answer is yes only if the rules below show it; a keyword that they do not know has to say the same on both
sides. So what is called compatible is compatible, and some of what is called incompatible is merely not shown
to be. Patterns are compared as text and never run.

A schema is a conjunction: its own keywords, each schema of `allOf`, what `$ref` leads to, and one choice for
each of `anyOf` and `oneOf`. A reader takes a writer's documents if each of its parts takes what one part of
the writer's describes. Schemas may hold themselves: pairs are taken to fit until a rule says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, Final, NamedTuple

from chronik.registry.json_schema import TYPES, JsonDocument
from chronik.registry.json_text import sorted_json
from chronik.registry.limits import DEPTH_MAX, MESSAGES_MAX, StepBudget

__all__ = ["json_differences"]

_CHOICES: Final = ("anyOf", "oneOf")
_ANNOTATIONS: Final = frozenset(
    {
        *("title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"),
        *("$schema", "$id", "id", "$anchor", "definitions", "$defs", "contentEncoding", "contentMediaType"),
        "$vocabulary",
    }
)
_COMPARED: Final = frozenset(
    {
        *("type", "enum", "const", "required", "properties", "additionalProperties", "patternProperties"),
        *("items", "prefixItems", "additionalItems", "uniqueItems", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    }
)
_AT_LEAST: Final = {"minLength": "string", "minItems": "array", "minProperties": "object"}
_AT_MOST: Final = {"maxLength": "string", "maxItems": "array", "maxProperties": "object"}
_OF_STRINGS: Final = frozenset({"pattern", "format"})


class _Part(NamedTuple):
    """A schema in its document, which its `$ref`s lead into."""

    document: JsonDocument
    schema: Any

    @property
    def key(self) -> int:
        return id(self.schema) if isinstance(self.schema, dict) else 1 if self.schema else 0


def json_differences(reader: JsonDocument, writer: JsonDocument, budget: StepBudget) -> list[str]:
    """Why the reader may not take all that the writer describes; empty if it does."""
    comparison = _JsonComparison(budget)
    one, other = _Part(reader, reader.root), _Part(writer, writer.root)
    if comparison.fits(one, other):
        return []
    return list(dict.fromkeys(comparison.explain()))[:MESSAGES_MAX]


class _JsonComparison:
    def __init__(self, budget: StepBudget) -> None:
        self._budget = budget
        self._pairs: dict[tuple[int, int], tuple[_Part, _Part, bool]] = {}
        self._why: dict[tuple[int, int], tuple[str, str]] = {}
        """For each pair that does not fit: where, and the reason."""
        self._split: dict[tuple[int, bool], list[_Part]] = {}
        """Parts of schemas that were taken apart; kept, since pairs are known by what is the same object."""

    def fits(self, reader: _Part, writer: _Part) -> bool:
        self._pair(reader, writer)
        while True:
            known, changed = len(self._pairs), False
            for key, (one, other, fits) in list(self._pairs.items()):
                if fits and not self._compare(one, other):
                    self._pairs[key] = one, other, False
                    changed = True
            if not changed and known == len(self._pairs):
                return self._pair(reader, writer)

    def explain(self) -> Iterator[str]:
        """The reasons of all pairs that do not fit, each with its place in the reader's part."""
        found = [why for key, why in self._why.items() if not self._pairs[key][2]]
        yield from (f"{path}: {why}" for path, why in found)
        if not found:
            yield "#: none of the reader's choices is shown to take what the writer describes"

    def conjuncts(self, part: _Part, *, of_writer: bool) -> list[_Part]:
        key = (part.key, of_writer)
        found = self._split.get(key)
        if found is None:
            found = self._split[key] = list(_conjuncts(part, self._budget, of_writer))
        return found

    def _pair(self, reader: _Part, writer: _Part) -> bool:
        self._budget.step()
        if reader.schema is True or reader.schema == {} or writer.schema is False:
            return True
        if reader.schema is False:
            return False
        key = (reader.key, writer.key)
        found = self._pairs.get(key)
        if found is None:
            self._pairs[key] = found = reader, writer, True
        return found[2]

    def _compare(self, reader: _Part, writer: _Part) -> bool:
        parts = self.conjuncts(writer, of_writer=True)
        return all(
            any(self._takes(wanted, part, reader, writer) for part in parts)
            or self._takes_choice_of(wanted, parts)
            for wanted in self.conjuncts(reader, of_writer=False)
        )

    def _takes_choice_of(self, wanted: _Part, parts: list[_Part]) -> bool:
        """A reader's choice of which one is enough, if no two of a `oneOf` can hold at once."""
        kind = _choice(wanted.schema)
        if kind is None:
            return False
        branches = [_Part(wanted.document, one) for one in wanted.schema[kind]]
        if kind == "oneOf" and not all(self._are_disjoint(*two) for two in combinations(branches, 2)):
            return False
        return any(
            self._pair(branch, part) for branch in branches for part in parts if not _choice(part.schema)
        )

    def _takes(self, wanted: _Part, part: _Part, reader: _Part, writer: _Part) -> bool:
        """Whether one part of the writer's is enough for one part of the reader's."""
        self._budget.step()
        kind = _choice(part.schema)
        if kind is not None:
            if self.same(wanted, part):
                return True
            return all(self._pair(wanted, _Part(part.document, one)) for one in part.schema[kind])
        if _choice(wanted.schema) is not None:
            return False
        why = _Keywords(self, wanted, part).difference()
        if why is not None:
            self._why.setdefault((reader.key, writer.key), why)
        return why is None

    def inner(self, reader: _Part, writer: _Part) -> bool:
        return self._pair(reader, writer)

    def same(self, one: _Part, other: _Part) -> bool:
        """Whether two parts say the same, and so does all that their `$ref`s lead to."""
        waiting = [(one, other)]
        seen: set[tuple[int, str]] = set()
        while waiting:
            left, right = waiting.pop()
            text = sorted_json(left.schema)
            self._budget.step(1 + len(text) // 100)
            if text != sorted_json(right.schema) or "$dynamicRef" in text or "$recursiveRef" in text:
                return False
            for ref in _refs(left.schema, self._budget):
                if (id(left.document), ref) not in seen:
                    seen.add((id(left.document), ref))
                    waiting.append((_Part(*left.document.resolve(ref)), _Part(*right.document.resolve(ref))))
        return True

    def _are_disjoint(self, one: _Part, other: _Part, depth: int = 0) -> bool:
        """Whether no document surely fits both."""
        return depth <= 3 and any(
            self._exclude(left, right, depth)
            for left in self.conjuncts(one, of_writer=True)
            for right in self.conjuncts(other, of_writer=True)
        )

    def _exclude(self, left: _Part, right: _Part, depth: int) -> bool:
        """Whether no value fits both: their types differ, their values do, or a property that both require
        excludes it."""
        self._budget.step()
        if not isinstance(left.schema, dict) or not isinstance(right.schema, dict):
            return left.schema is False or right.schema is False
        if not _types(left.schema) & _types(right.schema):
            return True
        mine, others = _values(left.schema), _values(right.schema)
        if mine is not None and others is not None:
            return not {sorted_json(value) for value in mine} & {sorted_json(value) for value in others}
        if not _types(left.schema) == _types(right.schema) == {"object"}:
            return False
        properties = left.schema.get("properties", {}), right.schema.get("properties", {})
        both = set(left.schema.get("required", ())) & set(right.schema.get("required", ()))
        return any(
            self._are_disjoint(
                _Part(left.document, properties[0][name]),
                _Part(right.document, properties[1][name]),
                depth + 1,
            )
            for name in both
            if all(name in known for known in properties)
        )

    def step(self) -> None:
        self._budget.step()


def _choice(schema: Any) -> str | None:
    """A part that is a choice and nothing else."""
    if isinstance(schema, dict) and len(schema) == 1:
        return next((kind for kind in _CHOICES if kind in schema), None)
    return None


def _conjuncts(part: _Part, budget: StepBudget, of_writer: bool, depth: int = 0) -> Iterator[_Part]:
    """Drafts differ in whether what stands beside a `$ref` counts: the reader's does, the writer's not."""
    budget.step()
    schema = part.schema
    if not isinstance(schema, dict) or depth > DEPTH_MAX:
        yield part if depth <= DEPTH_MAX else _Part(part.document, of_writer)
        return
    if "$ref" in schema:
        yield from _conjuncts(_Part(*part.document.resolve(schema["$ref"])), budget, of_writer, depth + 1)
        if of_writer:
            return
    apart = ("allOf", "$ref", *_CHOICES)
    own = {name: value for name, value in schema.items() if name not in _ANNOTATIONS and name not in apart}
    if own or not any(name in schema for name in apart):
        yield _Part(part.document, own)
    for one in schema.get("allOf", ()):
        yield from _conjuncts(_Part(part.document, one), budget, of_writer, depth + 1)
    for kind in _CHOICES:
        if kind in schema:
            yield _Part(part.document, {kind: schema[kind]})


def _refs(value: Any, budget: StepBudget) -> Iterator[str]:
    """Every `$ref` in a value."""
    stack = [value]
    while stack:
        budget.step()
        one = stack.pop()
        if isinstance(one, dict):
            if isinstance(one.get("$ref"), str):
                yield one["$ref"]
            stack.extend(one.values())
        elif isinstance(one, list):
            stack.extend(one)


class _Keywords:
    """Compare the keywords of one part of the reader's schema with those of one part of the writer's."""

    def __init__(self, comparison: _JsonComparison, reader: _Part, writer: _Part) -> None:
        self._comparison = comparison
        self._reader = reader
        self._writer = writer
        self._new: Mapping[str, Any] = reader.schema if isinstance(reader.schema, dict) else {}
        self._old: Mapping[str, Any] = writer.schema if isinstance(writer.schema, dict) else {}

    def difference(self) -> tuple[str, str] | None:
        """Where and why the two do not fit; None if they do."""
        if self._reader.schema in (True, {}) or self._writer.schema is False:
            return None
        if self._reader.schema is False:
            return "#", "the reader takes nothing"
        if self._comparison.same(self._reader, self._writer):
            return None
        values = _values(self._old)
        if values is not None:
            return self._values(values)
        for found in (self._types(), *self._opaque(), self._numbers(), self._sizes()):
            if found is not None:
                return found
        if "object" in self._common and (found := self._object()) is not None:
            return found
        return self._array() if "array" in self._common else None

    @property
    def _common(self) -> frozenset[str]:
        return _types(self._old) & _types(self._new)

    def _values(self, values: list[Any]) -> tuple[str, str] | None:
        """The writer's documents are these and no others."""
        for value in values:
            self._comparison.step()
            if not _holds(value, self._new):
                return "#/enum", f"the reader does not surely take {sorted_json(value)[:100]}"
        return None

    def _types(self) -> tuple[str, str] | None:
        if _values(self._new) is not None:
            return "#/enum", "the reader takes certain values only"
        wanted, given = _types(self._new), _types(self._old)
        if missing := given - wanted:
            return "#/type", f"the reader does not take {', '.join(sorted(missing))}"
        return None

    def _opaque(self) -> Iterator[tuple[str, str] | None]:
        """Keywords that are not looked into: they must say the same."""
        for keyword, value in self._new.items():
            if keyword in _COMPARED or keyword in _ANNOTATIONS:
                continue
            if keyword in _OF_STRINGS and "string" not in self._common:
                continue
            other = self._old.get(keyword, _NOTHING)
            if other is _NOTHING or not self._comparison.same(
                _Part(self._reader.document, value), _Part(self._writer.document, other)
            ):
                yield (
                    f"#/{keyword}",
                    "it is new or has changed, and such a change is not shown to be compatible",
                )

    def _numbers(self) -> tuple[str, str] | None:
        if not self._common & {"number", "integer"}:
            return None
        for limit, exclusive, sign in (
            ("minimum", "exclusiveMinimum", 1),
            ("maximum", "exclusiveMaximum", -1),
        ):
            wanted = _bound(self._new, limit, exclusive, sign)
            given = _bound(self._old, limit, exclusive, sign)
            if wanted is not None and (given is None or given < wanted):
                return f"#/{limit}", "the reader's is narrower"
        wanted_step, given_step = self._new.get("multipleOf"), self._old.get("multipleOf")
        if wanted_step is not None and (given_step is None or not _is_multiple(given_step, wanted_step)):
            return "#/multipleOf", "the writer's is no multiple of the reader's"
        return None

    def _sizes(self) -> tuple[str, str] | None:
        for keyword, kind in _AT_LEAST.items():
            if kind in self._common and self._old.get(keyword, 0) < self._new.get(keyword, 0):
                return f"#/{keyword}", "the reader's is higher"
        for keyword, kind in _AT_MOST.items():
            if kind not in self._common or keyword not in self._new:
                continue
            if keyword not in self._old or self._old[keyword] > self._new[keyword]:
                return f"#/{keyword}", "the reader's is lower"
        if "array" in self._common and self._new.get("uniqueItems") and not self._old.get("uniqueItems"):
            return "#/uniqueItems", "the reader takes no element twice"
        return None

    def _object(self) -> tuple[str, str] | None:
        required = set(self._old.get("required", ()))
        if missing := sorted(set(self._new.get("required", ())) - required):
            return "#/required", f"the reader requires {', '.join(missing[:5])}"
        patterns = self._new.get("patternProperties") or {}, self._old.get("patternProperties") or {}
        if patterns != ({}, {}) and not self._comparison.same(
            _Part(self._reader.document, patterns[0]), _Part(self._writer.document, patterns[1])
        ):
            return "#/patternProperties", "they have changed"
        new, old = self._new.get("properties", {}), self._old.get("properties", {})
        for name in dict.fromkeys([*new, *old]):
            if patterns[0] and not (name in new and name in old):
                return f"#/properties/{name[:100]}", "it is new or gone, and a pattern may stand for it"
            wanted = new.get(name, self._new.get("additionalProperties", True))
            given = old.get(name, self._old.get("additionalProperties", True))
            if not self._inner(wanted, given):
                where = f"#/properties/{name[:100]}"
                if name not in new:
                    return where, "it was removed, and the reader takes no such other properties"
                if name not in old:
                    return where, "it was added, and the writer's other properties may be something else"
                return where, "its schema has changed"
        if not self._inner(
            self._new.get("additionalProperties", True), self._old.get("additionalProperties", True)
        ):
            return "#/additionalProperties", "the reader takes fewer"
        return None

    def _array(self) -> tuple[str, str] | None:
        (new, new_rest), (old, old_rest) = _elements(self._new), _elements(self._old)
        for place in range(max(len(new), len(old))):
            wanted = new[place] if place < len(new) else new_rest
            given = old[place] if place < len(old) else old_rest
            if not self._inner(wanted, given):
                return f"#/items/{place}", "the reader takes fewer elements"
        return None if self._inner(new_rest, old_rest) else ("#/items", "the reader takes fewer elements")

    def _inner(self, wanted: Any, given: Any) -> bool:
        return self._comparison.inner(
            _Part(self._reader.document, wanted), _Part(self._writer.document, given)
        )


_NOTHING: Final = object()


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    """The types that a schema allows. If `number` is among them, so is `integer`."""
    given = schema.get("type")
    if given is None:
        return TYPES
    names = frozenset([given] if isinstance(given, str) else given)
    return names | {"integer"} if "number" in names else names


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    """The only values that a schema can take, if it lists them."""
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum")


def _elements(schema: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """The schemas of an array's first elements, and the schema of all others."""
    items = schema.get("items", True)
    if "prefixItems" in schema:
        return schema["prefixItems"], items if not isinstance(items, list) else True
    return (items, schema.get("additionalItems", True)) if isinstance(items, list) else ([], items)


def _bound(schema: Mapping[str, Any], limit: str, exclusive: str, sign: int) -> tuple[float, bool] | None:
    """The narrowest bound, larger if narrower; draft 4 says with true that a bound is exclusive."""
    found: list[tuple[float, bool]] = []
    outside = schema.get(exclusive)
    if limit in schema:
        found.append((sign * schema[limit], outside is True))
    if outside is not None and not isinstance(outside, bool):
        found.append((sign * outside, True))
    return max(found, default=None)


def _is_multiple(value: float, step: float) -> bool:
    return (isinstance(value, int) and isinstance(step, int) and value % step == 0) or value == step


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case dict():
            return "object"
        case list():
            return "array"
    return "integer" if isinstance(value, int) or value == int(value) else "number"


def _holds(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value surely fits; False for what is not looked into."""
    kind = _type_of(value)
    allowed = _values(schema)
    if kind not in _types(schema) or (
        allowed is not None and sorted_json(value) not in {sorted_json(one) for one in allowed}
    ):
        return False
    left = schema.keys() - _ANNOTATIONS - {"type", "enum", "const"}
    if kind == "string":
        length = len(value)
        fits = schema.get("minLength", 0) <= length <= schema.get("maxLength", length)
        return fits and not left & (_OF_STRINGS | (left - _COMPARED))
    if kind in ("integer", "number"):
        if left - _COMPARED or "multipleOf" in left:
            return False
        low = _bound(schema, "minimum", "exclusiveMinimum", 1)
        high = _bound(schema, "maximum", "exclusiveMaximum", -1)
        return (low is None or low <= (value, False)) and (high is None or high <= (-value, False))
    return not left or (kind in ("null", "boolean") and not left - _COMPARED - _OF_STRINGS)
