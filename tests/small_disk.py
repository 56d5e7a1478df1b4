"""A file system of a few megabytes, to be filled up. Only root can mount one, so these tests need root."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def mount(folder: Path, size_bytes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"a full disk is tested on a small tmpfs: run as root ({done.stderr.strip()})")


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=True)
