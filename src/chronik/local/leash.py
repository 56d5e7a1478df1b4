"""Processes that end with who started them, for tests: a test run that is killed leaves no nodes behind."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

__all__ = ["leashed"]

_PROGRAM: Final = """
import ctypes, os, sys
PR_SET_PDEATHSIG, SIGKILL = 1, 9
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def leashed(command: Sequence[str]) -> list[str]:
    """The command in a form in which the system kills it at its starter's end (Linux; elsewhere as it is).

    The starter is a thread, not a process: use it from one that lives as long as the command shall.
    """
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, *command]
