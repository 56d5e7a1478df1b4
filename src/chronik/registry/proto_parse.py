"""A .proto file, proto2 or proto3, as the descriptor that protobuf's own compiler would make of it.

Types are left as they are named: the descriptor pool finds them. Options that descriptors know are set; the
others are kept uninterpreted. Not taken: editions, groups.
"""

from __future__ import annotations

import math
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FieldDescriptor

from chronik.registry.errors import InvalidSchema
from chronik.registry.limits import DEPTH_MAX, StepBudget
from chronik.registry.proto_tokens import Tokens, quoted

__all__ = ["SCALARS", "parse_proto"]

_Field: Final = descriptor_pb2.FieldDescriptorProto
SCALARS: Final[dict[str, Any]] = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in _Field.Type.items()
    if name not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}
_LABELS: Final[dict[str, Any]] = {
    "optional": _Field.LABEL_OPTIONAL,
    "required": _Field.LABEL_REQUIRED,
    "repeated": _Field.LABEL_REPEATED,
}
NUMBER_MAX: Final = (1 << 29) - 1
_INTEGERS: Final = frozenset(
    {
        *(FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64),
        *(FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64),
    }
)


def parse_proto(source: str, budget: StepBudget) -> Any:
    """A FileDescriptorProto without a name."""
    return _ProtoParser(source, budget).file()


class _ProtoParser:
    def __init__(self, source: str, budget: StepBudget) -> None:
        self._tokens = Tokens(source, budget)
        self._file = descriptor_pb2.FileDescriptorProto()

    @property
    def _is_proto3(self) -> bool:
        return bool(self._file.syntax == "proto3")

    def file(self) -> Any:
        tokens, file = self._tokens, self._file
        if tokens.text == "edition":
            raise InvalidSchema("Editions of protobuf are not supported: use proto2 or proto3.")
        if tokens.take("syntax"):
            tokens.expect("=")
            syntax = tokens.text_string()
            if syntax not in ("proto2", "proto3"):
                raise tokens.error(f"there is no syntax {syntax[:20]!r}")
            file.syntax = syntax
            tokens.expect(";")
        while tokens.kind:
            self._statement()
        return file

    def _statement(self) -> None:
        tokens, file = self._tokens, self._file
        if tokens.take(";"):
            return
        match word := tokens.name():
            case "package":
                file.package = tokens.full_name()
                tokens.expect(";")
            case "import":
                self._import()
            case "option":
                self._option(file.options)
            case "message":
                self._message(file.message_type.add(), 0)
            case "enum":
                self._enum(file.enum_type.add())
            case "service":
                self._service(file.service.add())
            case "extend":
                self._extend(file, file.extension, 0)
            case _:
                raise tokens.error(f"{word[:40]!r} begins nothing")

    def _import(self) -> None:
        tokens, file = self._tokens, self._file
        if tokens.take("public"):
            file.public_dependency.append(len(file.dependency))
        elif tokens.take("weak"):
            file.weak_dependency.append(len(file.dependency))
        file.dependency.append(tokens.text_string())
        tokens.expect(";")

    def _message(self, message: Any, depth: int) -> None:
        tokens = self._tokens
        if depth > DEPTH_MAX // 2:
            raise InvalidSchema(f"Messages nest deeper than {DEPTH_MAX // 2} levels.")
        message.name = tokens.name()
        tokens.expect("{")
        optional: list[Any] = []
        while not tokens.take("}"):
            self._member(message, depth, optional)
        for field in optional:  # proto3's `optional` is a oneof of its own, behind those that have names
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            taken = {one.name for one in (*message.field, *message.oneof_decl)}
            name = f"_{field.name}"
            while name in taken:
                name = f"X{name}"
            message.oneof_decl.add(name=name)

    def _member(self, message: Any, depth: int, optional: list[Any]) -> None:
        tokens = self._tokens
        if tokens.take(";"):
            return
        before = tokens.text
        if tokens.kind == "name" and before in ("message", "enum", "extend", "oneof", "option", "extensions"):
            # All of these may also be names of types.
            tokens.next()
            other = {"option": "(", "extend": "."}.get(before)
            if (
                tokens.kind == "name"
                or tokens.text == other
                or (before, tokens.kind) == ("extensions", "int")
            ):
                self._part(before, message, depth)
                return
            raise tokens.error(f"a type may not be called {before!r} here")
        if before == "reserved":
            tokens.next()
            self._reserved(message, NUMBER_MAX)
            return
        self._field(message, message.field, optional, depth)

    def _part(self, word: str, message: Any, depth: int) -> None:
        match word:
            case "message":
                self._message(message.nested_type.add(), depth + 1)
            case "enum":
                self._enum(message.enum_type.add())
            case "extend":
                self._extend(message, message.extension, depth)
            case "oneof":
                self._oneof(message, depth)
            case "option":
                self._option(message.options)
            case _:
                self._extensions(message)

    def _field(self, message: Any, fields: Any, optional: list[Any] | None, depth: int) -> Any:
        tokens = self._tokens
        if tokens.text == "map" and tokens.kind == "name":
            tokens.next()
            if tokens.take("<"):
                return self._map(message, fields)
            raise tokens.error("a type may not be called 'map' here")
        label = None
        if tokens.text in _LABELS and tokens.kind == "name":
            label = tokens.next()
        if label == "required" and self._is_proto3:
            raise tokens.error("proto3 has no required fields")
        if label is None and not self._is_proto3 and optional is not None:
            raise tokens.error("a field of proto2 begins with optional, required or repeated")
        kind = tokens.full_name()
        if kind == "group":
            raise InvalidSchema("Groups are not supported: use a message.")
        field = fields.add(label=_LABELS[label or "optional"])
        _set_type(field, kind)
        self._rest(field)
        if label == "optional" and self._is_proto3 and optional is not None:
            optional.append(field)
        return field

    def _rest(self, field: Any) -> None:
        """Name, number and options."""
        tokens = self._tokens
        field.name = tokens.name()
        tokens.expect("=")
        number = tokens.number()
        if not 1 <= number <= NUMBER_MAX:
            raise tokens.error(f"no field has the number {number}")
        field.number = number
        if tokens.take("["):
            while True:
                self._field_option(field)
                if not tokens.take(","):
                    break
            tokens.expect("]")
        tokens.expect(";")

    def _field_option(self, field: Any) -> None:
        tokens = self._tokens
        if tokens.text == "default" and tokens.kind == "name":
            tokens.next()
            tokens.expect("=")
            field.default_value = self._default(field)
        elif tokens.text == "json_name" and tokens.kind == "name":
            tokens.next()
            tokens.expect("=")
            field.json_name = tokens.text_string()
        else:
            self._assignment(field.options)

    def _default(self, field: Any) -> str:
        """A default as descriptors have it: text."""
        tokens = self._tokens
        if tokens.kind == "text":
            data = tokens.string()
            if field.type == _Field.TYPE_BYTES:
                return quoted(data)[1:-1]
            try:
                return data.decode()
            except UnicodeDecodeError:
                raise tokens.error("a text is not UTF-8") from None
        sign = "-" if tokens.take("-") else ""
        if tokens.kind == "int" and field.type not in (_Field.TYPE_FLOAT, _Field.TYPE_DOUBLE):
            return f"{sign}{tokens.number()}"
        if tokens.kind not in ("int", "float", "name"):
            raise tokens.error("expected a default")
        return sign + tokens.next()

    def _map(self, message: Any, fields: Any) -> Any:
        tokens = self._tokens
        key = tokens.full_name()
        tokens.expect(",")
        value = tokens.full_name()
        tokens.expect(">")
        field = fields.add(label=_Field.LABEL_REPEATED, type=_Field.TYPE_MESSAGE)
        self._rest(field)
        name = "".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Entry"
        field.type_name = name
        entry = message.nested_type.add(name=name)
        entry.options.map_entry = True
        for number, (part, kind) in enumerate((("key", key), ("value", value)), 1):
            inner = entry.field.add(name=part, number=number, label=_Field.LABEL_OPTIONAL)
            _set_type(inner, kind)
        return field

    def _oneof(self, message: Any, depth: int) -> None:
        tokens = self._tokens
        place = len(message.oneof_decl)
        oneof = message.oneof_decl.add(name=tokens.name())
        tokens.expect("{")
        while not tokens.take("}"):
            if tokens.take(";"):
                continue
            if tokens.text == "option":
                tokens.next()
                self._option(oneof.options)
                continue
            field = self._field(message, message.field, None, depth)
            if field.label == _Field.LABEL_REPEATED:
                raise tokens.error("a oneof has no repeated fields")
            field.oneof_index = place

    def _extend(self, scope: Any, fields: Any, depth: int) -> None:
        tokens = self._tokens
        extendee = tokens.full_name()
        tokens.expect("{")
        while not tokens.take("}"):
            if not tokens.take(";"):
                field = self._field(scope, fields, None, depth)
                field.extendee = extendee

    def _ranges(self, last: int) -> list[tuple[int, int]]:
        """Both ends are part of each."""
        tokens, found = self._tokens, []
        while True:
            first = end = tokens.number()
            if tokens.take("to"):
                end = last if tokens.take("max") else tokens.number()
            if not -(1 << 31) <= first <= end <= max(last, NUMBER_MAX):
                raise tokens.error("a range is not valid")
            found.append((first, end))
            if not tokens.take(","):
                return found

    def _reserved(self, scope: Any, last: int) -> None:
        tokens = self._tokens
        if tokens.kind == "text":
            scope.reserved_name.append(tokens.text_string())
            while tokens.take(","):
                scope.reserved_name.append(tokens.text_string())
        else:
            past = 1 if last == NUMBER_MAX else 0  # of messages, the end of a range is not part of it
            for first, end in self._ranges(last):
                scope.reserved_range.add(start=first, end=end + past)
        tokens.expect(";")

    def _extensions(self, message: Any) -> None:
        for first, end in self._ranges(NUMBER_MAX):
            message.extension_range.add(start=first, end=end + 1)
        if self._tokens.text == "[":
            raise InvalidSchema("Options of extension ranges are not supported.")
        self._tokens.expect(";")

    def _enum(self, enum: Any) -> None:
        tokens = self._tokens
        enum.name = tokens.name()
        tokens.expect("{")
        while not tokens.take("}"):
            if tokens.take(";"):
                continue
            name = tokens.name()
            if name == "option" and tokens.text != "=":
                self._option(enum.options)
                continue
            if name == "reserved" and tokens.text != "=":
                self._reserved(enum, (1 << 31) - 1)
                continue
            tokens.expect("=")
            number = tokens.number()
            if not -(1 << 31) <= number < 1 << 31:
                raise tokens.error(f"{number} is too large for an enum")
            value = enum.value.add(name=name, number=number)
            if tokens.take("["):
                self._assignment(value.options)
                while tokens.take(","):
                    self._assignment(value.options)
                tokens.expect("]")
            tokens.expect(";")

    def _service(self, service: Any) -> None:
        tokens = self._tokens
        service.name = tokens.name()
        tokens.expect("{")
        while not tokens.take("}"):
            if tokens.take(";"):
                continue
            if tokens.take("option"):
                self._option(service.options)
                continue
            tokens.expect("rpc")
            method = service.method.add(name=tokens.name())
            method.client_streaming, method.input_type = self._side()
            tokens.expect("returns")
            method.server_streaming, method.output_type = self._side()
            if tokens.take("{"):
                while not tokens.take("}"):
                    if not tokens.take(";"):
                        tokens.expect("option")
                        self._option(method.options)
            else:
                tokens.expect(";")

    def _side(self) -> tuple[bool, str]:
        tokens = self._tokens
        tokens.expect("(")
        is_stream = tokens.take("stream") and tokens.text != ")"
        name = "stream" if tokens.text == ")" and not is_stream else tokens.full_name()
        tokens.expect(")")
        return is_stream, name

    # -- options ----------------------------------------------------------------------------------

    def _option(self, options: Any) -> None:
        self._assignment(options)
        self._tokens.expect(";")

    def _assignment(self, options: Any) -> None:
        tokens = self._tokens
        parts: list[tuple[str, bool]] = []
        while True:
            is_extension = tokens.take("(")
            parts.append((tokens.full_name() if is_extension else tokens.name(), is_extension))
            if is_extension:
                tokens.expect(")")
            if not tokens.take("."):
                break
        tokens.expect("=")
        kind = None
        if len(parts) == 1 and not parts[0][1]:
            kind = options.DESCRIPTOR.fields_by_name.get(parts[0][0])
            if kind is None or kind.name == "uninterpreted_option":
                raise tokens.error(f"there is no option {parts[0][0][:40]!r}")
        if kind is not None and kind.message_type is None and not kind.is_repeated:
            self._known(options, kind)
            return
        option = options.uninterpreted_option.add()
        for name, is_extension in parts:
            option.name.add(name_part=name, is_extension=is_extension)
        self._value(option)

    def _known(self, options: Any, kind: Any) -> None:
        tokens = self._tokens
        value: Any
        if kind.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            value = tokens.name()
            if value not in ("true", "false"):
                raise tokens.error(f"{kind.name} is true or false")
            value = value == "true"
        elif kind.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            value = tokens.text_string()
        elif kind.enum_type is not None:
            found = kind.enum_type.values_by_name.get(tokens.name())
            if found is None:
                raise tokens.error(f"{kind.name} has no such value")
            value = found.number
        elif kind.cpp_type in _INTEGERS:
            value = tokens.number()
        else:
            raise tokens.error(f"the option {kind.name} is not supported")
        setattr(options, kind.name, value)

    def _value(self, option: Any) -> None:
        tokens = self._tokens
        if tokens.kind == "text":
            option.string_value = tokens.string()
            return
        if tokens.text == "{":
            option.aggregate_value = self._aggregate()
            return
        negative = tokens.take("-")
        if tokens.kind == "int" and len(tokens.text) < 20:
            number = tokens.number()
            if negative:
                option.negative_int_value = max(-number, -(1 << 63))
            else:
                option.positive_int_value = number
        elif tokens.kind in ("int", "float") or tokens.text in ("inf", "nan"):
            value = float(tokens.next())
            option.double_value = math.copysign(value, -1) if negative else value
        elif tokens.kind == "name" and not negative:
            option.identifier_value = tokens.next()
        else:
            raise tokens.error("expected the value of an option")

    def _aggregate(self) -> str:
        """What stands between braces, as tokens with spaces between them."""
        tokens, depth = self._tokens, 1
        parts: list[str] = []
        tokens.expect("{")
        while True:
            if not tokens.kind:
                raise tokens.error("a brace is not closed")
            if tokens.kind == "sign":
                depth += (tokens.text == "{") - (tokens.text == "}")
            if not depth:
                tokens.next()
                return " ".join(parts)
            parts.append(tokens.next())


def _set_type(field: Any, name: str) -> None:
    if name in SCALARS:
        field.type = SCALARS[name]
    else:
        field.type_name = name
