"""Records of `_schemas`: keys and values in JSON, as Confluent's registry writes and reads them.

The order of a key's fields matters: compaction compares bytes.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from chronik.model import Int32

__all__ = [
    "CONTEXTS",
    "KeyType",
    "Record",
    "Reference",
    "SchemaValue",
    "decode",
    "id_alone",
    "key_of",
    "schema_record",
]

Record: TypeAlias = tuple[bytes, bytes | None]


class KeyType:
    SCHEMA: Final = "SCHEMA"
    CONFIG: Final = "CONFIG"
    MODE: Final = "MODE"
    DELETE_SUBJECT: Final = "DELETE_SUBJECT"
    NOOP: Final = "NOOP"


class Reference(msgspec.Struct, frozen=True):
    name: str
    subject: str
    version: Int32


class SchemaValue(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One version of a subject."""

    subject: str
    version: int
    id: int
    schema_type: str = "AVRO"
    references: tuple[Reference, ...] = ()
    schema: str
    deleted: bool = False

    @property
    def body(self) -> tuple[str, str, tuple[Reference, ...]]:
        """What makes two schemas the same."""
        return self.schema_type, self.schema, self.references


class _Key(msgspec.Struct, frozen=True):
    keytype: str
    subject: str | None = None
    version: int = 0


class ConfigValue(msgspec.Struct, frozen=True, rename="camel"):
    compatibility_level: str


class ModeValue(msgspec.Struct, frozen=True):
    mode: str


class DeleteSubjectValue(msgspec.Struct, frozen=True):
    subject: str
    version: int


class NoopValue(msgspec.Struct, frozen=True, rename="camel"):
    """Confluent's registry does not look at the value of a NOOP. This one keeps the highest id there that a
    schema deleted for good had."""

    last_id: int = 0


class Decoded(NamedTuple):
    keytype: str
    subject: str | None
    version: int
    value: Any
    """None if the record is a tombstone."""


_VALUES: Final[dict[str, Any]] = {
    KeyType.SCHEMA: msgspec.json.Decoder(SchemaValue),
    KeyType.CONFIG: msgspec.json.Decoder(ConfigValue),
    KeyType.MODE: msgspec.json.Decoder(ModeValue),
    KeyType.DELETE_SUBJECT: msgspec.json.Decoder(DeleteSubjectValue),
    KeyType.NOOP: msgspec.json.Decoder(NoopValue),
}
CONTEXTS: Final = (":.", ":*:")
"""How subjects of a context begin, which this registry does not have. Each context has ids of its own."""
_KEY: Final = msgspec.json.Decoder(_Key)


def key_of(keytype: str, subject: str | None = None, version: int = 0) -> bytes:
    fields: dict[str, Any] = {"keytype": keytype}
    if keytype != KeyType.NOOP:
        fields["subject"] = subject
    if keytype == KeyType.SCHEMA:
        fields["version"] = version
    return msgspec.json.encode({**fields, "magic": 1 if keytype == KeyType.SCHEMA else 0})


def schema_record(value: SchemaValue) -> Record:
    body = msgspec.json.encode({**msgspec.to_builtins(value), "deleted": value.deleted})
    return key_of(KeyType.SCHEMA, value.subject, value.version), body


class _Id(msgspec.Struct, frozen=True):
    id: int


def id_alone(value: bytes | None) -> int:
    """The id in a schema's record that is not understood: it is taken all the same. 0 if there is none."""
    try:
        return msgspec.json.decode(value or b"", type=_Id).id
    except (msgspec.DecodeError, ValueError):
        return 0


def decode(key: bytes, value: bytes | None) -> Decoded | None:
    """The record's value; None for a kind of record that this registry does not keep. ValueError if it cannot
    be read."""
    found = _KEY.decode(key)
    decoder = _VALUES.get(found.keytype)
    if decoder is None or (found.subject or "").startswith(CONTEXTS):
        return None
    return Decoded(
        found.keytype, found.subject, found.version, None if value is None else decoder.decode(value)
    )
