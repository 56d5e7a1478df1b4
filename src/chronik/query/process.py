"""The node's side of one child process: starts it when needed, asks it, replaces it when it fails.

Only bytes on pipes connect the two. The child is replaced, and the questions that it had fail, when it dies,
sends bytes that make no sense, falls silent, or goes on with work that was cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from chronik.query.messages import (
    Assignment,
    Broken,
    Cancel,
    ChildHello,
    Credentials,
    Farewell,
    IndexProgress,
    Logs,
    Ping,
    Pong,
    QueryAnswer,
    QueryError,
    Question,
    read_frame,
    write_frame,
)
from chronik.tasks import Tasks

__all__ = ["QueryProcess"]

log = logging.getLogger(__name__)

BACKOFF_SECONDS: Final = 0.2
BACKOFF_SECONDS_MAX: Final = 2.0
STEADY_SECONDS: Final = 30.0
START_SECONDS_MAX: Final = 60.0
PING_SECONDS: Final = 1.0
SILENCE_SECONDS_MAX: Final = 20.0
"""Longest time without a ping answer. Long, since its low priority delays it on a busy machine."""
ASLEEP_PINGS_MAX: Final = 5
"""Unanswered pings after which an idle process counts as hung: it has a ping to read, yet no thread of it
runs, is runnable or waits for a disk."""
STOP_SECONDS: Final = 2.0
WAITING_MAX: Final = 256
ENVIRONMENT: Final = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # other pools reserve memory that counts against the limit
    # DuckDB's allocator must unmap freed memory at once: what it keeps counts against the limit.
    "DUCKDB_JE_MALLOC_CONF": "retain:false,dirty_decay_ms:0,muzzy_decay_ms:0",
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",  # threads started before the confinement would escape it
}
"""All that the child gets: nothing of the node's own, which may hold secrets."""
FromChild: TypeAlias = QueryAnswer | IndexProgress | ChildHello | Pong | Farewell


class QueryProcess:
    def __init__(
        self,
        kind: str,
        options: Callable[[], Mapping[str, Any]],
        *,
        grace_seconds: float,
        silence_cpu_seconds_max: float = SILENCE_SECONDS_MAX,
        on_start: Callable[[], Sequence[Assignment | Credentials | Logs]] = lambda: (),
        on_progress: Callable[[IndexProgress], None] = lambda _: None,
        on_abandoned: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`grace_seconds` is how long work may go on that was cancelled, before the process is replaced.

        `silence_cpu_seconds_max` is how much processor time it may use without a word. A busy machine does
        not shorten it, so it can be shorter than `SILENCE_SECONDS_MAX`.

        `on_abandoned` is called with answers for which nobody waits any more.
        """
        self.kind = kind
        self._options = options
        self._grace_seconds = grace_seconds
        self._silence_cpu_seconds_max = silence_cpu_seconds_max
        self._on_start = on_start
        self._on_progress = on_progress
        self._on_abandoned = on_abandoned
        self._process: asyncio.subprocess.Process | None = None
        self._tasks = Tasks(f"{kind} process")
        self._keeper: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[QueryAnswer]] = {}
        self._cancelled: dict[int, float] = {}
        """Cancelled questions without an answer yet, each with the time when the process is replaced."""
        self._heard_at = 0.0
        self._next_id = self._asking = 0
        self._closed = self._is_replaced = False
        self.restarts = 0
        self.skipped = 0
        """Records that could not be read, counted over all processes there were."""
        self.columns_bytes = 0
        self.columns_dropped = 0
        self._skipped = self._columns_dropped = 0
        self.confinement: Mapping[str, str] = {}
        """What confines the process that runs now, as it says; before the first, what the kernel offers."""

    @property
    def is_up(self) -> bool:
        """Whether it runs, has said so, and answered not long ago."""
        return self._up.is_set() and self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def close(self) -> None:
        self._closed = True
        self._keeper = None
        await self._tasks.close()
        await self._end(self._process)
        self._fail_all("The node is stopping.")

    # --- questions ---------------------------------------------------------------------------------

    async def ask(self, method: str, body: Any, *, timeout_s: float) -> tuple[int, Any]:
        """The question's number and the answer; QueryError with the answer for an HTTP client."""
        self.keep()
        if self._asking >= WAITING_MAX:
            raise QueryError(503, "too_busy", "Too many queries are under way.")
        self._asking += 1
        self._next_id += 1
        question = Question(id=self._next_id, method=method, body=body)
        future: asyncio.Future[QueryAnswer] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
                self._waiting[question.id] = future
                self._put(question)
                answer = await future
        except TimeoutError:
            raise QueryError(504, "timed_out", f"No answer within {timeout_s:g} s.") from None
        finally:
            self._asking -= 1
            if self._waiting.pop(question.id, None) is not None and (not future.done() or future.cancelled()):
                self._cancel(question.id)
        if answer.status != 200:
            raise QueryError(answer.status, answer.code, answer.message)
        return question.id, answer.body

    def replace(self) -> None:
        """Restart the process with other options."""
        self._is_replaced = self._keeper is not None

    def _put(self, question: Question) -> None:
        try:
            self.send(question)
        except (ValueError, OverflowError, RecursionError) as error:
            self._waiting.pop(question.id, None)
            raise QueryError(400, "invalid_body", f"The query cannot be passed on: {error}.") from None

    def _cancel(self, question_id: int) -> None:
        self._cancelled[question_id] = asyncio.get_running_loop().time() + self._grace_seconds
        self.send(Cancel(id=question_id))

    def send(self, message: Question | Assignment | Cancel | Credentials | Logs | Ping) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            write_frame(process.stdin, message)

    # --- the process -------------------------------------------------------------------------------

    def keep(self) -> None:
        if self._keeper is None and not self._closed:
            self._keeper = self._tasks.spawn(self._keep_running(), "keeping it running")

    async def _keep_running(self) -> None:
        backoff = BACKOFF_SECONDS
        loop = asyncio.get_running_loop()
        while not self._closed:
            began = loop.time()
            why = "it ended"
            try:
                await self._run_once()
            except TimeoutError as error:
                why = str(error)
            except OSError as error:
                why = f"it cannot be started: {error}"
            except (Broken, ValueError, RecursionError) as error:
                why = f"it does not make sense: {error}"
            self._up.clear()
            self._on_progress(IndexProgress(partitions=[]))
            self._cancelled.clear()
            self._fail_all("The query process ended; it is started again.")
            self.restarts += 1
            backoff = BACKOFF_SECONDS if loop.time() - began > STEADY_SECONDS else backoff
            code = self._process.returncode if self._process is not None else None
            log.warning(
                "the %s process ended (%s, %s); the next begins in %.1f s", self.kind, code, why, backoff
            )
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, BACKOFF_SECONDS_MAX)

    async def _run_once(self) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",  # neither the folder it starts in nor the user's packages are searched for modules
            "-m",
            "chronik.query.child",
            msgspec.json.encode(self._options()).decode(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 20,
            env=ENVIRONMENT,
        )
        self._process = process
        assert process.stdout is not None
        loop = asyncio.get_running_loop()
        # `_keep_running` hears of their failures: the results are read below.
        listening = loop.create_task(self._listen(process.stdout))
        watching = loop.create_task(self._watch())
        try:
            await asyncio.wait({listening, watching}, return_when=asyncio.FIRST_COMPLETED)
            for task in (listening, watching):
                if task.done():
                    task.result()
        finally:
            self._up.clear()
            for task in (listening, watching):
                task.cancel()
            await asyncio.gather(listening, watching, return_exceptions=True)
            await asyncio.shield(self._end(process))

    async def _listen(self, stdout: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        self._skipped = self._columns_dropped = 0
        decoder = msgspec.msgpack.Decoder(FromChild)
        while (frame := await read_frame(stdout)) is not None:
            message: FromChild = decoder.decode(frame)
            self._heard_at = loop.time()
            match message:
                case ChildHello():
                    self.confinement = message.confinement
                    holds = ", ".join(f"{name}: {how}" for name, how in message.confinement.items())
                    log.info("the %s process is confined: %s", self.kind, holds)
                    for first in self._on_start():
                        self.send(first)
                    self._up.set()
                case IndexProgress():
                    self._on_progress(message)
                case Farewell():
                    self._up.clear()
                case Pong():
                    self.skipped += message.skipped - self._skipped
                    self._skipped = message.skipped
                    self.columns_bytes = message.columns_bytes
                    self.columns_dropped += message.columns_dropped - self._columns_dropped
                    self._columns_dropped = message.columns_dropped
                case QueryAnswer():
                    self._take(message)

    def _take(self, answer: QueryAnswer) -> None:
        self._cancelled.pop(answer.id, None)
        future = self._waiting.get(answer.id)
        if future is not None and not future.done():
            future.set_result(answer)
        else:
            self._on_abandoned(answer.id)

    async def _watch(self) -> None:
        """Raises TimeoutError when the process is silent for too long or does not stop cancelled work."""
        loop = asyncio.get_running_loop()
        last_heard_at, cpu_at_last_word, asleep = -1.0, 0.0, 0
        while True:
            await asyncio.sleep(PING_SECONDS)
            now, cpu = loop.time(), _cpu_seconds(self.pid)
            if self._heard_at != last_heard_at or not self._up.is_set():
                last_heard_at, cpu_at_last_word, asleep = self._heard_at, cpu, 0
            elif (asleep := asleep + 1 if _is_asleep(self.pid) else 0) > ASLEEP_PINGS_MAX:
                raise TimeoutError(f"it did not answer {ASLEEP_PINGS_MAX} pings")
            elif cpu - cpu_at_last_word > self._silence_cpu_seconds_max:
                raise TimeoutError(f"it sent nothing for {cpu - cpu_at_last_word:.1f} s of processor time")
            patience = SILENCE_SECONDS_MAX if self._up.is_set() else START_SECONDS_MAX
            if now - self._heard_at > patience:
                raise TimeoutError(f"it sent nothing for {patience:g} s")
            if self._is_replaced:
                self._is_replaced = False
                raise TimeoutError("its options changed")
            if any(now > at for at in self._cancelled.values()):
                raise TimeoutError(f"it did not stop a cancelled query within {self._grace_seconds:g} s")
            self.send(Ping())

    async def _end(self, process: asyncio.subprocess.Process | None) -> None:
        """Close its stdin, which is how it learns that it is over; kill what does not listen."""
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        # Reads on so that the process is not blocked while it ends. A failure only means that it has ended.
        drained = asyncio.get_running_loop().create_task(_drain(process.stdout))
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        finally:
            drained.cancel()
            await asyncio.gather(drained, return_exceptions=True)

    def _fail_all(self, why: str) -> None:
        for question_id, future in self._waiting.items():
            if not future.done():
                future.set_result(QueryAnswer(id=question_id, status=503, code="unavailable", message=why))


def _cpu_seconds(pid: int | None) -> float:
    """Processor time of all threads of a process; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _is_asleep(pid: int | None) -> bool:
    """Whether no thread of a process runs, waits for a processor or waits for a disk; False where the system
    does not tell."""
    try:
        stats = [(thread / "stat").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False
    return bool(stats) and all(stat.rsplit(")", 1)[1].split()[0] not in "RD" for stat in stats)


async def _drain(stdout: asyncio.StreamReader | None) -> None:
    """A pipe that is full keeps a process from ending, and asyncio from seeing that it has."""
    while stdout is not None and await stdout.read(1 << 16):
        pass
