"""Which bytes a record must contain for a query to match it. Pure; never stricter than the search itself.

A record that is in no index yet can only be found by a query if a condition holds for its raw bytes: the
words of a `term` stand there, at least one of the words of a `match`, and so on. Checking that takes a
fraction of what indexing the record takes, and what passes is few enough to be indexed for the one search.
Where the bytes say nothing (a range over a JSON number, a date, `must_not`), the condition is `ANYTHING`.

Every condition that holds for some bytes holds for bytes around them, too. So it is asked of whole batches
first, and of single records only where it holds for their batch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import tantivy

from chronik.query.dsl_values import (
    DATE,
    NUMBERS,
    analyzer,
    argument,
    field_of,
    mapping,
    needed,
    single,
    tree_bounds,
    whole,
)

__all__ = ["ANYTHING", "Condition", "Piece", "condition_of"]

EXACT_MAX: Final = 2**53
"""Below this, every integer equals its 64-bit float."""
DIGITS_MAX: Final = 15
"""Two different decimal numbers with at most this many digits are never the same 64-bit float."""
_ESCAPE: Final = b"\\u"
"""The only escape by which JSON can write a letter or digit with other bytes."""
_PLAIN: Final = re.compile(r"[0-9a-jl-z]+")
"""Digits, and ASCII letters that come only from their own capitals by lower-casing. Not k: the Kelvin sign
becomes k, too."""
_DOTTED: Final = "i\u0307"
"""What the Turkish dotted capital I becomes when it is lower-cased."""
_DIGITS: Final = bytes.maketrans(b"123456789.", b"0" * 10)
_ODD: Final = re.compile(
    rb"[:,\[\s]-?[0-9]+(?:\.[0-9]+)?e[-+]?[0-9]"  # 5e0
    rb"|(?=[0-9.]{17})[0-9]+\.[0-9]"  # 4.9999999999999999
    rb"|[0-9]{20}"
)


class Piece(NamedTuple):
    """A record, or a batch of them."""

    text: bytes
    """Keys and values, with ASCII letters lower-cased."""
    partition: int
    offsets: tuple[int, int]
    """The first and the last."""
    timestamps: tuple[int, int]
    is_batch: bool = False


Condition: TypeAlias = "Contains | Number | Between | Every | Either"


@dataclass(frozen=True, slots=True)
class Contains:
    word: bytes

    def holds(self, piece: Piece) -> bool:
        return self.word in piece.text or _ESCAPE in piece.text


@dataclass(frozen=True, slots=True)
class Number:
    """A number. JSON may write it with these digits, with more zeros after the point, or in another form."""

    digits: bytes
    pattern: re.Pattern[bytes]

    def holds(self, piece: Piece) -> bool:
        if self.digits in piece.text and (piece.is_batch or self.pattern.search(piece.text)):
            return True
        plain = piece.text.translate(_DIGITS)
        if b"0e" not in plain and b"0" * 17 not in plain:
            return False
        return piece.is_batch or _ODD.search(piece.text) is not None


@dataclass(frozen=True, slots=True)
class Between:
    """A range of partition, offset or timestamp; both ends included."""

    field: str
    low: int | None
    high: int | None

    def holds(self, piece: Piece) -> bool:
        match self.field:
            case "_offset":
                first, last = piece.offsets
            case "_timestamp":
                first, last = piece.timestamps
            case _:
                first = last = piece.partition
        return (self.low is None or self.low <= last) and (self.high is None or first <= self.high)


@dataclass(frozen=True, slots=True)
class Every:
    parts: tuple[Condition, ...]

    def holds(self, piece: Piece) -> bool:
        return all(part.holds(piece) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Either:
    parts: tuple[Condition, ...]

    def holds(self, piece: Piece) -> bool:
        return any(part.holds(piece) for part in self.parts)


ANYTHING: Final[Condition] = Every(())
NOTHING: Final[Condition] = Either(())


def _every(parts: Iterable[Condition]) -> Condition:
    kept = tuple(part for part in parts if part != ANYTHING)
    return kept[0] if len(kept) == 1 else Every(kept)


def _either(parts: Iterable[Condition]) -> Condition:
    kept = tuple(parts)
    if ANYTHING in kept:
        return ANYTHING
    return kept[0] if len(kept) == 1 else Either(kept)


def condition_of(body: Any) -> Condition:
    """The query must have passed the translator, which reports mistakes."""
    kind, inner = single(body, "query")
    match kind:
        case "match_none":
            return NOTHING
        case "bool":
            return _bool(inner)
        case "constant_score":
            return condition_of(needed(inner, "filter"))
        case "query_string" | "simple_query_string":
            return _query_string(inner)
        case "multi_match":
            return _multi_match(inner)
        case "ids":
            return _either(_id(str(one)) for one in needed(inner, "values"))
        case "exists":
            return _exists(str(needed(inner, "field")))
    leaf = _LEAVES.get(kind)
    if leaf is None:
        return ANYTHING
    if kind == "terms":
        inner = {name: value for name, value in inner.items() if name != "boost"}
    field, value = single(inner, kind)
    return leaf(field_of(field), value)


# --- leaves ------------------------------------------------------------------------------------------


def _contains(text: str) -> Condition:
    """Contains the longest part of the text that raw bytes can only write in one way."""
    words = _PLAIN.findall(text.lower().replace(_DOTTED, " "))
    return Contains(max(words, key=len).encode()) if words else ANYTHING


def _words(text: str) -> list[Condition]:
    return [_contains(word) for word in analyzer().analyze(text[:10_000])]


def _match(field: str, value: Any) -> Condition:
    wanted = argument(value, "query")
    both = isinstance(value, Mapping) and str(value.get("operator", "or")).lower() == "and"
    if field in NUMBERS or not isinstance(wanted, str) or field == "_key":
        return _term(field, wanted)
    pieces = wanted.split() if field == "_text" else [wanted]
    join = _every if both else _either
    return join([_match_piece(one, join) for one in pieces if _words(one)]) if pieces else NOTHING


def _match_piece(text: str, join: Callable[[Iterable[Condition]], Condition]) -> Condition:
    return _either([join(_words(text)), *_typed(text)])


def _typed(text: str) -> list[Condition]:
    """What else a word can be read as."""
    if text in ("true", "false"):
        return [Contains(text.encode())]
    if DATE.fullmatch(text):
        return [ANYTHING]
    try:
        number = json.loads(text)
    except ValueError:
        return []
    return [_number(number)] if type(number) in (int, float) else []


def _number(number: float) -> Condition:
    if not math.isfinite(number) or abs(number) >= EXACT_MAX:
        return ANYTHING
    if float(number).is_integer():
        digits = str(abs(int(number)))
        behind = r"(?![0-9a-z])"
    else:
        digits = repr(abs(float(number)))
        behind = r"(?!0*[1-9a-z])"
        if "e" in digits or len(digits) > DIGITS_MAX:
            return ANYTHING
    pattern = rf"(?<=[\s:,\[-]){re.escape(digits)}{behind}"
    return Number(digits.encode(), re.compile(pattern.encode()))


def _phrase(field: str, value: Any) -> Condition:
    if not isinstance(value, str) or field in NUMBERS or field == "_key":
        return _term(field, value)
    words = _words(value)
    return _every(words) if words else NOTHING


def _term(field: str, value: Any) -> Condition:
    if field in NUMBERS:
        number = whole(field, value)
        return Between(field, number, number)
    if field == "_key":
        return _contains(str(value))
    if isinstance(value, bool | int | float) and field == "_text":
        value = json.dumps(value)
    if isinstance(value, bool):
        return Contains(b"true" if value else b"false")
    if isinstance(value, int | float):
        return _number(value)
    return _either([_phrase(field, value), *_typed(value)])


def _terms(field: str, values: Sequence[Any]) -> Condition:
    return _either(_term(field, value) for value in values)


def _fuzzy(_field: str, _value: Any) -> Condition:
    return ANYTHING


def _exists(name: str) -> Condition:
    field = field_of(name)
    return _contains(field.removeprefix("json.")) if field.startswith("json.") else ANYTHING


def _range(field: str, value: Any) -> Condition:
    if field not in NUMBERS:
        return ANYTHING if field in ("_text", "_key") else _contains(field.removeprefix("json."))
    bounds = {name: one for name, one in mapping(value, "range").items() if one is not None}
    low, high = bounds.get("gte", bounds.get("gt")), bounds.get("lte", bounds.get("lt"))
    ends = [None if end is None else whole(field, end) for end in (low, high)]
    return Between(field, *ends)


_LEAVES: Final[Mapping[str, Callable[[str, Any], Condition]]] = {
    "match": _match,
    "match_phrase": lambda field, value: _phrase(field, argument(value, "query")),
    "term": lambda field, value: _term(field, argument(value, "value")),
    "terms": _terms,
    "range": _range,
    "prefix": lambda _, value: _contains(str(argument(value, "value"))),
    "fuzzy": _fuzzy,
}


def _id(text: str) -> Condition:
    partition, _, offset = text.partition("-")
    return _every([_term("_partition", partition), _term("_offset", offset)])


# --- compounds ---------------------------------------------------------------------------------------


def _clauses(must: Sequence[Condition], should: Sequence[Condition], least: int | None = None) -> Condition:
    """One condition out of all clauses. If there is a `must`, `should` only affects the order, unless at
    least `least` of its clauses must match."""
    if should and least != 0 and (least or not must):
        return _every([*must, _either(should)])
    return _every(must)


def _bool(inner: Any) -> Condition:
    parts: dict[str, list[Condition]] = {}
    for name in ("must", "filter", "should"):
        clauses = inner.get(name, [])
        parts[name] = [condition_of(one) for one in (clauses if isinstance(clauses, list) else [clauses])]
    return _clauses(parts["must"] + parts["filter"], parts["should"], inner.get("minimum_should_match"))


def _multi_match(inner: Any) -> Condition:
    fields = inner.get("fields") or ["_text"]
    kind = "match_phrase" if inner.get("type") == "phrase" else "match"
    text = needed(inner, "query")
    return _either(condition_of({kind: {str(field).partition("^")[0]: text}}) for field in fields)


def _query_string(inner: Any) -> Condition:
    inner = {"query": inner} if isinstance(inner, str) else inner
    default = str(inner.get("default_field", "_text"))
    both = str(inner.get("default_operator", "and")).lower() == "and"
    return _tree(tantivy.parse_query(str(needed(inner, "query"))), default, both)


def _tree(node: Mapping[str, Any], default: str, both: bool) -> Condition:
    match node["type"]:
        case "literal":
            field, phrase = field_of(node["field_name"] or default), node["phrase"]
            if node["delimiter"] != "none":
                return _phrase(field, phrase)
            if phrase.endswith("*") and len(phrase) > 1:
                return _contains(phrase[:-1])
            return _match(field, {"query": phrase, "operator": "and"})
        case "exists":
            return _exists(node["field"])
        case "boost":
            return _tree(node["underlying"], default, both)
        case "range":
            return _range(field_of(node["field"] or default), tree_bounds(node))
        case "bool":
            must, should = [], []
            for occur, child in node["clauses"]:
                if occur == "must" or (occur is None and both):
                    must.append(_tree(child, default, both))
                elif occur != "must_not":
                    should.append(_tree(child, default, both))
            return _clauses(must, should)
        case _:
            return ANYTHING
