"""Whether a reader's Avro schema can read what a writer's wrote: the specification's rules of resolution.

Types may hold themselves, so what is asked is a fixed point: every pair of records is taken to match until a
rule says that it does not, and the rules are asked again until no pair changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from chronik.registry.avro import AvroField, AvroType
from chronik.registry.limits import MESSAGES_MAX, StepBudget

__all__ = ["avro_differences"]

_PROMOTIONS: Final = frozenset(
    {
        ("int", "long"),
        ("int", "float"),
        ("int", "double"),
        ("long", "float"),
        ("long", "double"),
        ("float", "double"),
        ("string", "bytes"),
        ("bytes", "string"),
    }
)
"""Writer's type and the reader's that takes its data."""
_Pair: TypeAlias = tuple[AvroType, AvroType]


def avro_differences(reader: AvroType, writer: AvroType, budget: StepBudget) -> list[str]:
    """Why the reader cannot read all that the writer may write; empty if it can."""
    resolution = _Resolution(budget)
    if resolution.matches(reader, writer):
        return []
    return list(dict.fromkeys(resolution.explain(reader, writer)))[:MESSAGES_MAX]


class _Resolution:
    def __init__(self, budget: StepBudget) -> None:
        self._budget = budget
        self._records: dict[_Pair, bool] = {}

    def matches(self, reader: AvroType, writer: AvroType) -> bool:
        while True:
            known = len(self._records)
            found = self._match(reader, writer)
            changed = False
            for pair, holds in list(self._records.items()):
                if holds and not self._match_records(*pair):
                    self._records[pair] = False
                    changed = True
            if not changed and known == len(self._records):
                return found

    def _match(self, reader: AvroType, writer: AvroType) -> bool:
        self._budget.step()
        if writer.kind == "union":
            return all(self._match(reader, branch) for branch in writer.branches)
        if reader.kind == "union":
            return any(self._match(branch, writer) for branch in reader.branches)
        if reader.kind != writer.kind:
            return (writer.kind, reader.kind) in _PROMOTIONS
        if reader.decimal is not None and writer.decimal is not None and reader.decimal != writer.decimal:
            return False
        match reader.kind:
            case "array" | "map":
                assert reader.inner is not None
                assert writer.inner is not None
                return self._match(reader.inner, writer.inner)
            case "enum":
                return _same_name(reader, writer) and not _unknown_symbols(reader, writer)
            case "fixed":
                return _same_name(reader, writer) and reader.size == writer.size
            case "record":
                return self._records.setdefault((reader, writer), True)
        return True

    def _match_records(self, reader: AvroType, writer: AvroType) -> bool:
        if not _same_name(reader, writer):
            return False
        for field in reader.fields.values():
            self._budget.step()
            written = _written(field, writer)
            if not (field.has_default if written is None else self._match(field.type, written.type)):
                return False
        return True

    def explain(self, reader: AvroType, writer: AvroType) -> Iterator[str]:
        yield from self._explain(reader, writer, "/", set())

    def _explain(self, reader: AvroType, writer: AvroType, path: str, told: set[_Pair]) -> Iterator[str]:
        if self._match(reader, writer) or (reader, writer) in told:
            return
        told.add((reader, writer))
        if writer.kind == "union":
            for place, branch in enumerate(writer.branches):
                yield from self._explain(reader, branch, f"{path}{place}/", told)
        elif reader.kind == "union":
            yield f"{path}: the reader's union has no branch that reads the writer's {writer.label}"
        elif reader.kind != writer.kind:
            yield f"{path}: the reader's {reader.label} does not read the writer's {writer.label}"
        elif reader.decimal != writer.decimal:
            yield f"{path}: decimals differ in precision or scale"
        elif reader.inner is not None and writer.inner is not None:
            yield from self._explain(reader.inner, writer.inner, f"{path}{reader.kind}/", told)
        elif not _same_name(reader, writer):
            yield f"{path}: the reader's name is {reader.name}, the writer's {writer.name}"
        elif reader.kind == "enum":
            missing = ", ".join(sorted(_unknown_symbols(reader, writer))[:5])
            yield f"{path}: the reader's enum {reader.name} lacks symbols and has no default: {missing}"
        elif reader.kind == "fixed":
            yield f"{path}: the reader's {reader.name} has {reader.size} bytes, the writer's {writer.size}"
        else:
            yield from self._explain_fields(reader, writer, path, told)

    def _explain_fields(
        self, reader: AvroType, writer: AvroType, path: str, told: set[_Pair]
    ) -> Iterator[str]:
        for field in reader.fields.values():
            written = _written(field, writer)
            if written is not None:
                yield from self._explain(field.type, written.type, f"{path}{field.name}/", told)
            elif not field.has_default:
                yield f"{path}{field.name}: the reader's field has no default and the writer lacks it"


def _same_name(reader: AvroType, writer: AvroType) -> bool:
    return reader.simple_name == writer.simple_name or writer.name in reader.aliases


def _unknown_symbols(reader: AvroType, writer: AvroType) -> frozenset[str]:
    return frozenset() if reader.default is not None else writer.symbols - reader.symbols


def _written(field: AvroField, writer: AvroType) -> AvroField | None:
    """The writer's field of this name, or of one that the reader once gave it."""
    found = writer.fields.get(field.name)
    if found is None:
        found = next(
            (writer.fields[alias] for alias in sorted(field.aliases) if alias in writer.fields), None
        )
    return found
