"""What a search index holds: its fields, the document of a record, and the manifest of a published one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from chronik.published.paths import Paths
from chronik.records.reader import Row

if TYPE_CHECKING:
    import tantivy

__all__ = ["CURRENT", "FORMAT", "FORMAT_FILE", "Documents", "Manifest", "index_schema", "read_manifest"]

FORMAT: Final = "2"
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
    """Numbers that every record has another of are columns alone: an inverted index of them is dear."""
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("_partition", stored=True, indexed=True, fast=True)
    builder.add_unsigned_field("_offset", stored=True, fast=True)
    builder.add_integer_field("_timestamp", stored=True, fast=True)
    builder.add_unsigned_field("_has_key", indexed=True)
    builder.add_text_field("_key", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_bytes_field("_value", stored=True)
    builder.add_text_field("_text")
    builder.add_json_field("json", fast=True, expand_dots_enabled=True)
    return builder.build()


class Documents:
    """Makes documents of records and gives them to a writer."""

    def __init__(self, writer: tantivy.IndexWriter, paths: Paths) -> None:
        import tantivy

        self._new = tantivy.Document
        self._add = writer.add_document
        self._decode = msgspec.json.Decoder(dict[str, Any]).decode
        self._paths = paths

    def add_rows(self, partition: int, rows: Iterable[Row]) -> None:
        """Calls cost more than what they do here, so most documents are made in this one function."""
        new, add, decode, cover = self._new, self._add, self._decode, self._paths.cover
        for offset, timestamp_ms, key, value, _ in rows:
            document = new()
            document.add_unsigned("_partition", partition)
            document.add_unsigned("_offset", offset)
            document.add_integer("_timestamp", timestamp_ms)
            if key is not None:
                document.add_unsigned("_has_key", 1)
                document.add_text("_key", key[:KEY_BYTES_MAX].decode("utf-8", "replace"))
            if value and (text := _text(value)) is not None:
                document.add_bytes("_value", value[:TEXT_BYTES_MAX])
                try:
                    fields = decode(value) if len(value) <= TEXT_BYTES_MAX else None
                    if fields is not None:
                        document.add_json("json", text)
                    is_covered = fields is not None and cover(value, fields)
                except (msgspec.DecodeError, ValueError, RecursionError):  # no object, or a stranger one
                    is_covered = False
                if not is_covered:
                    document.add_text("_text", text)
            add(document)

    def add(
        self, key: bytes | None, value: bytes | None, partition: int, offset: int, timestamp_ms: int
    ) -> None:
        self.add_rows(partition, ((offset, timestamp_ms, key, value, ()),))


def _text(value: bytes) -> str | None:
    try:
        if len(value) <= TEXT_BYTES_MAX:
            return value.decode()
        return value[:TEXT_BYTES_MAX].decode("utf-8", "ignore")
    except UnicodeDecodeError:
        return None
