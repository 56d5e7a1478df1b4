"""The files of a backup: pieces of partitions, and a manifest for each backup that names those it needs.

A piece is a row of record batches as they lie in the log. Pieces never change, so the next backup of the same
topics names the old ones again and adds what came since. docs/FORMATS.md has the layout.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol

import msgspec
from crc32c import crc32c

from chronik.cli.client import CommandFailed
from chronik.model import RequestError, TopicPartition, refuse_newer
from chronik.private_files import make_private, open_private
from chronik.records.batch import check_batches

FORMAT: Final = 1
MANIFESTS: Final = "backups"
RECORDS: Final = "records"
MANIFEST_BYTES_MAX: Final = 256 * 1024 * 1024
PIECE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Pieces are written at 8 MiB; one batch, and what came with it, may make one larger."""
_BACKUP_ID: Final = re.compile(r"\d{8}T\d{6}\.\d{3}Z")
_PIECE_PATH: Final = re.compile(RECORDS + r"/[0-9a-f-]{36}/\d{1,10}/\d{20}-\d{20}\.batches")


class BackupPiece(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    base_offset: int
    next_offset: int
    size_bytes: int
    crc32c: int


class PartitionFiles(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    start_offset: int
    end_offset: int
    """The oldest open transaction, or the high watermark: nothing behind it is in the backup."""
    pieces: list[BackupPiece]


class TopicFiles(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    replication_factor: int
    configs: dict[str, str]
    partitions: list[PartitionFiles]


class GroupOffset(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    offset: int
    metadata: str = ""


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    backup_id: str
    created_ms: int
    cluster_id: str | None
    topics: list[TopicFiles]
    groups: dict[str, list[GroupOffset]] = {}
    shape: dict[str, Any] = {}
    """Users, ACLs, quotas and configs, as the node reported them."""

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for _, piece in self.pieces())

    @property
    def offset_count(self) -> int:
        return sum(one.end_offset - one.start_offset for topic in self.topics for one in topic.partitions)

    def pieces(self) -> Iterator[tuple[TopicPartition, BackupPiece]]:
        for topic in self.topics:
            for one in topic.partitions:
                for piece in one.pieces:
                    yield TopicPartition(topic.name, one.partition), piece


class BackupFolder(Protocol):
    """Where a backup lies. Paths are relative, with slashes; what was put is there wholly or not at all.

    Others may have written there too: whoever asks checks names and bytes.
    """

    def put(self, path: str, data: bytes | bytearray) -> None: ...

    def get(self, path: str, size_max: int) -> bytes | None:
        """None if it is not there; CommandFailed if it has more than `size_max` bytes."""
        ...

    def names(self, path: str) -> list[str]: ...


def too_large(path: str, size_max: int) -> CommandFailed:
    return CommandFailed(f"{path} has more than {size_max} bytes")


class BackupDirectory:
    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, path: str, data: bytes | bytearray) -> None:
        target = self._root / path
        make_private(target.parent)
        partial = target.with_name(f"{target.name}.part")
        with open_private(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(target)

    def get(self, path: str, size_max: int) -> bytes | None:
        try:
            with (self._root / path).open("rb") as file:
                data = file.read(size_max + 1)
        except FileNotFoundError:
            return None
        if len(data) > size_max:
            raise too_large(path, size_max)
        return data

    def names(self, path: str) -> list[str]:
        folder = self._root / path
        return sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []


class BackupZip:
    """One file with the same layout, for a single topic."""

    def __init__(self, path: Path, mode: str) -> None:
        try:
            if mode == "w":
                open_private(path, "wb").close()
            self._zip = zipfile.ZipFile(path, "w" if mode == "w" else "r")
        except (OSError, zipfile.BadZipFile) as error:
            raise CommandFailed(f"{path}: {error}") from None

    def close(self) -> None:
        self._zip.close()

    def put(self, path: str, data: bytes | bytearray) -> None:
        self._zip.writestr(path, bytes(data))

    def get(self, path: str, size_max: int) -> bytes | None:
        try:
            with self._zip.open(path) as file:
                data = file.read(size_max + 1)
        except KeyError:
            return None
        except (zipfile.BadZipFile, zlib.error, EOFError):
            return b""
        if len(data) > size_max:
            raise too_large(path, size_max)
        return data

    def names(self, path: str) -> list[str]:
        found = (PurePosixPath(name) for name in self._zip.namelist())
        return sorted(one.name for one in found if str(one.parent) == path)


def manifest_ids(folder: BackupFolder) -> list[str]:
    """Oldest first."""
    ids = (name.removesuffix(".json") for name in folder.names(MANIFESTS) if name.endswith(".json"))
    return [backup_id for backup_id in ids if _BACKUP_ID.fullmatch(backup_id)]


def read_manifest(folder: BackupFolder, backup_id: str | None = None) -> BackupManifest:
    """The newest, or the one that is named."""
    ids = manifest_ids(folder)
    if not ids:
        raise CommandFailed("there is no backup here: `chronik backup create` makes one")
    if backup_id is not None and backup_id not in ids:
        raise CommandFailed(f"there is no backup {backup_id}: `chronik backup list` shows those there are")
    chosen = backup_id or ids[-1]
    data = folder.get(f"{MANIFESTS}/{chosen}.json", MANIFEST_BYTES_MAX) or b""
    try:
        refuse_newer(f"backup {chosen}", msgspec.json.decode(data, type=_Versioned).format, FORMAT)
        manifest = msgspec.json.decode(data, type=BackupManifest)
    except ValueError as error:
        raise CommandFailed(f"backup {chosen} cannot be read: {error}") from None
    if manifest.backup_id != chosen:
        raise CommandFailed(f"backup {chosen} cannot be read: it says that it is another one")
    for tp, piece in manifest.pieces():
        if not _PIECE_PATH.fullmatch(piece.path) or not 0 <= piece.size_bytes <= PIECE_BYTES_MAX:
            raise CommandFailed(f"backup {chosen} cannot be read: it names a file of {tp} that is none")
    return manifest


class _Versioned(msgspec.Struct, frozen=True):
    format: int


def write_manifest(folder: BackupFolder, manifest: BackupManifest) -> None:
    """Write the manifest. The backup counts once this is done."""
    folder.put(f"{MANIFESTS}/{manifest.backup_id}.json", msgspec.json.encode(manifest))


def write_piece(
    folder: BackupFolder, topic_id: str, partition: int, base: int, end: int, data: bytearray
) -> BackupPiece:
    path = f"{RECORDS}/{topic_id}/{partition}/{base:020d}-{end:020d}.batches"
    folder.put(path, data)
    return BackupPiece(
        path=path, base_offset=base, next_offset=end, size_bytes=len(data), crc32c=crc32c(data)
    )


def read_piece(folder: BackupFolder, piece: BackupPiece) -> bytes:
    """The batches of a piece; CommandFailed with the reason if it is not what was written."""
    data = folder.get(piece.path, piece.size_bytes)
    if data is None:
        raise CommandFailed(f"{piece.path} is missing")
    if len(data) != piece.size_bytes:
        raise CommandFailed(f"{piece.path} has {len(data)} bytes, not {piece.size_bytes}")
    if crc32c(data) != piece.crc32c:
        raise CommandFailed(f"{piece.path}: the checksum does not match")
    return data


def problems(folder: BackupFolder, manifest: BackupManifest) -> Iterator[str | None]:
    """For each piece what is wrong with it, or None; then for each partition whether its pieces fit."""
    for _, piece in manifest.pieces():
        try:
            check_batches(read_piece(folder, piece))
            yield None
        except (CommandFailed, RequestError) as error:
            yield str(error)
    for topic in manifest.topics:
        for one in topic.partitions:
            last = 0
            for piece in one.pieces:
                if not last <= piece.base_offset < piece.next_offset <= one.end_offset:
                    yield f"{topic.name}-{one.partition}: {piece.path} does not fit its neighbours"
                last = piece.next_offset
