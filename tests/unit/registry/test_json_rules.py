"""JSON Schema: parsing, and what is shown to be compatible (H06)."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.registry.errors import InvalidSchema, TooExpensive
from chronik.registry.json_compat import json_differences
from chronik.registry.json_schema import parse_json_schema
from chronik.registry.limits import StepBudget


def differences(reader: object, writer: object, **references: object) -> list[str]:
    known = {name: json.dumps(one) for name, one in references.items()}
    budget = StepBudget(1_000_000)
    one, _ = parse_json_schema(json.dumps(reader), known, budget)
    other, _ = parse_json_schema(json.dumps(writer), known, budget)
    return json_differences(one, other, budget)


def closed(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def opened(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties}


INT, TEXT, NUMBER = {"type": "integer"}, {"type": "string"}, {"type": "number"}
LIST = {"$ref": "#/definitions/list"}


def linked(kind: object) -> dict[str, object]:
    return {**LIST, "definitions": {"list": opened(next=LIST, value=kind)}}


COMPATIBLE = [
    (True, {"type": "object"}),
    ({}, INT),
    (NUMBER, INT),
    ({"type": ["integer", "null"]}, INT),
    (closed(a=INT, b=TEXT), closed(a=INT)),
    (opened(), opened(a=INT)),
    (opened(a=INT), {**closed(a=INT), "required": ["a"]}),
    ({**opened(a=INT), "required": ["a"]}, {**opened(a=INT), "required": ["a", "b"]}),
    ({"type": "string", "maxLength": 5}, {"type": "string", "maxLength": 4}),
    ({"type": "string", "minLength": 1}, {"type": "string", "minLength": 2}),
    ({"type": "integer", "minimum": 0}, {"type": "integer", "exclusiveMinimum": 0}),
    ({"type": "integer", "maximum": 9}, {"type": "integer", "maximum": 9, "exclusiveMaximum": True}),
    ({"type": "integer", "multipleOf": 2}, {"type": "integer", "multipleOf": 6}),
    ({"enum": ["a", "b"]}, {"enum": ["a"]}),
    (TEXT, {"enum": ["a", "b"]}),
    (TEXT, {"const": "a"}),
    ({"type": "array", "items": NUMBER}, {"type": "array", "items": INT}),
    ({"type": "array", "items": [INT, TEXT]}, {"type": "array", "items": [INT, TEXT, NUMBER]}),
    ({"anyOf": [TEXT, INT]}, INT),
    ({"anyOf": [TEXT, NUMBER]}, {"anyOf": [INT, TEXT]}),
    ({"oneOf": [TEXT, INT, {"type": "null"}]}, {"oneOf": [TEXT, INT]}),
    (INT, {"allOf": [NUMBER, INT]}),
    ({"allOf": [NUMBER, {"minimum": 0}]}, {"type": "integer", "minimum": 1}),
    (linked(NUMBER), linked(INT)),
    ({"$ref": "other"}, {"$ref": "other"}),
    ({"type": "string", "pattern": "(a+)+$"}, {"type": "string", "pattern": "(a+)+$", "maxLength": 3}),
    ({**INT, "title": "new"}, {**INT, "description": "old"}),
    ({"if": INT, "then": {"minimum": 1}}, {"if": INT, "then": {"minimum": 1}}),
    ({"not": {"$ref": "#/definitions/x"}, "definitions": {"x": INT}},) * 2,
]
INCOMPATIBLE = [
    (INT, NUMBER, "does not take number"),
    (INT, {}, "does not take"),
    (False, INT, None),
    (opened(a=INT), opened(), "was added"),
    (closed(a=INT), closed(a=INT, b=TEXT), "was removed"),
    ({**opened(a=INT), "required": ["a"]}, opened(a=INT), "requires a"),
    (closed(), opened(), "takes fewer"),
    (closed(a=INT), closed(a=TEXT), "has changed"),
    ({"type": "string", "maxLength": 4}, {"type": "string", "maxLength": 5}, "lower"),
    ({"type": "string", "minLength": 1}, TEXT, "higher"),
    ({"type": "integer", "exclusiveMinimum": 0}, {"type": "integer", "minimum": 0}, "narrower"),
    ({"type": "integer", "multipleOf": 4}, {"type": "integer", "multipleOf": 6}, "multiple"),
    ({"enum": ["a"]}, {"enum": ["a", "b"]}, "does not surely take"),
    ({"enum": ["a"]}, TEXT, "certain values"),
    ({"type": "array", "items": INT}, {"type": "array", "items": NUMBER}, "fewer elements"),
    ({"type": "array", "uniqueItems": True}, {"type": "array"}, "twice"),
    ({"anyOf": [TEXT, INT]}, {"anyOf": [TEXT, NUMBER]}, None),
    # 1 fits both, so a oneOf takes it no more.
    ({"oneOf": [INT, NUMBER]}, INT, None),
    (linked(INT), linked(NUMBER), None),
    ({"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}, "not shown"),
    # What stands beside a $ref counts in some drafts and not in others.
    (INT, {"$ref": "#/definitions/any", "type": "integer", "definitions": {"any": {}}}, None),
    (
        {"not": {"$ref": "#/definitions/x"}, "definitions": {"x": INT}},
        {"not": {"$ref": "#/definitions/x"}, "definitions": {"x": TEXT}},
        "not shown",
    ),
]


@pytest.mark.parametrize(("reader", "writer"), COMPATIBLE)
def test_what_is_shown_to_be_compatible(reader: object, writer: object) -> None:
    assert differences(reader, writer, other=INT) == []


@pytest.mark.parametrize(("reader", "writer", "why"), INCOMPATIBLE)
def test_what_is_not(reader: object, writer: object, why: str | None) -> None:
    found = differences(reader, writer)
    assert found
    assert why is None or any(why in one for one in found), found


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ([], "an object or true or false"),
        ({"type": "text"}, "a type of JSON"),
        ({"properties": []}, "an object of schemas"),
        ({"properties": {"a": 1}}, "an object or true or false"),
        ({"allOf": []}, "a list of schemas"),
        ({"required": "a"}, "a list of names"),
        ({"minLength": -1}, "a number of things"),
        ({"multipleOf": 0}, "above 0"),
        ({"pattern": None}, "'pattern'"),
        ({"$ref": "#/definitions/none"}, "leads nowhere"),
        ({"$ref": "http://elsewhere/x.json"}, "named as a reference"),
        ({"$ref": "#"}, "circle"),
        ({"anyOf": [{"$ref": "#"}, {"type": "string"}]}, "circle"),
        ({"$schema": "http://elsewhere/"}, "json-schema.org"),
    ],
)
def test_what_is_no_schema(schema: object, why: str) -> None:
    with pytest.raises(InvalidSchema, match=why):
        differences(schema, True)


@pytest.mark.parametrize(
    "text", ["{", "NaN", '{"minimum": 1e999}', "[" * 100_000, '{"a":' * 500 + "1" + "}" * 500]
)
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(InvalidSchema):
        parse_json_schema(text, {}, StepBudget())


def test_a_schema_that_doubles_at_each_step_is_given_up() -> None:
    schema: dict[str, Any] = {"definitions": {"d0": INT}, "$ref": "#/definitions/d40"}
    for n in range(40):
        ref = {"$ref": f"#/definitions/d{n}"}
        schema["definitions"][f"d{n + 1}"] = {"allOf": [ref, ref]}
    with pytest.raises(TooExpensive):
        differences(schema, {"type": "integer", "minimum": 1})


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.sampled_from([0.5, 1.0]),
    st.sampled_from(["", "a", "ab"]),
    st.lists(st.integers(0, 2), max_size=2),
    st.dictionaries(st.sampled_from("ab"), st.sampled_from([0, 1, "a"]), max_size=2),
)
BASE = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["null", "integer", "number", "string", "array", "object", ["integer", "string"]]
        ),
        "minimum": st.integers(0, 2),
        "exclusiveMaximum": st.integers(0, 3),
        "multipleOf": st.integers(1, 2),
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(0, 2),
        "maxItems": st.integers(0, 2),
        "uniqueItems": st.booleans(),
        "required": st.lists(st.sampled_from("ab"), max_size=2, unique=True),
        "maxProperties": st.integers(0, 2),
        "enum": st.lists(VALUES, min_size=1, max_size=2),
    },
)


def nested_schema(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(
            lambda base, parts: {**base, "allOf": parts}, BASE, st.lists(inner, min_size=1, max_size=2)
        ),
        st.builds(
            lambda base, parts: {**base, "anyOf": parts}, BASE, st.lists(inner, min_size=1, max_size=2)
        ),
        st.builds(
            lambda base, parts: {**base, "oneOf": parts}, BASE, st.lists(inner, min_size=1, max_size=2)
        ),
        st.builds(lambda base, one: {**base, "items": one}, BASE, inner),
        st.builds(lambda base, one: {**base, "not": one}, BASE, inner),
        st.builds(
            lambda base, properties, rest: {**base, "properties": properties, "additionalProperties": rest},
            BASE,
            st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            st.one_of(st.booleans(), inner),
        ),
    )


SCHEMA = st.recursive(st.one_of(BASE, st.booleans()), nested_schema, max_leaves=4)


@settings(deadline=None, max_examples=400)
@given(SCHEMA, SCHEMA, st.lists(VALUES, min_size=5, max_size=20))
def test_no_document_is_lost_to_a_compatible_reader(reader: Any, writer: Any, values: list[Any]) -> None:
    """A foreign validator as oracle."""
    if differences(reader, writer):
        return
    of_writer, of_reader = (jsonschema.Draft202012Validator(one) for one in (writer, reader))
    for value in values:
        if of_writer.is_valid(value):
            assert of_reader.is_valid(value), (reader, writer, value)


@settings(deadline=None, max_examples=200)
@given(SCHEMA)
def test_every_schema_is_compatible_with_itself(schema: Any) -> None:
    assert differences(schema, schema) == []
