"""Protobuf schemas: as text or as a descriptor in base64, checked by protobuf's own library.

Both ways become one descriptor, in which every type is found, and its text is the canonical one. The types of
`google/protobuf/*.proto` are there without being named as references.
"""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError

from chronik.registry.errors import InvalidSchema
from chronik.registry.limits import StepBudget
from chronik.registry.proto_parse import parse_proto
from chronik.registry.proto_print import print_proto

__all__ = ["parse_protobuf", "serialized"]

_OWN: Final = "default"
"""Name of the file: a schema has none of its own."""
_BUILT_IN: Final = ("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct")
_BUILT_IN_TOO: Final = ("timestamp", "type", "wrappers")
BYTES_PER_STEP: Final = 20
"""What protobuf's library does with a descriptor is cheap; it counts all the same."""


def parse_protobuf(
    text: str, references: Mapping[str, str], budget: StepBudget, *, normalize: bool = False
) -> tuple[Any, str]:
    """The descriptor and its canonical text. `references` are texts of other schemas by the names that
    `import` uses, each after those it needs."""
    pool = descriptor_pool.DescriptorPool()
    for name, reference in references.items():
        _add(pool, _read(reference, budget), name, budget)
    found = _add(pool, _read(text, budget), _OWN, budget)
    canonical = print_proto(found, short_names=True, by_number=normalize)
    if not _says_the_same(canonical, found, references, budget):
        canonical = print_proto(found, short_names=False, by_number=normalize)
        if not _says_the_same(canonical, found, references, budget):
            raise InvalidSchema("The schema has something that cannot be written as a .proto file.")
    return found, canonical


def serialized(text: str, references: Mapping[str, str], budget: StepBudget) -> str:
    """The descriptor of a schema in base64."""
    found, _ = parse_protobuf(text, references, budget)
    return base64.b64encode(found.SerializeToString(deterministic=True)).decode()


def _read(text: str, budget: StepBudget) -> Any:
    budget.step(1 + len(text) // BYTES_PER_STEP)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return parse_proto(text, budget)
    file = descriptor_pb2.FileDescriptorProto()
    try:
        file.ParseFromString(data)
    except DecodeError:
        raise InvalidSchema("The schema is neither a .proto file nor a descriptor in base64.") from None
    if file.syntax == "editions":
        raise InvalidSchema("Editions of protobuf are not supported: use proto2 or proto3.")
    file.DiscardUnknownFields()
    file.ClearField("source_code_info")
    return file


def _add(pool: Any, file: Any, name: str, budget: StepBudget) -> Any:
    """The file with every type found; InvalidSchema if one is missing or anything else is wrong."""
    file.name = name
    if not (file.message_type or file.enum_type or file.service or file.extension):
        raise InvalidSchema("The schema defines no type.")
    for needed in file.dependency:
        budget.step()
        _add_built_in(pool, needed)
    try:
        pool.Add(file)
        found = pool.FindFileByName(name)
    except (TypeError, KeyError, ValueError) as error:
        why = str(error).rpartition("descriptor pool: ")[2].strip("' ")
        raise InvalidSchema(f"The schema is not valid: {why[:500]}.") from None
    resolved = descriptor_pb2.FileDescriptorProto()
    found.CopyToProto(resolved)
    return resolved


def _add_built_in(pool: Any, name: str) -> None:
    short = name.removeprefix("google/protobuf/").removesuffix(".proto")
    if name != f"google/protobuf/{short}.proto" or short not in (*_BUILT_IN, *_BUILT_IN_TOO):
        return
    try:
        pool.FindFileByName(name)
    except KeyError:
        descriptor = importlib.import_module(f"google.protobuf.{short}_pb2").DESCRIPTOR
        for needed in descriptor.dependencies:
            _add_built_in(pool, needed.name)
        pool.AddSerializedFile(descriptor.serialized_pb)


def _says_the_same(text: str, file: Any, references: Mapping[str, str], budget: StepBudget) -> bool:
    """Whether a printed text is read as the descriptor that it was printed from."""
    pool = descriptor_pool.DescriptorPool()
    for name, reference in references.items():
        _add(pool, _read(reference, budget), name, budget)
    try:
        again = _add(pool, parse_proto(text, budget), _OWN, budget)
    except InvalidSchema:
        return False
    return bool(_plain(again) == _plain(file))


def _plain(file: Any) -> str:
    """A descriptor but for order and what has a default: as the text that it is printed as in full."""
    return print_proto(file, short_names=False, by_number=True)
