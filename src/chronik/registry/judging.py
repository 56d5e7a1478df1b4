"""Judges schemas beside the event loop when they are dear: in a process that ends with the question.

Small schemas are judged on the loop, within `INLINE_STEPS_MAX`. Whatever needs more goes to a process with
limits of time and memory, one at a time: a schema of a stranger can then take neither the loop nor the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import sys
from typing import Final

import msgspec

from chronik.registry.errors import RegistryError, TooDear
from chronik.registry.judge import Judgement, SchemaQuestion, judge
from chronik.registry.limits import INLINE_BYTES_MAX, INLINE_STEPS_MAX, StepBudget

__all__ = ["Judging"]

log = logging.getLogger(__name__)

SECONDS_MAX: Final = 10.0
CPU_SECONDS_MAX: Final = 8
MEMORY_BYTES_MAX: Final = 2 * 1024 * 1024 * 1024
ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
WAITING_MAX: Final = 16


class Judging:
    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)
        self._waiting = 0
        self.processes = 0
        """Questions that were too dear for the loop."""

    async def judge(self, question: SchemaQuestion) -> Judgement:
        """RegistryError if it takes too long, or too many others wait."""
        if question.size_bytes <= INLINE_BYTES_MAX:
            try:
                return judge(question, StepBudget(INLINE_STEPS_MAX))
            except TooDear:
                pass
        if self._waiting >= WAITING_MAX:
            raise RegistryError(50302, "Too many large schemas are being checked; try again later.")
        self._waiting += 1
        try:
            async with self._turn:
                self.processes += 1
                return await _ask(question)
        finally:
            self._waiting -= 1


async def _ask(question: SchemaQuestion) -> Judgement:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",  # neither the folder it starts in nor the user's packages are searched for modules
        "-m",
        "chronik.registry.judging",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=ANSWER_BYTES_MAX,
        env={"MALLOC_ARENA_MAX": "2"},
    )
    try:
        async with asyncio.timeout(SECONDS_MAX):
            out, _ = await process.communicate(msgspec.msgpack.encode(question))
        return msgspec.msgpack.decode(out, type=Judgement)
    except (TimeoutError, msgspec.DecodeError, msgspec.ValidationError):
        log.warning("a schema was not judged: the process ended with %s", process.returncode)
        raise RegistryError(42201, "The schema takes too long to parse or to compare.") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def main() -> None:
    """The process: one question on stdin, its verdict on stdout."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    question = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=SchemaQuestion)
    try:
        verdict = judge(question, StepBudget())
    except TooDear as error:
        verdict = Judgement(invalid=str(error))
    sys.stdout.buffer.write(msgspec.msgpack.encode(verdict))


if __name__ == "__main__":
    main()
