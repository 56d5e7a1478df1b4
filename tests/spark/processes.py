"""The processes below this one: Spark's JVM, its Python workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from tests.process import POLL_S


def descendants(root: int | None = None) -> dict[int, str]:
    """Names and command lines by process id."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found: dict[int, str] = {}
    left = list(children.get(root if root is not None else os.getpid(), ()))
    while left:
        pid = left.pop()
        left += children.get(pid, ())
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            found[pid] = f"{name} " + Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return found


def is_worker(line: str) -> bool:
    """A Python worker that runs tasks, or the daemon that forks them."""
    return "daemon pyspark.worker" in line


def memory_bytes(pid: int) -> int:
    """What a process holds; pages that it shares with others count in part, as forked workers share most."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def wait_for(fact: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not fact():
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s for {what}"
        time.sleep(POLL_S)
