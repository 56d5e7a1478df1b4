"""Whether a reader's protobuf schema can read what a writer's wrote: by field numbers and wire types.

Names of fields do not count on the wire. Messages are found by name, without the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import descriptor_pb2

from chronik.registry.limits import MESSAGES_MAX, StepBudget

__all__ = ["proto_differences"]

_Field: Final = descriptor_pb2.FieldDescriptorProto
_GROUPS: Final[dict[Any, str]] = {
    **dict.fromkeys(
        (
            *(_Field.TYPE_INT32, _Field.TYPE_UINT32, _Field.TYPE_INT64, _Field.TYPE_UINT64),
            *(_Field.TYPE_BOOL, _Field.TYPE_ENUM),
        ),
        "varint",
    ),
    **dict.fromkeys((_Field.TYPE_SINT32, _Field.TYPE_SINT64), "zigzag"),
    **dict.fromkeys((_Field.TYPE_FIXED32, _Field.TYPE_SFIXED32), "fixed32"),
    **dict.fromkeys((_Field.TYPE_FIXED64, _Field.TYPE_SFIXED64), "fixed64"),
    **dict.fromkeys((_Field.TYPE_STRING, _Field.TYPE_BYTES), "text"),
    _Field.TYPE_FLOAT: "float",
    _Field.TYPE_DOUBLE: "double",
    _Field.TYPE_MESSAGE: "message",
}
"""Types in one group read each other's bytes."""
_LENGTHY: Final = ("text", "message")
"""Groups of types: if several values of one come where one value is expected, the last one is read."""


def proto_differences(reader: Any, writer: Any, budget: StepBudget) -> list[str]:
    """Why the reader cannot read all that the writer may write; empty if it can."""
    return list(_ProtoComparison(reader, writer, budget).differences())[:MESSAGES_MAX]


class _ProtoComparison:
    def __init__(self, reader: Any, writer: Any, budget: StepBudget) -> None:
        self._budget = budget
        self._new = dict(_messages(reader, budget))
        self._old = dict(_messages(writer, budget))
        self._new_prefix = f".{reader.package}." if reader.package else "."
        self._old_prefix = f".{writer.package}." if writer.package else "."

    def differences(self) -> Iterator[str]:
        for name, old in self._old.items():
            new = self._new.get(name)
            if old.options.map_entry:
                continue  # compared with the field that it belongs to
            if new is None:
                yield f"{name}: the reader has no such message"
            else:
                yield from self._fields(name, new, old)

    def _fields(self, name: str, new: Any, old: Any) -> Iterator[str]:
        written = {field.number: field for field in old.field}
        for field in new.field:
            self._budget.step()
            before = written.get(field.number)
            if before is None:
                if field.label == _Field.LABEL_REQUIRED:
                    yield f"{name}.{field.name}: the reader requires it and the writer lacks it"
                continue
            if field.label == _Field.LABEL_REQUIRED != before.label:
                yield f"{name}.{field.name}: the reader requires it and the writer does not"
            why = self._field(name, field, before)
            if why is not None:
                yield f"{name}.{field.name}: field {field.number} {why}"
        for place, oneof in enumerate(new.oneof_decl):
            of_old = [
                _oneof(written[field.number])
                for field in new.field
                if _oneof(field) == place and field.number in written
            ]
            if len(of_old) > 1 and (None in of_old or len(set(of_old)) > 1):
                yield f"{name}.{oneof.name}: the writer may set several of its fields at once"

    def _field(self, name: str, new: Any, old: Any) -> str | None:
        kind, was = _GROUPS.get(new.type, ""), _GROUPS.get(old.type, "")
        if kind != was:
            return f"was {_shown(old)} and is {_shown(new)}"
        if kind == "message" and (why := self._message(name, new, old)) is not None:
            return why
        repeated = (new.label == _Field.LABEL_REPEATED, old.label == _Field.LABEL_REPEATED)
        if repeated[0] != repeated[1] and kind not in _LENGTHY:
            return "is repeated and was not" if repeated[0] else "was repeated and is not"
        return None

    def _message(self, name: str, new: Any, old: Any) -> str | None:
        entry, was = (
            self._entry(self._new, self._new_prefix, new),
            self._entry(self._old, self._old_prefix, old),
        )
        if (entry is None) != (was is None):
            return "was a map and is none" if entry is None else "is a map and was none"
        if entry is not None and was is not None:
            for place, part in enumerate(("keys", "values")):
                why = self._field(name, entry.field[place], was.field[place])
                if why is not None:
                    return f"has other {part}: each {why}"
            return None
        one = new.type_name.removeprefix(self._new_prefix)
        other = old.type_name.removeprefix(self._old_prefix)
        return None if one == other else f"was {other} and is {one}"

    @staticmethod
    def _entry(messages: dict[str, Any], prefix: str, field: Any) -> Any:
        found = messages.get(field.type_name.removeprefix(prefix))
        return found if found is not None and found.options.map_entry else None


def _messages(file: Any, budget: StepBudget) -> Iterator[tuple[str, Any]]:
    waiting = [(message.name, message) for message in reversed(file.message_type)]
    while waiting:
        budget.step()
        name, message = waiting.pop()
        yield name, message
        waiting += [(f"{name}.{inner.name}", inner) for inner in reversed(message.nested_type)]


def _oneof(field: Any) -> int | None:
    return field.oneof_index if field.HasField("oneof_index") and not field.proto3_optional else None


def _shown(field: Any) -> str:
    return str(field.type_name or _Field.Type.Name(field.type).removeprefix("TYPE_").lower())
