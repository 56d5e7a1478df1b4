"""How a node's process ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

BROKEN = """
import asyncio
from chronik.cli.start import loop_factory, on_exception
from chronik.metadata.levels import refuse_level
from chronik.model import violated

async def main():
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(on_exception)
    loop.call_soon(CALL)
    await asyncio.sleep(30)

with asyncio.Runner(loop_factory=loop_factory()) as runner:
    runner.run(main())
"""


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ('violated, "two leaders in one epoch"', "the node ends: two leaders in one epoch"),
        ("refuse_level, 77", "the node ends: the cluster is at level 77 and this release knows levels 1 to"),
    ],
)
def test_what_must_not_go_on_ends_the_process_at_once(call: str, told: str) -> None:
    command = [sys.executable, "-c", BROKEN.replace("CALL", call)]
    done = subprocess.run(command, env={"PYTHONPATH": "src"}, capture_output=True, text=True, timeout=20)
    assert done.returncode == 70
    assert told in done.stderr
