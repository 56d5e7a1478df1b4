"""How a node's process ends."""

from __future__ import annotations

import subprocess
import sys

BROKEN = """
import asyncio
from chronik.cli.start import loop_factory, on_exception
from chronik.model import violated

async def main():
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(on_exception)
    loop.call_soon(violated, "two leaders in one epoch")
    await asyncio.sleep(30)

with asyncio.Runner(loop_factory=loop_factory()) as runner:
    runner.run(main())
"""


def test_a_broken_invariant_ends_the_process_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BROKEN], env={"PYTHONPATH": "src"}, capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 70
    assert "two leaders in one epoch" in done.stderr
