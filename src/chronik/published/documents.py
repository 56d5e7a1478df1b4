"""What a search index holds: its fields, the document of a record, and the manifest of a published one."""

from __future__ import annotations

import contextlib
from binascii import b2a_base64
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
_KEY: Final = b'"_has_key":1,"_key":%b,'


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
    """Numbers that every record has another of are columns alone: an inverted index of them is expensive."""
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
        self._add_json = writer.add_json
        self._decode = msgspec.json.Decoder(dict[str, Any]).decode
        self._paths = paths

    def add_rows(self, partition: int, rows: Iterable[Row]) -> int:
        """Returns how many could not be added.

        Most values are JSON objects with paths that are known: such a document is one piece of JSON.

        Calls cost more than what they do here, so this is one function and one call to tantivy for each.
        """
        add, decode, cover = self._add_json, self._decode, self._paths.cover
        left_out = 0
        form = b'{"_partition":%d,"_offset":%%d,"_timestamp":%%d,%%b"_value":"%%b","json":%%b}' % partition
        for offset, timestamp_ms, key, value, _ in rows:
            try:
                if value and len(value) <= TEXT_BYTES_MAX and cover(value, decode(value)):
                    of_key = b"" if key is None else _KEY % msgspec.json.encode(_key(key))
                    kept = b2a_base64(value, newline=False)
                    add((form % (offset, timestamp_ms, of_key, kept, value)).decode())
                    continue
            except (msgspec.DecodeError, ValueError, RecursionError):  # no object, or a stranger one
                pass
            try:
                self._add_part_by_part(partition, offset, timestamp_ms, key, value)
            except (ValueError, OverflowError, TypeError):
                left_out += 1
        return left_out

    def _add_part_by_part(
        self, partition: int, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None
    ) -> None:
        document = self._new()
        document.add_unsigned("_partition", partition)
        document.add_unsigned("_offset", offset)
        document.add_integer("_timestamp", timestamp_ms)
        if key is not None:
            document.add_unsigned("_has_key", 1)
            document.add_text("_key", _key(key))
        if value and (text := _text(value)) is not None:
            document.add_bytes("_value", value[:TEXT_BYTES_MAX])
            document.add_text("_text", text)
            with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError):
                if len(value) <= TEXT_BYTES_MAX and self._decode(value) is not None:
                    document.add_json("json", text)
        self._add(document)

    def add(
        self, key: bytes | None, value: bytes | None, partition: int, offset: int, timestamp_ms: int
    ) -> None:
        self.add_rows(partition, ((offset, timestamp_ms, key, value, ()),))


def _key(key: bytes) -> str:
    return key[:KEY_BYTES_MAX].decode("utf-8", "replace")


def _text(value: bytes) -> str | None:
    try:
        if len(value) <= TEXT_BYTES_MAX:
            return value.decode()
        return value[:TEXT_BYTES_MAX].decode("utf-8", "ignore")
    except UnicodeDecodeError:
        return None
