"""What a search index holds: its fields, the document of a record, and the manifest of a published one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    import tantivy

__all__ = ["CURRENT", "FORMAT", "FORMAT_FILE", "Manifest", "add_document", "index_schema", "read_manifest"]

FORMAT: Final = "1"
FORMAT_FILE: Final = "chronik.format"
CURRENT: Final = "current.json"
TEXT_BYTES_MAX: Final = 256 * 1024
KEY_BYTES_MAX: Final = 1024


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`current.json`: which folder is the index, and how far it goes."""

    format: str
    topic: str
    topic_id: str
    version: int
    path: str
    offsets: dict[str, int]
    documents: int


def read_manifest(root: Path) -> Manifest | None:
    """What is published for a topic, in the topic's own folder."""
    try:
        return msgspec.json.decode((root / CURRENT).read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None


def index_schema() -> tantivy.Schema:
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("_partition", stored=True, indexed=True, fast=True)
    builder.add_unsigned_field("_offset", stored=True, indexed=True, fast=True)
    builder.add_integer_field("_timestamp", stored=True, indexed=True, fast=True)
    builder.add_unsigned_field("_has_key", indexed=True)
    builder.add_text_field("_key", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("_text", stored=True)
    builder.add_json_field("json", fast=True, expand_dots_enabled=True)
    return builder.build()


def add_document(
    writer: tantivy.IndexWriter,
    key: bytes | None,
    value: bytes | None,
    partition: int,
    offset: int,
    timestamp_ms: int,
) -> None:
    fields: dict[str, object] = {
        "_partition": partition,
        "_offset": offset,
        "_timestamp": timestamp_ms,
        "_has_key": int(key is not None),
    }
    if key is not None:
        fields["_key"] = key[:KEY_BYTES_MAX].decode("utf-8", "replace")
    text = _text(value)
    if text is not None:
        fields["_text"] = text
    document = msgspec.json.encode(fields).decode()
    if text is not None and value is not None and len(value) <= TEXT_BYTES_MAX and _is_object(value):
        with contextlib.suppress(ValueError):  # deeper or stranger than tantivy takes: words are found anyway
            writer.add_json(f'{document[:-1]},"json":{text}}}')
            return
    writer.add_json(document)


def _text(value: bytes | None) -> str | None:
    if not value:
        return None
    try:
        cut = len(value) > TEXT_BYTES_MAX
        return value[:TEXT_BYTES_MAX].decode("utf-8", "ignore" if cut else "strict")
    except UnicodeDecodeError:
        return None


def _is_object(value: bytes) -> bool:
    """Exactly one JSON object: it is pasted into a document, so nothing may follow it."""
    if value.lstrip()[:1] != b"{":
        return False
    try:
        msgspec.json.decode(value, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
