"""The values in a search query: fields, numbers, dates, bounds. Each is refused where it makes no sense."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from typing import Any, Final

import tantivy

from chronik.query.messages import QueryError

BOOST_MAX: Final = 1e6
ALIASES: Final[Mapping[str, str]] = {
    "@timestamp": "_timestamp",
    "timestamp_ms": "_timestamp",
    "_all": "_text",
    "*": "_text",
}
NUMBERS: Final[Mapping[str, tantivy.FieldType]] = {
    "_partition": tantivy.FieldType.Unsigned,
    "_offset": tantivy.FieldType.Unsigned,
    "_timestamp": tantivy.FieldType.Integer,
}
TEXTS: Final = frozenset({"_key", "_text"})
DATE: Final = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?(?:Z|[+-]\d\d:?\d\d)?")
SPECIAL: Final = re.compile(r"([^\w.@])")


def wrong(message: str) -> QueryError:
    return QueryError(400, "invalid_query", message)


def analyzer() -> tantivy.TextAnalyzer:
    """Cuts text into words as tantivy's default tokenizer does when it indexes."""
    filters = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    return filters.filter(tantivy.Filter.remove_long(40)).filter(tantivy.Filter.lowercase()).build()


def field_of(name: str) -> str:
    """A record's own field, or a path into the JSON value."""
    name = ALIASES.get(name.removesuffix(".keyword"), name.removesuffix(".keyword"))
    if not name:
        raise wrong("A field has a name.")
    return name if name in NUMBERS or name in TEXTS else f"json.{name}"


def boost_of(inner: Mapping[str, Any]) -> float:
    boost = inner.get("boost", 1.0)
    if isinstance(boost, bool) or not isinstance(boost, int | float) or not 0 <= boost <= BOOST_MAX:
        raise wrong(f"boost is a number from 0 to {BOOST_MAX:g}.")
    return float(boost)


def whole(field: str, value: Any) -> int:
    """A value of one of the record's own numbers."""
    if field == "_timestamp" and isinstance(value, str) and DATE.fullmatch(value):
        return int(parse_date(value).timestamp() * 1000)
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise wrong(f"{field} is a whole number, not {value!r}.") from None
    low, high = (-(2**63), 2**63 - 1) if field == "_timestamp" else (0, 2**64 - 1)
    return min(max(number, low), high)


def tree_bounds(node: Mapping[str, Any]) -> dict[str, Any]:
    """A range of a query string as `range` has it."""
    names = {("lower", "inclusive"): "gte", ("lower", "exclusive"): "gt"}
    names |= {("upper", "inclusive"): "lte", ("upper", "exclusive"): "lt"}
    return {
        names[side, node[side]["type"]]: plain(node[side]["value"])
        for side in ("lower", "upper")
        if node[side]["type"] != "unbounded"
    }


def parse_date(text: str) -> datetime.datetime:
    try:
        date = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise wrong(f"{text!r} is no date.") from None
    return date if date.tzinfo else date.replace(tzinfo=datetime.UTC)


def range_end(value: Any) -> str:
    if value is None:
        return "*"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise wrong("The ends of a range are numbers, dates or text.")
    if isinstance(value, str):
        if DATE.fullmatch(value):
            return parse_date(value).astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return SPECIAL.sub(r"\\\1", value.lower())
    return json.dumps(value)


def plain(text: str) -> Any:
    """A bound of a query string: a number where it is one."""
    try:
        number = json.loads(text)
    except ValueError:
        return text
    return number if type(number) in (int, float) else text


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise wrong(f"{what} takes an object.")
    return value


def single(value: Any, what: str) -> tuple[str, Any]:
    entries = mapping(value, what)
    if len(entries) != 1:
        raise wrong(f"{what} takes an object with exactly one entry.")
    ((name, inner),) = entries.items()
    return str(name), inner


def needed(value: Any, name: str) -> Any:
    entries = mapping(value, "this query")
    if name not in entries:
        raise wrong(f"{name!r} is missing.")
    return entries[name]


def argument(value: Any, name: str) -> Any:
    """`{"field": value}` or `{"field": {"query": value}}`."""
    return needed(value, name) if isinstance(value, Mapping) else value
