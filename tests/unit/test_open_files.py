"""A node takes all the file descriptors that the system allows it."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from chronik.open_files import FileBudget, raise_file_limit
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(*raise_file_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE), FileBudget.of_process().limit)
"""


@pytest.mark.parametrize(("soft", "hard", "raised"), [(200, 2000, 2000), (2000, 2000, 2000), (200, 200, 200)])
def test_the_soft_limit_is_raised_to_the_hard_one(soft: int, hard: int, raised: int) -> None:
    command = [sys.executable, "-c", PROGRAM, str(soft), str(hard)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert [int(part) for part in said.split()] == [soft, raised, raised, hard, raised]
