"""The files of a backup, whose author is not trusted: only its folder is read, and no more than said."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from chronik.cli.backup_files import BackupDirectory, BackupPiece, BackupZip, read_piece
from chronik.cli.client import CommandFailed


def piece(path: str, size: int = 100) -> BackupPiece:
    return BackupPiece(path=path, base_offset=0, next_offset=1, size_bytes=size, crc32c=0)


@pytest.mark.parametrize(
    "path", ["/dev/zero", "../secret", "records/../../secret", "", "records", "a\0b", "pipe"]
)
def test_a_piece_is_a_file_in_the_folder(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_bytes(b"x" * 100)
    folder = tmp_path / "backup"
    (folder / "records").mkdir(parents=True)
    os.mkfifo(folder / "pipe")
    with pytest.raises(CommandFailed, match="is missing"):
        read_piece(BackupDirectory(folder), piece(path))


def test_no_more_is_read_than_the_manifest_says(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)  # a hole
    with pytest.raises(CommandFailed, match="large has more than 100 bytes"):
        read_piece(BackupDirectory(tmp_path), piece("large"))
    (tmp_path / "small").write_bytes(b"x")
    with pytest.raises(CommandFailed, match="small has 1 of"):
        read_piece(BackupDirectory(tmp_path), piece("small", 2**62))
    with zipfile.ZipFile(tmp_path / "packed.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("bomb", bytes(1 << 24))
    assert len(BackupZip(tmp_path / "packed.zip", "r").get("bomb", 100) or b"") == 101


def test_a_damaged_archive_is_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "packed.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("piece", os.urandom(100) + bytes(10_000))
    data = bytearray(path.read_bytes())
    data[45:90] = bytes(45)
    path.write_bytes(data)
    with pytest.raises(CommandFailed):
        read_piece(BackupZip(path, "r"), piece("piece", 10_100))
