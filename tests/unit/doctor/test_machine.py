"""What the doctor says about a machine: file system, memory, disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronik.doctor.machine import available_memory, disk_space, file_system


def test_the_file_system_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("a / ext4 rw 0 0\nb /data\\040dir nfs4 rw 0 0\nc /run tmpfs rw 0 0\n")
    assert file_system(Path("/data dir/node"), mounts) == "nfs4"
    assert file_system(Path("/runner"), mounts) == "ext4"
    assert file_system(Path("/run/node"), mounts) == "tmpfs"


def test_memory_is_that_of_the_control_group_if_that_is_less(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 4096 kB\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 4096 * 1024
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 600
    (tmp_path / "memory.stat").write_text("active_file 50\ninactive_file 100\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 700
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 4096 * 1024


def test_memory_limits_of_the_first_version_of_control_groups_count(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 4096 kB\n")
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("1000\n")
    (folder / "memory.usage_in_bytes").write_text("900\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 100
    (folder / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 800\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 900


@pytest.mark.parametrize(
    ("free_gb", "total_gb", "inodes", "state"),
    [
        (50, 100, None, "ok"),
        (15, 100, 10_000, "ok"),
        (14.9, 100, None, "warning"),
        (5, 100, None, "warning"),
        (4.9, 100, None, "wrong"),
        (0.9, 4, None, "wrong"),
        (50, 100, 9_999, "wrong"),
        (0, 0, None, "wrong"),
    ],
)
def test_how_full_a_disk_may_be(free_gb: float, total_gb: float, inodes: int | None, state: str) -> None:
    """Shares are of the whole; less than a gigabyte is too little whatever the share."""
    found = disk_space(int(free_gb * 2**30), int(total_gb * 2**30), inodes)
    assert (found.check, found.state) == ("disk", state)
    assert (found.fix is None) == (state == "ok")
