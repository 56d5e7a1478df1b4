"""Nobody else on the machine can read what a node keeps, whatever the umask and whatever was there before."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from chronik.cli.start import keep_private
from chronik.local import ClusterLayout, FirstPorts
from chronik.private_files import make_private, open_private, tighten


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_what_is_made_is_private_under_any_umask(tmp_path: Path) -> None:
    make_private(tmp_path / "a" / "b")
    open_private(tmp_path / "a" / "b" / "c", "wb").close()
    assert [mode(tmp_path / one) for one in ("a", "a/b", "a/b/c")] == [0o700, 0o700, 0o600]


def test_a_file_that_was_open_to_others_is_closed_to_them_when_written(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("old and long")
    with open_private(secret, "wb") as file:
        file.write(b"new")
    assert (secret.read_text(), mode(secret)) == ("new", 0o600)
    with open_private(secret, "ab") as file:
        file.write(b"er")
    assert secret.read_text() == "newer"


def test_the_file_of_a_cluster_is_private(tmp_path: Path) -> None:
    layout = ClusterLayout.new(tmp_path / "cluster", 1, FirstPorts())
    layout.write()
    layout.path.chmod(0o644)
    layout.write()
    assert (mode(layout.folder), mode(layout.path)) == (0o700, 0o600)


def test_an_old_data_directory_is_tightened_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old = tmp_path / "data"
    (old / "topics" / "orders-0").mkdir(parents=True)
    (old / "topics" / "orders-0" / "0.log").write_text("records")
    (old / "outside").symlink_to("/etc/passwd")
    caplog.set_level("INFO")
    keep_private(old)
    assert "took the rights of others from 4 files and directories" in caplog.text
    assert {mode(path) for path in old.rglob("*.log")} == {0o600}
    assert {mode(path) for path in (old, old / "topics", old / "topics/orders-0")} == {0o700}
    assert tighten(old) == 0
    assert subprocess.check_output(["sh", "-c", "umask"], text=True).strip() == "0077"
