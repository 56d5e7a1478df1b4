"""A process that gives way to the broker, threads that it starts later included."""

from __future__ import annotations

import subprocess
import sys

import pytest

from chronik.query.priority import NICENESS, OOM_SCORE

SHOW = """
import os, threading
from chronik.query import priority
print(os.nice(0))
if {is_old}:
    priority._SCHED_SETATTR = {{}}
priority.give_way()
show = lambda: print(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
thread = threading.Thread(target=show)
show()
thread.start()
"""


@pytest.mark.parametrize("is_old", [False, True], ids=["slices", "a system without slices"])
def test_gives_way(is_old: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOW.format(is_old=is_old)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    before, *after = map(int, done.stdout.split())  # the tests themselves may have been started by `nice`
    assert after == [min(before + NICENESS, 19)] * 2


def test_the_system_ends_it_before_the_broker() -> None:
    shows = "from chronik.query.priority import *; be_first_to_go(); print(*open('/proc/self/oom_score_adj'))"
    done = subprocess.run(
        [sys.executable, "-c", shows], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) == OOM_SCORE
