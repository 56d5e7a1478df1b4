"""A backup's manifest that cannot be read is one sentence for a person."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronik.cli.backup_files import MANIFESTS, BackupDirectory, read_manifest
from chronik.cli.client import CommandFailed


@pytest.mark.parametrize("data", [b'{"format": 1, "backup_id": "\xff"}', b"{", b""])
def test_a_manifest_that_is_no_text_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / MANIFESTS).mkdir()
    (tmp_path / MANIFESTS / "20260101T000000.000Z.json").write_bytes(data)
    with pytest.raises(CommandFailed, match="cannot be read"):
        read_manifest(BackupDirectory(tmp_path))
