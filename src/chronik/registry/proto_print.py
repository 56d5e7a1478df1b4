"""A descriptor as a .proto file: the canonical text of a protobuf schema.

Everything has its place: syntax, package, imports, options, then types in their order. Comments are not part
of a descriptor, so they are gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import descriptor_pb2

from chronik.registry.errors import InvalidSchema
from chronik.registry.limits import DEPTH_MAX
from chronik.registry.proto_parse import NUMBER_MAX, SCALARS
from chronik.registry.proto_tokens import quoted

__all__ = ["print_proto"]

_Field: Final = descriptor_pb2.FieldDescriptorProto
_NAMES: Final = {number: name for name, number in SCALARS.items()}
_ENUM_MAX: Final = (1 << 31) - 1


def print_proto(file: Any, *, short_names: bool, by_number: bool = False) -> str:
    """`short_names`: types of the file's own package without the package, which may be ambiguous. `by_number`
    sorts fields by their numbers, imports and options by their names."""
    return "\n".join(_Printer(file, short_names, by_number).file()) + "\n"


class _Printer:
    def __init__(self, file: Any, short_names: bool, by_number: bool) -> None:
        self._file = file
        self._prefix = f".{file.package}." if file.package else "."
        self._short_names = short_names
        self._by_number = by_number

    def file(self) -> Iterator[str]:
        file = self._file
        yield f'syntax = "{file.syntax or "proto2"}";'
        if file.package:
            yield f"package {file.package};"
        imports = [
            f"import {kind}{quoted(name.encode())};"
            for place, name in enumerate(file.dependency)
            for kind in [
                "public "
                if place in file.public_dependency
                else "weak "
                if place in file.weak_dependency
                else ""
            ]
        ]
        yield from self._sorted(imports)
        yield from (f"option {one};" for one in self._options(file.options))
        for message in file.message_type:
            yield from self._message(message, "", 0)
        for enum in file.enum_type:
            yield from self._enum(enum, "")
        yield from self._extensions(file.extension, "")
        for service in file.service:
            yield from self._service(service)

    def _sorted(self, lines: list[str]) -> list[str]:
        return sorted(lines) if self._by_number else lines

    def _message(self, message: Any, indent: str, depth: int) -> Iterator[str]:
        if depth > DEPTH_MAX:
            raise InvalidSchema(f"Messages nest deeper than {DEPTH_MAX} levels.")
        inner = indent + "  "
        yield f"{indent}message {message.name} {{"
        yield from (f"{inner}option {one};" for one in self._options(message.options, ("map_entry",)))
        yield from _reserved(message, inner, 1, NUMBER_MAX)
        for span in message.extension_range:
            yield f"{inner}extensions {_range(span.start, span.end - 1, NUMBER_MAX)};"
        maps = {one.name: one for one in message.nested_type if one.options.map_entry}
        fields = sorted(message.field, key=lambda one: one.number) if self._by_number else message.field
        told: set[int] = set()
        for field in fields:
            if not field.HasField("oneof_index") or field.proto3_optional:
                yield inner + self._field(field, maps)
            elif field.oneof_index not in told:
                told.add(field.oneof_index)
                oneof = message.oneof_decl[field.oneof_index]
                yield f"{inner}oneof {oneof.name} {{"
                yield from (f"{inner}  option {one};" for one in self._options(oneof.options))
                for one in fields:
                    if one.HasField("oneof_index") and one.oneof_index == field.oneof_index:
                        yield f"{inner}  {self._field(one, maps, in_oneof=True)}"
                yield f"{inner}}}"
        for nested in message.nested_type:
            if not nested.options.map_entry:
                yield from self._message(nested, inner, depth + 1)
        for enum in message.enum_type:
            yield from self._enum(enum, inner)
        yield from self._extensions(message.extension, inner)
        yield f"{indent}}}"

    def _field(self, field: Any, maps: dict[str, Any], *, in_oneof: bool = False) -> str:
        entry = maps.get(field.type_name.rpartition(".")[2])
        if field.type == _Field.TYPE_GROUP:
            raise InvalidSchema("Groups are not supported: use a message.")
        if entry is not None and field.label == _Field.LABEL_REPEATED:
            label, kind = "", f"map<{self._type(entry.field[0])}, {self._type(entry.field[1])}>"
        else:
            label, kind = self._label(field, in_oneof), self._type(field)
        options = list(self._options(field.options))
        if field.HasField("default_value"):
            options.insert(0, f"default = {_default(field)}")
        if field.json_name and field.json_name != _json_name(field.name):
            options.append(f"json_name = {quoted(field.json_name.encode())}")
        shown = f" [{', '.join(options)}]" if options else ""
        return f"{label}{kind} {field.name} = {field.number}{shown};"

    def _label(self, field: Any, in_oneof: bool) -> str:
        if field.label == _Field.LABEL_REPEATED:
            return "repeated "
        if field.label == _Field.LABEL_REQUIRED:
            return "required "
        plain = in_oneof or (self._file.syntax == "proto3" and not field.proto3_optional)
        return "" if plain else "optional "

    def _type(self, field: Any) -> str:
        if not field.type_name:
            return _NAMES[field.type]
        name = field.type_name
        if self._short_names and name.startswith(self._prefix):
            return str(name.removeprefix(self._prefix))
        return str(name)

    def _extensions(self, fields: Any, indent: str) -> Iterator[str]:
        for field in fields:
            yield f"{indent}extend {field.extendee} {{"
            yield f"{indent}  {self._field(field, {})}"
            yield f"{indent}}}"

    def _enum(self, enum: Any, indent: str) -> Iterator[str]:
        inner = indent + "  "
        yield f"{indent}enum {enum.name} {{"
        yield from (f"{inner}option {one};" for one in self._options(enum.options))
        yield from _reserved(enum, inner, 0, _ENUM_MAX)
        for value in enum.value:
            options = ", ".join(self._options(value.options))
            yield f"{inner}{value.name} = {value.number}{f' [{options}]' if options else ''};"
        yield f"{indent}}}"

    def _service(self, service: Any) -> Iterator[str]:
        yield f"service {service.name} {{"
        yield from (f"  option {one};" for one in self._options(service.options))
        for method in service.method:
            given = f"{'stream ' * method.client_streaming}{method.input_type}"
            answer = f"{'stream ' * method.server_streaming}{method.output_type}"
            options = list(self._options(method.options))
            yield f"  rpc {method.name} ({given}) returns ({answer})" + (" {" if options else ";")
            yield from (f"    option {one};" for one in options)
            if options:
                yield "  }"
        yield "}"

    def _options(self, options: Any, hidden: tuple[str, ...] = ()) -> Iterator[str]:
        lines = [
            f"{kind.name} = {_known(kind, value)}"
            for kind, value in options.ListFields()
            if kind.message_type is None and not kind.is_repeated and kind.name not in hidden
        ]
        lines += [_uninterpreted(one) for one in options.uninterpreted_option]
        yield from self._sorted(lines)


def _known(kind: Any, value: Any) -> str:
    if kind.enum_type is not None:
        found = kind.enum_type.values_by_number.get(value)
        return str(value) if found is None else str(found.name)
    if isinstance(value, bool):
        return str(value).lower()
    return quoted(value.encode()) if isinstance(value, str) else str(value)


def _uninterpreted(option: Any) -> str:
    parts = [f"({one.name_part})" if one.is_extension else one.name_part for one in option.name]
    if option.HasField("string_value"):
        value = quoted(option.string_value)
    elif option.HasField("aggregate_value"):
        value = f"{{ {option.aggregate_value} }}"
    else:
        values = [value for kind, value in option.ListFields() if kind.name != "name"]
        value = str(values[0]) if values else '""'
    return f"{'.'.join(parts)} = {value}"


def _default(field: Any) -> str:
    if field.type == _Field.TYPE_BYTES:
        return f'"{field.default_value}"'
    if field.type == _Field.TYPE_STRING:
        return quoted(field.default_value.encode())
    return str(field.default_value)


def _reserved(scope: Any, indent: str, past: int, last: int) -> Iterator[str]:
    for span in scope.reserved_range:
        yield f"{indent}reserved {_range(span.start, span.end - past, last)};"
    for name in scope.reserved_name:
        yield f"{indent}reserved {quoted(name.encode())};"


def _range(first: int, end: int, last: int) -> str:
    return str(first) if first == end else f"{first} to {'max' if end >= last else end}"


def _json_name(name: str) -> str:
    """The name that a field has in JSON unless it is told otherwise."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)
