"""Avro: parsing, canonical text, and the specification's rules of resolution (H06)."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.registry.avro import parse_avro
from chronik.registry.avro_compat import avro_differences
from chronik.registry.errors import InvalidSchema, TooExpensive
from chronik.registry.limits import StepBudget


def differences(reader: object, writer: object, *references: object) -> list[str]:
    known = {str(place): json.dumps(one) for place, one in enumerate(references)}
    one, _ = parse_avro(json.dumps(reader), known, StepBudget())
    other, _ = parse_avro(json.dumps(writer), known, StepBudget())
    return avro_differences(one, other, StepBudget())


def canonical(schema: object, **options: bool) -> str:
    return parse_avro(json.dumps(schema), {}, StepBudget(), **options)[1]


def record(*fields: object, name: str = "R", **more: object) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: object = "int", **more: object) -> dict[str, object]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, **more: object) -> dict[str, object]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F") -> dict[str, object]:
    return {"type": "fixed", "name": name, "size": size}


def decimal(precision: int, scale: int) -> dict[str, object]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


PROMOTED = {
    "int": {"int", "long", "float", "double"},
    "long": {"long", "float", "double"},
    "float": {"float", "double"},
    "double": {"double"},
    "string": {"string", "bytes"},
    "bytes": {"bytes", "string"},
    "boolean": {"boolean"},
    "null": {"null"},
}


@pytest.mark.parametrize("writer", PROMOTED)
@pytest.mark.parametrize("reader", PROMOTED)
def test_primitives_are_promoted_and_nothing_else(writer: str, reader: str) -> None:
    assert (differences(reader, writer) == []) == (reader in PROMOTED[writer])


COMPATIBLE = [
    (record(field("a")), record(field("a"), field("b"))),
    (record(field("a"), field("b", default=1)), record(field("a"))),
    (record(field("b", aliases=["a"])), record(field("a"))),
    (record(field("a", "long")), record(field("a", "int"))),
    (record(name="x.R"), record(name="y.R")),
    (record(name="New", aliases=["R"]), record(name="R")),
    (enum("a", "b"), enum("a")),
    (enum("a", default="a"), enum("a", "b")),
    (["null", "int"], "int"),
    (["null", "long"], ["null", "int"]),
    ("int", ["int"]),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}),
    ({"type": "map", "values": ["null", "int"]}, {"type": "map", "values": "int"}),
    (fixed(4), fixed(4)),
    (decimal(8, 2), decimal(8, 2)),
    (record(field("next", ["null", "R"])), record(field("next", ["null", "R"]))),
]
INCOMPATIBLE = [
    (record(field("a"), field("b")), record(field("a")), "/b: the reader's field has no default"),
    (record(field("a", "int")), record(field("a", "long")), "/a/: the reader's int does not read"),
    (record(name="R"), record(name="S"), "the reader's name is R"),
    (enum("a"), enum("a", "b"), "lacks symbols and has no default: b"),
    ("int", ["null", "int"], "/0/: the reader's int does not read the writer's null"),
    (["null", "string"], "int", "no branch"),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, "/array/"),
    ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, "does not read"),
    (fixed(4), fixed(5), "has 4 bytes"),
    (fixed(4, "F"), fixed(4, "G"), "name"),
    (decimal(8, 2), decimal(8, 3), "precision or scale"),
    (
        record(field("next", ["null", "R"]), field("v", "int")),
        record(field("next", ["null", "R"]), field("v", "long")),
        "/v/",
    ),
]


@pytest.mark.parametrize(("reader", "writer"), COMPATIBLE)
def test_what_is_resolved(reader: object, writer: object) -> None:
    assert differences(reader, writer) == []


@pytest.mark.parametrize(("reader", "writer", "why"), INCOMPATIBLE)
def test_what_is_not_resolved_and_why(reader: object, writer: object, why: str) -> None:
    assert any(why in one for one in differences(reader, writer)), differences(reader, writer)


def test_a_record_that_holds_itself_deep_down_is_compared_to_its_end() -> None:
    """Two records that hold each other match only if all of them do."""

    def pair(kind: str) -> dict[str, object]:
        inner = record(field("back", ["null", "A"]), field("v", kind), name="B")
        return record(field("b", ["null", inner]), name="A")

    assert differences(pair("long"), pair("int")) == []
    assert differences(pair("int"), pair("long")) != []


def test_types_of_references_are_found() -> None:
    user = record(field("id"), name="a.User")
    order = record(field("user", "a.User"), name="a.Order")
    assert differences(order, order, user) == []
    with pytest.raises(InvalidSchema, match=r"no type \"a\.User\""):
        differences(order, order)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "int"}, '"int"'),
        ({"type": "int", "logicalType": "date"}, '{"type":"int","logicalType":"date"}'),
        (
            {"fields": [{"type": "x.U", "name": "u"}], "name": "x.R", "type": "record", "doc": "d"},
            None,
        ),
        (
            {"name": "x.y.R", "fields": [{"type": {"type": "string"}, "name": "a"}], "type": "record"},
            '{"type":"record","name":"R","namespace":"x.y","fields":[{"name":"a","type":"string"}]}',
        ),
        (
            record(field("f", fixed(2)), field("g", "n.F"), name="R", namespace="n"),
            '{"type":"record","name":"R","namespace":"n","fields":[{"name":"f","type":{"type":"fixed",'
            '"name":"F","size":2}},{"name":"g","type":"F"}]}',
        ),
        (
            ["null", {"type": "array", "items": "int", "x": 1}],
            '["null",{"type":"array","items":"int","x":1}]',
        ),
    ],
)
def test_the_canonical_text(schema: object, text: str | None) -> None:
    if text is None:
        with pytest.raises(InvalidSchema):
            canonical(schema)
        return
    assert canonical(schema) == text
    assert canonical(json.loads(text)) == text


def test_normalized_texts_do_not_depend_on_order() -> None:
    one, other = enum("a", x=1, y=2), enum("a", y=2, x=1)
    assert canonical(one) != canonical(other)
    assert canonical(one, normalize=True) == canonical(other, normalize=True)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("nothing", "no type"),
        (1, "a name, an object or a list"),
        ({"name": "x"}, 'no "type"'),
        ({"type": "record", "name": "R"}, 'no list "fields"'),
        (record(field("a"), field("a")), "two fields a"),
        (record({"name": "a"}), "has no type"),
        (record(field("1a")), "valid name"),
        (record(name="1"), "no name of a type"),
        (record(field("a", "int", default="x")), "default of R.a is no int"),
        (record(field("a", "int", default=1 << 31)), "default"),
        (record(field("a", enum("x"), default="y")), "default"),
        (record(field("a", order="up")), "order"),
        (enum("a", "a"), "symbol twice"),
        (enum("a-b"), "invalid symbol"),
        (enum("a", default="b"), "none of its symbols"),
        (fixed(-1), "size"),
        ({"type": "array"}, "items"),
        (["int", "int"], "int twice"),
        (["int", ["null"]], "may not hold a union"),
        (record(field("a", record(name="R"))), "defined twice"),
    ],
)
def test_what_is_no_schema(schema: object, why: str) -> None:
    with pytest.raises(InvalidSchema, match=why):
        canonical(schema)


def test_depth_and_steps_are_bounded() -> None:
    schema: object = "int"
    for _ in range(70):
        schema = {"type": "array", "items": schema}
    with pytest.raises(InvalidSchema, match="nests deeper"):
        canonical(schema)
    with pytest.raises(InvalidSchema):
        parse_avro("[" * 100_000, {}, StepBudget())
    with pytest.raises(TooExpensive):
        parse_avro(json.dumps(record(*(field(f"f{n}") for n in range(100)))), {}, StepBudget(50))


PRIMITIVE = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "string", "bytes"])


def union_of(branches: list[Any]) -> list[Any]:
    def label(one: Any) -> str:
        return one if isinstance(one, str) else str(one.get("name", one["type"]))

    found = list({label(one): one for one in branches if not isinstance(one, list)}.values())
    return found or ["null"]  # of an empty union there is no datum


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda one: {"type": "array", "items": one}),
        inner.map(lambda one: {"type": "map", "values": one}),
        st.lists(inner, min_size=1, max_size=3).map(union_of),
    )


KIND = st.recursive(PRIMITIVE, nested, max_leaves=4)
FIELDS = st.dictionaries(st.sampled_from("abc"), st.tuples(KIND, st.booleans()), max_size=3)
DEFAULTS = {"int": 1, "long": 1, "string": "x", "null": None, "boolean": True, "double": 1.5, "float": 1.5}


@st.composite
def records(draw: st.DrawFn) -> dict[str, object]:
    found = []
    for name, (kind, has_default) in draw(FIELDS).items():
        default = isinstance(kind, str) and has_default and kind in DEFAULTS
        found.append(field(name, kind, **({"default": DEFAULTS[str(kind)]} if default else {})))
    return record(*found)


def datum(draw: st.DrawFn, kind: Any) -> Any:
    match kind:
        case list():
            return datum(draw, draw(st.sampled_from(kind))) if kind else None
        case {"type": "array"}:
            return [datum(draw, kind["items"])]
        case {"type": "map"}:
            return {"k": datum(draw, kind["values"])}
        case {"type": "record"}:
            return {one["name"]: datum(draw, one["type"]) for one in kind["fields"]}
        case "bytes":
            return b"x"
        case _:
            return DEFAULTS[kind]


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_what_is_called_compatible_is_read_by_fastavro(data: st.DataObject) -> None:
    """A foreign reader as oracle: it resolves every datum that the writer may write."""
    reader, writer = data.draw(records()), data.draw(records())
    if differences(reader, writer):
        return
    value = data.draw(st.composite(lambda draw: datum(draw, writer))())
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(writer), value)
    written.seek(0)
    fastavro.schemaless_reader(written, fastavro.parse_schema(writer), fastavro.parse_schema(reader))


@settings(deadline=None, max_examples=200)
@given(records())
def test_every_schema_reads_itself_and_its_canonical_text_stays(schema: dict[str, object]) -> None:
    assert differences(schema, schema) == []
    text = canonical(schema)
    assert canonical(json.loads(text)) == text
    assert fastavro.schema.to_parsing_canonical_form(json.loads(text)) == (
        fastavro.schema.to_parsing_canonical_form(schema)
    )
