"""Protobuf: .proto files and descriptors, canonical text, compatibility by number (H06)."""

from __future__ import annotations

import base64

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from chronik.registry.errors import InvalidSchema, TooExpensive
from chronik.registry.limits import StepBudget
from chronik.registry.proto_compat import proto_differences
from chronik.registry.protobuf import parse_protobuf, serialized

FULL = """
// A comment.
syntax = "proto3";
package acme.v1;
import public "google/protobuf/timestamp.proto";
import "other.proto";
option java_package = "com.acme";
option (my.option).field = { a: 1 b: "c" };
message User {
  reserved 5, 7 to 9; reserved "old";
  string name = 1 [deprecated = true, (mine).y = -3];
  optional int32 age = 2;
  map<string, Address> addresses = 3;
  oneof kind { string a = 10; Inner b = 11; }
  message Inner { repeated int32 numbers = 1 [packed = false]; User back = 2; }
  google.protobuf.Timestamp at = 12;
  enum Colour { option allow_alias = true; RED = 0; CRIMSON = 0; reserved 4 to max; }
  Colour colour = 13 [json_name = "Colour"];
  acme.v1.Other other = 14;
}
message Address { string street = 1; }
service Users { rpc Get (User) returns (stream .acme.v1.Address) { option deprecated = true; } }
"""
OTHER = 'syntax = "proto3"; package acme.v1; message Other { int32 x = 1; }'
PROTO2 = r"""
message M {
  optional string s = 1 [default = "a\"\n\x41"]; required bytes b = 2 [default = "\001x"];
  optional double d = 3 [default = -inf]; optional bool t = 4 [default = true];
  extensions 100 to max;
}
extend M { optional int32 z = 100; }
extend google.protobuf.FieldOptions { optional string mine = 50001; }
"""


def parsed(text: str, **references: str) -> object:
    return parse_protobuf(text, {f"{name}.proto": one for name, one in references.items()}, StepBudget())[0]


def canonical(text: str, normalize: bool = False, **references: str) -> str:
    known = {f"{name}.proto": one for name, one in references.items()}
    return parse_protobuf(text, known, StepBudget(), normalize=normalize)[1]


def test_a_canonical_text_is_read_as_what_it_was_printed_from() -> None:
    text = canonical(FULL, other=OTHER)
    assert canonical(text, other=OTHER) == text
    assert "map<string, Address> addresses = 3;" in text
    assert "optional int32 age = 2;" in text
    assert "reserved 7 to 9;" in text


def test_a_descriptor_in_base64_is_the_same_schema() -> None:
    text = canonical(FULL, other=OTHER)
    descriptor = serialized(text, {"other.proto": OTHER}, StepBudget())
    assert canonical(descriptor, other=OTHER) == text
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(descriptor))
    assert file.message_type[0].field[2].type_name == ".acme.v1.User.AddressesEntry"


def test_what_protobuf_itself_compiled_is_understood() -> None:
    data = base64.b64encode(timestamp_pb2.DESCRIPTOR.serialized_pb).decode()
    assert "message Timestamp {\n  int64 seconds = 1;\n  int32 nanos = 2;\n}" in canonical(data)


def test_proto2_with_defaults_and_extensions() -> None:
    text = canonical('import "google/protobuf/descriptor.proto";' + PROTO2)
    assert r'string s = 1 [default = "a\"\012A"]' in text
    assert "double d = 3 [default = -inf]" in text
    assert "extensions 100 to max;" in text
    assert canonical(text) == text


def test_names_that_hide_each_other_are_printed_in_full() -> None:
    text = 'syntax = "proto3"; package a; message B { message B { } .a.B outer = 1; B inner = 2; }'
    printed = canonical(text)
    assert ".a.B outer = 1;" in printed
    assert ".a.B.B inner = 2;" in printed


def test_normalized_fields_are_in_the_order_of_their_numbers() -> None:
    one = 'syntax = "proto3"; message M { int32 b = 2; int32 a = 1; }'
    other = 'syntax = "proto3"; message M { int32 a = 1; int32 b = 2; }'
    assert canonical(one) != canonical(other)
    assert canonical(one, normalize=True) == canonical(other, normalize=True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "defines no type"),
        ("hello", "begins nothing"),
        ('syntax = "proto4"; message M { }', "no syntax"),
        ('edition = "2023"; message M { }', "Editions"),
        ("message M { optional Missing x = 1; }", "Missing"),
        ("message M { optional int32 x = 1; optional int32 y = 1; }", "duplicate"),
        ("message M { optional int32 x = 0; }", "number 0"),
        ("message M { int32 x = 1; }", "optional, required or repeated"),
        ('syntax = "proto3"; message M { required int32 x = 1; }', "no required"),
        ("message M { optional group G = 1 { } }", "Groups"),
        ("message M { optional int32 x = 1 [strange = 1]; }", "no option"),
        ("message M", "found ''"),
        ('import "none.proto"; message M { }', "none.proto"),
        ("message M { } message M { }", "duplicate"),
        ('message M { optional string s = "x', "line 1"),
        ("AAAA////", "neither"),
        ("message M {" * 100 + "}" * 100, "nest"),
    ],
)
def test_what_is_no_schema(text: str, why: str) -> None:
    with pytest.raises(InvalidSchema, match=why):
        parsed(text)


def test_steps_are_bounded() -> None:
    fields = "".join(f"int32 f{n} = {n + 1};" for n in range(1000))
    with pytest.raises(TooExpensive):
        parse_protobuf(f'syntax = "proto3"; message M {{ {fields} }}', {}, StepBudget(1000))


def differences(reader: str, writer: str) -> list[str]:
    def of(text: str) -> object:
        return parsed(f'syntax = "proto3"; {text}')

    return proto_differences(of(reader), of(writer), StepBudget())


COMPATIBLE = [
    ("message A { int32 x = 1; int32 y = 2; }", "message A { int32 x = 1; }"),
    ("message A { int32 x = 1; }", "message A { int32 x = 1; int32 y = 2; }"),
    ("message A { int32 renamed = 1; }", "message A { int32 x = 1; }"),
    ("message A { int64 x = 1; }", "message A { uint32 x = 1; }"),
    ("message A { string x = 1; }", "message A { bytes x = 1; }"),
    ("message A { string x = 1; }", "message A { repeated string x = 1; }"),
    ("message A { } message B { }", "message A { }"),
    ("package b; message A { A a = 1; }", "package a; message A { A a = 1; }"),
    ("message A { oneof o { int32 x = 1; int32 y = 2; } }", "message A { int32 x = 1; }"),
    ("message A { map<string, int64> m = 1; }", "message A { map<string, int32> n = 1; }"),
    ("message A { E e = 1; } enum E { Z = 0; }", "message A { int32 e = 1; }"),
    ("message A { optional int32 x = 1; }", "message A { int32 x = 1; }"),
]
INCOMPATIBLE = [
    ("message A { string x = 1; }", "message A { int32 x = 1; }", "was int32 and is string"),
    ("message A { sint32 x = 1; }", "message A { int32 x = 1; }", "is sint32"),
    ("message A { int32 x = 1; }", "message A { repeated int32 x = 1; }", "was repeated"),
    ("message A { }", "message A { } message B { }", "B: the reader has no such message"),
    (
        "message A { B x = 1; } message B { } message C { }",
        "message A { C x = 1; } message B { } message C { }",
        "was C",
    ),
    (
        "message A { oneof o { int32 x = 1; int32 y = 2; } }",
        "message A { int32 x = 1; int32 y = 2; }",
        "several",
    ),
    ("message A { map<string, int32> m = 1; }", "message A { map<string, string> m = 1; }", "other values"),
    ("message A { message I { string x = 1; } }", "message A { message I { int32 x = 1; } }", "A.I.x"),
]


@pytest.mark.parametrize(("reader", "writer"), COMPATIBLE)
def test_what_is_read(reader: str, writer: str) -> None:
    assert differences(reader, writer) == []


@pytest.mark.parametrize(("reader", "writer", "why"), INCOMPATIBLE)
def test_what_is_not_read_and_why(reader: str, writer: str, why: str) -> None:
    assert any(why in one for one in differences(reader, writer)), differences(reader, writer)


def test_a_required_field_that_is_new() -> None:
    new, old = parsed("message A { required int32 x = 1; }"), parsed("message A { optional int32 x = 1; }")
    assert proto_differences(new, old, StepBudget()) == [
        "A.x: the reader requires it and the writer does not"
    ]
    assert proto_differences(new, parsed("message A { }"), StepBudget()) != []
    assert proto_differences(old, new, StepBudget()) == []
