"""Judges schemas beside the event loop when they are expensive: in a process that ends with the question.

Small schemas are judged on the loop, within `INLINE_STEPS_MAX`. Whatever needs more goes to a process with
limits of time and memory, one at a time: a schema of a stranger can then take neither the loop nor the node.
Those who ask the same at once, as all producers of a topic do when they start, share one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import resource
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Final

import msgspec

from chronik.registry.errors import RegistryError, TooExpensive
from chronik.registry.judge import Judgement, SchemaQuestion, judge
from chronik.registry.limits import INLINE_BYTES_MAX, INLINE_STEPS_MAX, StepBudget

__all__ = ["Judging"]

log = logging.getLogger(__name__)

SECONDS_MAX: Final = 10.0
CPU_SECONDS_MAX: Final = 8
MEMORY_BYTES_MAX: Final = 2 * 1024 * 1024 * 1024
ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
WAITING_MAX: Final = 16
"""Different questions that wait for their turn."""
KNOWN_BYTES_MAX: Final = 4 * 1024 * 1024
"""Verdicts that are remembered: the same question has the same one."""
NICENESS: Final = 10


class Judging:
    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)
        self._asked: dict[bytes, _Question] = {}
        self._known: OrderedDict[bytes, Judgement] = OrderedDict()
        self._known_bytes = 0
        self.processes = 0
        """Questions that were too expensive for the loop."""

    async def judge(self, question: SchemaQuestion) -> Judgement:
        """RegistryError if it takes too long, or too many others wait."""
        if question.size_bytes <= INLINE_BYTES_MAX:
            try:
                return judge(question, StepBudget(INLINE_STEPS_MAX))
            except TooExpensive:
                pass
        # Not kept while it waits: it may be 8 MiB, of texts that all waiting questions share.
        key = hashlib.sha256(msgspec.msgpack.encode(question)).digest()
        if (verdict := self._known.get(key)) is not None:
            self._known.move_to_end(key)
            return verdict
        asked = self._asked.get(key)
        if asked is None:
            if len(self._asked) >= WAITING_MAX:
                raise RegistryError(50302, "Too many large schemas are being checked; try again later.")
            asked = self._asked[key] = _Question()
        asked.waiting += 1
        try:
            async with self._turn:
                return await self._answer(key, question, asked)
        finally:
            asked.waiting -= 1
            if not asked.waiting:
                del self._asked[key]

    async def _answer(self, key: bytes, question: SchemaQuestion, asked: _Question) -> Judgement:
        """What somebody who asked the same was told meanwhile; else what a process says."""
        if asked.refusal:
            raise RegistryError(42201, asked.refusal)
        verdict = self._known.get(key)
        if verdict is None:
            self.processes += 1
            try:
                verdict = await _ask(question)
            except RegistryError as error:
                asked.refusal = error.message
                raise
            self._remember(key, verdict)
        return verdict

    def _remember(self, key: bytes, verdict: Judgement) -> None:
        self._known[key] = verdict
        self._known_bytes += verdict.size_bytes
        while self._known_bytes > KNOWN_BYTES_MAX:
            _, forgotten = self._known.popitem(last=False)
            self._known_bytes -= forgotten.size_bytes


class _Question:
    """A question that waits for its turn."""

    __slots__ = ("refusal", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.refusal = ""
        """Why there is no verdict: those who wait for the same one do not try again."""


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


def confine() -> None:
    """The node goes first: when processors are short, and when memory is and the kernel has to choose."""
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """The process: one question on stdin, its verdict on stdout."""
    confine()
    question = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=SchemaQuestion)
    try:
        verdict = judge(question, StepBudget())
    except TooExpensive as error:
        verdict = Judgement(invalid=str(error))
    sys.stdout.buffer.write(msgspec.msgpack.encode(verdict))


if __name__ == "__main__":
    main()
