"""Judges schemas beside the event loop when they are expensive: in a process that ends with the question.

Small schemas are judged on the loop, within `INLINE_STEPS_MAX`. Whatever needs more goes to a process with
limits of time and memory, one at a time: a schema of a stranger can then take neither the loop nor the node.
Those who ask the same at once, as all producers of a topic do when they start, share one process. Those who
ask different questions take turns, and each has only some of the places: nobody can keep the others waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import resource
import sys
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Protocol

import msgspec

from chronik.registry.errors import RegistryError, TooExpensive
from chronik.registry.judge import Judgement, SchemaQuestion, judge
from chronik.registry.limits import INLINE_BYTES_MAX, INLINE_STEPS_MAX, StepBudget
from chronik.tasks import Tasks

__all__ = ["Judge", "JudgeFor", "Judging"]

log = logging.getLogger(__name__)

SECONDS_MAX: Final = 10.0
CPU_SECONDS_MAX: Final = 8
MEMORY_BYTES_MAX: Final = 2 * 1024 * 1024 * 1024
ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
WAITING_MAX: Final = 16
"""Different questions that wait for their turn."""
WAITING_EACH_MAX: Final = 4
"""Those of them that one asker may have."""
KNOWN_BYTES_MAX: Final = 4 * 1024 * 1024
"""Verdicts that are remembered: the same question has the same one."""
NICENESS: Final = 10


class Judge(Protocol):
    async def judge(self, question: SchemaQuestion) -> Judgement: ...


class JudgeFor:
    """Judges for one call of an asker, and counts what that takes."""

    def __init__(self, judging: Judging, asker: str) -> None:
        self._judging = judging
        self._asker = asker
        self.work_s = 0.0
        """Seconds that processes ran for the call."""

    async def judge(self, question: SchemaQuestion) -> Judgement:
        return await self._judging.judge(question, self._asker, self)


class Judging:
    def __init__(self) -> None:
        self._turns = _Turns()
        self._tasks = Tasks("schema registry")
        self._asked: dict[bytes, _Question] = {}
        self._known: OrderedDict[bytes, Judgement] = OrderedDict()
        self._known_bytes = 0
        self.processes = 0
        """Questions that were too expensive for the loop."""
        self.refused = 0
        """Questions for which there was no place."""

    @property
    def waiting(self) -> int:
        """Different questions that wait, the one that is being judged included."""
        return len(self._asked)

    async def judge(
        self, question: SchemaQuestion, asker: str = "", paying: JudgeFor | None = None
    ) -> Judgement:
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
            self._check_place(asker)
            asked = self._asked[key] = _Question(asker)
        asked.waiting += 1
        try:
            async with self._turns.turn(asker):
                return await self._answer(key, question, asked, paying)
        finally:
            asked.waiting -= 1
            if not asked.waiting:
                del self._asked[key]

    def _check_place(self, asker: str) -> None:
        own = sum(1 for one in self._asked.values() if one.asker == asker)
        if own < WAITING_EACH_MAX and len(self._asked) < WAITING_MAX:
            return
        self.refused += 1
        whose = "your" if own >= WAITING_EACH_MAX else "all"
        raise RegistryError(
            50302, f"Too many large schemas are being checked ({whose} places are taken); try again later."
        )

    async def _answer(
        self, key: bytes, question: SchemaQuestion, asked: _Question, paying: JudgeFor | None
    ) -> Judgement:
        """What somebody who asked the same was told meanwhile; else what a process says."""
        if asked.refusal:
            raise RegistryError(42201, asked.refusal)
        verdict = self._known.get(key)
        if verdict is None:
            self.processes += 1
            began = asyncio.get_running_loop().time()
            try:
                verdict = await _ask(question, self._tasks)
            except RegistryError as error:
                asked.refusal = error.message
                raise
            finally:
                if paying is not None:
                    paying.work_s += asyncio.get_running_loop().time() - began
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

    __slots__ = ("asker", "refusal", "waiting")

    def __init__(self, asker: str) -> None:
        self.asker = asker
        """Who asked first."""
        self.waiting = 0
        self.refusal = ""
        """Why there is no verdict: those who wait for the same one do not try again."""


class _Turns:
    """One at a time; of those who wait, each asker in turn."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By asker, the one whose turn comes next first."""

    @contextlib.asynccontextmanager
    async def turn(self, asker: str) -> AsyncIterator[None]:
        if self._is_taken:
            await self._wait(asker)
        self._is_taken = True
        try:
            yield
        finally:
            self._hand_on()

    async def _wait(self, asker: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(asker, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._hand_on()  # it had just been given the turn
            raise

    def _hand_on(self) -> None:
        """To the next who still waits; the turn stays taken meanwhile, so that nobody comes in between."""
        while self._waiting:
            asker, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[asker] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False


async def _start() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
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


async def _started(tasks: Tasks) -> asyncio.subprocess.Process:
    """asyncio may wait for ever for a process whose start was cancelled, and the turn would never be free.
    So it starts, and is ended then."""
    starting = tasks.spawn(_start(), "starting a process that judges a schema")
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_end)
        raise


def _end(starting: asyncio.Task[asyncio.subprocess.Process]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        with contextlib.suppress(ProcessLookupError):
            starting.result().kill()


async def _ask(question: SchemaQuestion, tasks: Tasks) -> Judgement:
    process = await _started(tasks)
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
