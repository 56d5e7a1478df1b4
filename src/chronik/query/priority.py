"""A process that works beside a broker gives way to it: at once, and for as long as the broker has work."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from pathlib import Path
from typing import Final

NICENESS: Final = 15
"""Niceness. On a core that a broker keeps busy, this process gets about a thirtieth of the time."""
SLICE_SECONDS: Final = 0.1
"""How long it asks to run in one go, the longest that Linux grants. Whoever wakes and asks for less takes the
core at once; with equal slices a broker that wakes waits for the end of this one's, some milliseconds."""

OOM_SCORE: Final = 500
"""Counts like half of the memory there is, in the system's choice of whom to end."""

_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
"""Number of Linux's system call; neither Python nor libc has a name for it."""
_SCHED_ATTR: Final = struct.Struct("=IIQiIQQQ")
"""size, policy (0: the usual one), flags, niceness, priority, slice in ns, deadline, period."""


def give_way() -> None:
    """Lower the priority, and use long time slices where the kernel has them (Linux 6.12). Later threads
    inherit both."""
    if not _ask_for_slice():
        with contextlib.suppress(OSError):
            os.nice(NICENESS)


def be_first_to_go() -> None:
    """Where memory runs out, the system ends this process before the broker, which starts another one."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))


def _ask_for_slice() -> bool:
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return False
    niceness = min(19, os.nice(0) + NICENESS)
    attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, 0, 0, niceness, 0, int(SLICE_SECONDS * 1e9), 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)
