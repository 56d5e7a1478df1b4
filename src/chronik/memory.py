"""How much memory a node may take, and what each of its budgets gets of it.

A container or a systemd unit limits the memory of its control group, and the kernel ends a process of it when
the limit is passed. Budgets whose defaults suit a whole machine are therefore fitted into the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chronik.client_state import BYTES_MAX as CLIENT_STATE_BYTES_MAX
from chronik.model import REMOTE_CACHE_BYTES, REMOTE_READ_BYTES_MAX, UNFLUSHED_BYTES_MAX, Limits

__all__ = ["GROUP_FILES", "Budgets", "budgets", "control_group_limit", "group_folders"]

_MIB: Final = 1 << 20
_LIMITS: Final = Limits()
BASE_BYTES: Final = 192 * _MIB
"""The broker itself: interpreter, code, metadata, what the kernel's sockets hold."""
FULL_BYTES_MIN: Final = 1536 * _MIB
"""Below it, broker, search and SQL do not fit together when all are busy."""

GROUP_FILES: Final = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Where control groups of version 2 and 1 are mounted; files of their limit, use and cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    request_bytes: int
    stalled_bytes: int
    unflushed_bytes: int
    client_state_bytes: int
    remote_cache_bytes: int
    remote_index_bytes: int
    """Indexes of segments in the object store."""
    remote_read_bytes: int
    """Reads of the object store that are under way."""
    search_bytes: int
    sql_bytes: int


def budgets(limit: int | None) -> Budgets:
    """The shares of a limit. A limit of 5 GiB or more, or no limit, gives the defaults.

    The floors keep a node working: a request of the largest size must not look stalled (twice 64 MiB), a few
    pieces of 4 MiB must be under way from an object store, and the search process needs half a gibibyte to
    index at all.
    """
    spare = (1 << 62) if limit is None else max(0, limit - BASE_BYTES)

    def part(percent: int, low: int, high: int) -> int:
        return max(low, min(high, spare * percent // 100))

    return Budgets(
        request_bytes=part(8, 64 * _MIB, _LIMITS.request_memory_bytes_max),
        stalled_bytes=part(6, 64 * _MIB, _LIMITS.stalled_memory_bytes_max),
        unflushed_bytes=part(8, 64 * _MIB, UNFLUSHED_BYTES_MAX),
        client_state_bytes=part(12, 64 * _MIB, CLIENT_STATE_BYTES_MAX),
        remote_cache_bytes=part(2, 8 * _MIB, REMOTE_CACHE_BYTES),
        remote_index_bytes=part(2, 8 * _MIB, REMOTE_CACHE_BYTES),
        remote_read_bytes=part(2, 32 * _MIB, REMOTE_READ_BYTES_MAX),
        search_bytes=part(25, 512 * _MIB, 1024 * _MIB),
        sql_bytes=part(21, 64 * _MIB, 1024 * _MIB),
    )


def control_group_limit(
    own: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """The lowest limit of this process's control group and of those above it; None without one."""
    found = [
        limit
        for folder, (_, limit_name, _, _) in group_folders(own, mounted)
        if (limit := read_number(folder / limit_name)) is not None and limit < _NO_LIMIT
    ]
    return min(found, default=None)


_NO_LIMIT: Final = 1 << 60
"""Version 1 says almost 2^63 where there is none."""


def group_folders(own: Path, mounted: Path) -> Iterator[tuple[Path, tuple[str, str, str, str]]]:
    """The folders of the control group and of those above it, with the names of their files.

    In a container the group is often what is mounted, so that its path is not there: then the mount counts.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    paths = {"": "/", "memory": "/"}
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            paths[""] = path
        elif "memory" in controllers.split(","):
            paths["memory"] = path
    for files in GROUP_FILES:
        root = mounted / files[0]
        folder = root / paths[files[0]].lstrip("/")
        while True:
            if folder.is_dir():
                yield folder, files
            if folder == root or root not in folder.parents:
                break
            folder = folder.parent


def read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max" in a control group without a limit
        return None
