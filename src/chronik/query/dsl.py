"""Queries in the shapes that people know from Elasticsearch, turned into tantivy's.

A field is a path into the JSON value (`customer.name`), or one of the record's own: `_key`, `_partition`,
`_offset`, `_timestamp` (also `@timestamp`), `_text` for words anywhere in the value. JSON strings are indexed
word by word, so a term of several words is looked for as a phrase. What is looked for in `_text` is looked
for in the words of values that are no JSON objects and at every path that the others have.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import tantivy

from chronik.query.dsl_values import (
    DATE,
    NUMBERS,
    SPECIAL,
    TEXTS,
    analyzer,
    argument,
    boost_of,
    field_of,
    mapping,
    needed,
    parse_date,
    range_end,
    single,
    tree_bounds,
    whole,
    wrong,
)

__all__ = ["Translator"]

DEPTH_MAX: Final = 20
CLAUSES_MAX: Final = 1024
PHRASE_WORDS_MAX: Final = 256
"""The work of a phrase grows with the square of its words."""
NEAR_CHARS_MAX: Final = 200
"""Longest prefix or fuzzy word. tantivy makes an automaton of it for each field, about 1 KiB a character."""
LOOKS_MAX: Final = 20_000
"""Words times the fields they are looked for in, where no field is named."""

Body: TypeAlias = Any
Occur: TypeAlias = tantivy.Occur


class Translator:
    """One query, translated for one index; also remembers the words to highlight."""

    def __init__(self, index: tantivy.Index, paths: Sequence[str] = ()) -> None:
        """`paths` are all that JSON values in this index have."""
        self._index = index
        self._everywhere = ("_text", *(f"json.{path}" for path in paths))
        self._schema = index.schema
        self._analyzer = analyzer()
        self._clauses = 0
        self._looks = 0
        self.words: set[str] = set()

    def translate(self, body: Body, depth: int = 0) -> tantivy.Query:
        self._clauses += 1
        if depth > DEPTH_MAX or self._clauses > CLAUSES_MAX:
            raise wrong(f"A query may nest {DEPTH_MAX} deep and have {CLAUSES_MAX} clauses.")
        kind, inner = single(body, "query")
        match kind:
            case "match_all":
                return tantivy.Query.all_query()
            case "match_none":
                return tantivy.Query.empty_query()
            case "bool":
                return self._bool(inner, depth)
            case "constant_score":
                query = self.translate(needed(inner, "filter"), depth + 1)
                return tantivy.Query.const_score_query(query, boost_of(inner))
            case "query_string" | "simple_query_string":
                return self._query_string(inner)
            case "multi_match":
                return self._multi_match(inner)
            case "ids":
                return self._ids(inner)
            case "exists":
                return self._exists(str(needed(inner, "field")))
        leaf = self._leaves().get(kind)
        if leaf is None:
            raise wrong(f"There is no query {kind!r}; known are bool, {', '.join(sorted(self._leaves()))}.")
        if kind == "terms":
            inner = {name: value for name, value in mapping(inner, kind).items() if name != "boost"}
        field, value = single(inner, kind)
        return leaf(field_of(field), value)

    def _leaves(self) -> Mapping[str, Callable[[str, Any], tantivy.Query]]:
        return {
            "match": self._match,
            "match_phrase": lambda field, value: self._phrase(field, argument(value, "query")),
            "term": lambda field, value: self._term(field, argument(value, "value")),
            "terms": self._terms,
            "range": self._range,
            "prefix": lambda field, value: self._prefix(field, argument(value, "value")),
            "fuzzy": self._fuzzy,
        }

    def _tokens(self, text: str) -> list[str]:
        tokens = self._analyzer.analyze(text[:10_000])
        self.words.update(tokens)
        return tokens

    # --- leaves ------------------------------------------------------------------------------------

    def _match(self, field: str, value: Any) -> tantivy.Query:
        wanted = argument(value, "query")
        operator = str(value.get("operator", "or")).lower() if isinstance(value, Mapping) else "or"
        if field in NUMBERS or not isinstance(wanted, str) or field == "_key":
            return self._term(field, wanted)
        occur = tantivy.Occur.Must if operator == "and" else tantivy.Occur.Should
        # Anywhere, a number or a date may stand in one field and a word in another.
        pieces = wanted.split() if field == "_text" else [wanted]
        return _all([self._match_piece(field, one, occur) for one in pieces if self._tokens(one)], occur)

    def _match_piece(self, field: str, text: str, occur: Occur) -> tantivy.Query:
        words = _all([self._word(field, token) for token in self._tokens(text)], occur)
        return _any([words, *self._typed(field, text)])

    def _places(self, field: str) -> Sequence[str]:
        if field != "_text":
            return (field,)
        self._looks += len(self._everywhere)
        if self._looks > LOOKS_MAX:
            raise wrong(f"These are too many words for {len(self._everywhere)} fields: name a field.")
        return self._everywhere

    def _word(self, field: str, token: str) -> tantivy.Query:
        return _any([tantivy.Query.term_query(self._schema, one, token) for one in self._places(field)])

    def _typed(self, field: str, text: str) -> list[tantivy.Query]:
        """A word that can also be read as a number, a truth value or a date matches those too."""
        if field == "_text":
            return [query for one in self._everywhere[1:] for query in self._typed(one, text)]
        if field == "_key":
            return []
        if text in ("true", "false"):
            return [tantivy.Query.term_query(self._schema, field, text == "true")]
        if DATE.fullmatch(text):
            return [self._date_term(field, text)]
        try:
            number = json.loads(text)
        except ValueError:
            return []
        return self._number(field, number) if type(number) in (int, float) else []

    def _number(self, field: str, number: float) -> list[tantivy.Query]:
        """The index keeps 5 and 5.0 apart, so both are looked for. NaN and infinities match nothing."""
        if not abs(number) <= sys.float_info.max:
            return []
        wanted: list[float] = [float(number)]
        if float(number).is_integer() and abs(number) < 2**63:
            wanted.append(int(number))
        return [tantivy.Query.term_query(self._schema, field, one) for one in wanted]

    def _date_term(self, field: str, text: str) -> tantivy.Query:
        return tantivy.Query.term_query(self._schema, field, parse_date(text))

    def _phrase(self, field: str, value: Any) -> tantivy.Query:
        if not isinstance(value, str) or field in NUMBERS or field == "_key":
            return self._term(field, value)
        tokens = self._tokens(value)
        if not tokens:
            return tantivy.Query.empty_query()
        if len(tokens) == 1:
            return self._word(field, tokens[0])
        if len(tokens) > PHRASE_WORDS_MAX:
            raise wrong(f"A phrase has at most {PHRASE_WORDS_MAX} words.")
        places = self._places(field)
        return _any([tantivy.Query.phrase_query(self._schema, one, list(tokens)) for one in places])

    def _term(self, field: str, value: Any) -> tantivy.Query:
        if field in NUMBERS:
            number = whole(field, value)
            return tantivy.Query.range_query(self._schema, field, NUMBERS[field], number, number)
        if field == "_key":
            self.words.update(self._analyzer.analyze(str(value)))
            return tantivy.Query.term_query(self._schema, field, str(value))
        if isinstance(value, bool | int | float) and field == "_text":
            value = json.dumps(value)
        if isinstance(value, bool):
            return tantivy.Query.term_query(self._schema, field, value)
        if isinstance(value, int | float):
            return _any(self._number(field, value))
        if not isinstance(value, str):
            raise wrong("A term is text, a number or a truth value.")
        return _any([self._phrase(field, value), *self._typed(field, value)])

    def _terms(self, field: str, values: Any) -> tantivy.Query:
        if not isinstance(values, Sequence) or isinstance(values, str) or len(values) > CLAUSES_MAX:
            raise wrong(f"terms takes a list of at most {CLAUSES_MAX} values.")
        return _any([self._term(field, value) for value in values]) if values else tantivy.Query.empty_query()

    def _prefix(self, field: str, value: Any) -> tantivy.Query:
        if not isinstance(value, str) or field in NUMBERS or not value:
            raise wrong("A prefix is text, for a field that holds text.")
        text = value if field == "_key" else value.lower()
        self.words.add(text)
        return self._near(field, text, 0, prefix=True)

    def _near(self, field: str, text: str, distance: int, prefix: bool = False) -> tantivy.Query:
        if len(text) > NEAR_CHARS_MAX:
            raise wrong(f"A prefix or a fuzzy word has at most {NEAR_CHARS_MAX} characters.")
        places = self._places(field)
        return _any(
            [
                tantivy.Query.fuzzy_term_query(self._schema, one, text, distance, prefix=prefix)
                for one in places
            ]
        )

    def _fuzzy(self, field: str, value: Any) -> tantivy.Query:
        text = argument(value, "value")
        given = value.get("fuzziness", "AUTO") if isinstance(value, Mapping) else "AUTO"
        if not isinstance(text, str) or field in NUMBERS:
            raise wrong("fuzzy is for text.")
        distance = (len(text) > 2) + (len(text) > 5) if given == "AUTO" else given
        if distance not in (0, 1, 2):
            raise wrong("fuzziness is 0, 1, 2 or AUTO.")
        return self._near(field, text.lower(), int(distance))

    def _exists(self, name: str) -> tantivy.Query:
        field = field_of(name)
        if field in NUMBERS or field == "_text":
            return tantivy.Query.all_query()
        if field == "_key":
            return tantivy.Query.range_query(
                self._schema, "_has_key", tantivy.FieldType.Unsigned, 1, 1, use_inverted_index=True
            )
        return tantivy.Query.exists_query(field, True)

    def _range(self, field: str, value: Any) -> tantivy.Query:
        return _any([self._range_at(one, value) for one in self._places(field)])

    def _range_at(self, field: str, value: Any) -> tantivy.Query:
        bounds = {name: one for name, one in mapping(value, "range").items() if one is not None}
        if unknown := bounds.keys() - {"gt", "gte", "lt", "lte", "boost", "format"}:
            raise wrong(f"range knows gt, gte, lt and lte, not {sorted(unknown)[0]!r}.")
        low, high = bounds.get("gte", bounds.get("gt")), bounds.get("lte", bounds.get("lt"))
        with_low, with_high = "gt" not in bounds, "lt" not in bounds
        if low is None and high is None:
            return self._exists(field.removeprefix("json."))
        if field in NUMBERS:
            return tantivy.Query.range_query(
                self._schema,
                field,
                NUMBERS[field],
                None if low is None else whole(field, low),
                None if high is None else whole(field, high),
                with_low,
                with_high,
            )
        if low is not None and high is not None and not isinstance(low, str) and not isinstance(high, str):
            # tantivy cannot take an integer and a float as bounds of one range.
            sides = [{name: bounds[name]} for name in ("gt", "gte", "lt", "lte") if name in bounds]
            both = [(tantivy.Occur.Must, self._range_at(field, side)) for side in sides]
            return tantivy.Query.boolean_query(both)
        left = f"{'[' if with_low else '{'}{range_end(low)}"
        right = f"{range_end(high)}{']' if with_high else '}'}"
        name = field if field in TEXTS else "json." + SPECIAL.sub(r"\\\1", field.removeprefix("json."))
        try:
            return self._index.parse_query(f"{name}:{left} TO {right}")
        except ValueError as error:
            raise wrong(f"The range over {field.removeprefix('json.')!r} is not valid: {error}.") from None

    def _ids(self, inner: Any) -> tantivy.Query:
        wanted = []
        values = needed(inner, "values")
        if not isinstance(values, list):
            raise wrong("values is a list of ids.")
        for one in values:
            partition, dash, offset = str(one).partition("-")
            if not (dash and partition.isdecimal() and offset.isdecimal()):
                raise wrong(f"{one!r} is no id: ids are PARTITION-OFFSET.")
            both = [self._term("_partition", partition), self._term("_offset", offset)]
            wanted.append(tantivy.Query.boolean_query([(tantivy.Occur.Must, part) for part in both]))
        return _any(wanted[:CLAUSES_MAX]) if wanted else tantivy.Query.empty_query()

    # --- compounds -----------------------------------------------------------------------------------

    def _bool(self, inner: Any, depth: int) -> tantivy.Query:
        inner = mapping(inner, "bool")
        parts: list[tuple[Occur, tantivy.Query]] = []
        places = {
            "must": tantivy.Occur.Must,
            "filter": tantivy.Occur.Must,
            "should": tantivy.Occur.Should,
            "must_not": tantivy.Occur.MustNot,
        }
        if unknown := inner.keys() - {*places, "minimum_should_match", "boost"}:
            raise wrong(f"bool knows must, filter, should and must_not, not {sorted(unknown)[0]!r}.")
        for name, occur in places.items():
            given = inner.get(name, [])
            for one in given if isinstance(given, list) else [given]:
                query = self.translate(one, depth + 1)
                if name == "filter":
                    query = tantivy.Query.const_score_query(query, 0.0)
                parts.append((occur, query))
        if not parts:
            return tantivy.Query.all_query()
        occurs = {occur for occur, _ in parts}
        if occurs == {tantivy.Occur.MustNot}:
            parts.append((tantivy.Occur.Must, tantivy.Query.all_query()))
        least = inner.get("minimum_should_match")
        if least is not None and not (isinstance(least, int) and 0 <= least <= CLAUSES_MAX):
            raise wrong(f"minimum_should_match is a whole number from 0 to {CLAUSES_MAX}.")
        return tantivy.Query.boolean_query(parts, least)

    def _multi_match(self, inner: Any) -> tantivy.Query:
        text = needed(inner, "query")
        fields = inner.get("fields") or ["_text"]
        if not isinstance(fields, list):
            raise wrong("fields is a list of names.")
        kind = "match_phrase" if inner.get("type") == "phrase" else "match"
        queries = [self.translate({kind: {str(field).partition("^")[0]: text}}) for field in fields]
        return tantivy.Query.disjunction_max_query(queries)

    def _query_string(self, inner: Any) -> tantivy.Query:
        inner = {"query": inner} if isinstance(inner, str) else inner
        text = str(needed(inner, "query"))
        try:
            tree = tantivy.parse_query(text)
        except ValueError:
            raise wrong(
                f'{text[:200]!r} cannot be read: write words, "a phrase", field:value, a:[1 TO 5], AND, OR.'
            ) from None
        default = str(inner.get("default_field", "_text"))
        both = str(inner.get("default_operator", "and")).lower() == "and"
        return self._tree(tree, default, both, 0)

    def _tree(self, node: Mapping[str, Any], default: str, both: bool, depth: int) -> tantivy.Query:
        """tantivy's own syntax tree; a field it does not know is a path into the JSON value."""
        self._clauses += 1
        if depth > DEPTH_MAX or self._clauses > CLAUSES_MAX:
            raise wrong(f"A query may nest {DEPTH_MAX} deep and have {CLAUSES_MAX} clauses.")
        match node["type"]:
            case "all":
                return tantivy.Query.all_query()
            case "literal":
                return self._literal(node, default)
            case "exists":
                return self._exists(node["field"])
            case "boost":
                query = self._tree(node["underlying"], default, both, depth + 1)
                return tantivy.Query.boost_query(query, float(node["boost"]))
            case "range":
                return self._range(field_of(node["field"] or default), tree_bounds(node))
            case "bool":
                return self._tree_bool(node, default, both, depth)
            case kind:
                raise wrong(f"{kind} is not supported in a query string.")

    def _literal(self, node: Mapping[str, Any], default: str) -> tantivy.Query:
        field, phrase = field_of(node["field_name"] or default), node["phrase"]
        if node["delimiter"] != "none":
            return self._phrase(field, phrase)
        if phrase.endswith("*") and len(phrase) > 1:
            return self._prefix(field, phrase[:-1])
        return self._match(field, {"query": phrase, "operator": "and"})

    def _tree_bool(self, node: Mapping[str, Any], default: str, both: bool, depth: int) -> tantivy.Query:
        occurs = {
            "must": tantivy.Occur.Must,
            "should": tantivy.Occur.Should,
            "must_not": tantivy.Occur.MustNot,
        }
        loose = tantivy.Occur.Must if both else tantivy.Occur.Should
        parts = []
        for occur, child in node["clauses"]:
            query = self._tree(child, default, both, depth + 1)
            parts.append((loose if occur is None else occurs[occur], query))
        if parts and all(occur == tantivy.Occur.MustNot for occur, _ in parts):
            parts.append((tantivy.Occur.Must, tantivy.Query.all_query()))
        return tantivy.Query.boolean_query(parts) if parts else tantivy.Query.all_query()


def _any(queries: Sequence[tantivy.Query]) -> tantivy.Query:
    return _all(queries, tantivy.Occur.Should)


def _all(queries: Sequence[tantivy.Query], occur: Occur) -> tantivy.Query:
    if not queries:
        return tantivy.Query.empty_query()
    if len(queries) == 1:
        return queries[0]
    return tantivy.Query.boolean_query([(occur, query) for query in queries])
