"""The node's side of the child process: starts it when needed, restarts it, passes questions on.

Only bytes on pipes connect the two. A child that dies fails the questions it had; a child that hangs fails
them by their deadlines. Nothing else in the node waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from chronik.config import Settings
from chronik.metadata import events as e
from chronik.metadata.store import MetadataStore
from chronik.metrics import Histogram, clock
from chronik.model import TopicPartition
from chronik.query.messages import (
    Answer,
    Assignment,
    PartitionProgress,
    Progress,
    QueryError,
    Question,
    read_frame,
    write_frame,
)
from chronik.replication.manager import ReplicaManager

__all__ = ["QueryGateway"]

log = logging.getLogger(__name__)

BACKOFF_SECONDS: Final = 0.2
BACKOFF_SECONDS_MAX: Final = 10.0
STEADY_SECONDS: Final = 30.0
STOP_SECONDS: Final = 2.0
WAITING_MAX: Final = 1_000
Message: TypeAlias = Answer | Progress

_RELEVANT: Final = (
    e.TopicCreated,
    e.TopicDeleted,
    e.PartitionAssigned,
    e.LeaderChanged,
    e.ConfigChanged,
    e.Resync,
)


class QueryGateway:
    def __init__(
        self,
        settings: Settings,
        metadata: MetadataStore,
        replicas: ReplicaManager,
        *,
        kafka_port: int,
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._replicas = replicas
        self._kafka_port = kafka_port
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._up = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._next_id = 0
        self._assigned: Assignment | None = None
        self._assign_scheduled = False
        self._closed = False
        self.restarts = 0
        self.progress: dict[TopicPartition, PartitionProgress] = {}
        self.seconds: dict[str, Histogram] = {}

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Follow the metadata; the process itself waits for a reason to exist."""
        self._metadata.bus.listen(self._on_event)
        self._update_assignment()

    async def close(self) -> None:
        self._closed = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        await self._end(self._process)
        self._fail_all("The node is stopping.")

    # --- what to index -----------------------------------------------------------------------------

    def _on_event(self, event: e.Event) -> None:
        if isinstance(event, _RELEVANT) and not self._assign_scheduled and not self._closed:
            self._assign_scheduled = True
            asyncio.get_running_loop().call_soon(self._update_assignment)

    def _update_assignment(self) -> None:
        self._assign_scheduled = False
        if self._settings.disable_realtime_index or self._closed:
            return
        topics: dict[str, tuple[str, list[int]]] = {}
        for partition in self._replicas.all():
            if partition.is_leader and partition.config.searchable:
                topics.setdefault(partition.tp.topic, (str(partition.topic_id), []))[1].append(
                    partition.tp.partition
                )
        for _, numbers in topics.values():
            numbers.sort()
        assignment = Assignment(topics=dict(sorted(topics.items())))
        if assignment == self._assigned or (self._assigned is None and not topics):
            return
        self._assigned = assignment
        kept = {TopicPartition(name, number) for name, (_, ns) in topics.items() for number in ns}
        self.progress = {tp: seen for tp, seen in self.progress.items() if tp in kept}
        if self.is_up:
            self._send(assignment)
        else:
            self._keep()

    # --- questions ---------------------------------------------------------------------------------

    async def ask(self, method: str, body: Any, *, timeout_s: float) -> Any:
        """The child's answer; QueryError with what an HTTP client should be told."""
        began = clock()
        self._keep()
        if len(self._waiting) >= WAITING_MAX:
            raise QueryError(503, "too_busy", "Too many queries are under way.")
        self._next_id += 1
        question = Question(id=self._next_id, method=method, body=body)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
                self._waiting[question.id] = future
                self._send(question)
                answer = await future
        except TimeoutError:
            raise QueryError(504, "timed_out", f"No answer within {timeout_s:g} s.") from None
        finally:
            self._waiting.pop(question.id, None)
        self.seconds.setdefault(method, Histogram()).observe(clock() - began)
        if answer.status != 200:
            raise QueryError(answer.status, answer.code, answer.message)
        return answer.body

    def _send(self, message: Question | Assignment) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            write_frame(process.stdin, message)

    # --- the process -------------------------------------------------------------------------------

    def _keep(self) -> None:
        if self._keeper is None and not self._closed:
            self._keeper = asyncio.get_running_loop().create_task(self._keep_running())

    async def _keep_running(self) -> None:
        backoff = BACKOFF_SECONDS
        loop = asyncio.get_running_loop()
        while not self._closed:
            began = loop.time()
            try:
                await self._run_once()
            except OSError as error:
                log.error("the query process cannot be started: %s", error)
            self._up.clear()
            self.progress.clear()
            self._fail_all("The query process ended; it is started again.")
            self.restarts += 1
            backoff = BACKOFF_SECONDS if loop.time() - began > STEADY_SECONDS else backoff
            code = self._process.returncode if self._process is not None else None
            log.warning("the query process ended (%s); it is started again in %.1f s", code, backoff)
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, BACKOFF_SECONDS_MAX)

    async def _run_once(self) -> None:
        options = {
            "data_dir": str(Path(self._settings.data_dir) / "query"),
            "host": self._settings.reachable_here,
            "port": self._kafka_port,
            "log_level": self._settings.log_level.upper(),
            "sql_memory_bytes": self._settings.sql_memory_bytes_max,
            "sql_rows_max": self._settings.sql_rows_max,
            "sql_seconds_max": self._settings.sql_timeout_ms / 1000,
            "archive_dir": _path(self._settings.archive_dir),
            "realtime_index": not self._settings.disable_realtime_index,
            "published_index_dir": _path(self._settings.published_index_dir),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "chronik.query.child",
            msgspec.json.encode(options).decode(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 20,
        )
        self._process = process
        try:
            if self._assigned is not None:
                self._send(self._assigned)
            self._up.set()
            assert process.stdout is not None
            await self._listen(process.stdout)
            await process.wait()
        finally:
            await asyncio.shield(self._end(process))

    async def _listen(self, stdout: asyncio.StreamReader) -> None:
        decoder = msgspec.msgpack.Decoder(Message)
        while (frame := await read_frame(stdout)) is not None:
            message: Message = decoder.decode(frame)
            if isinstance(message, Progress):
                self.progress = {TopicPartition(one.topic, one.partition): one for one in message.partitions}
            elif (future := self._waiting.get(message.id)) is not None and not future.done():
                future.set_result(message)

    async def _end(self, process: asyncio.subprocess.Process | None) -> None:
        """Close its stdin, which is how it learns that it is over; kill what does not listen."""
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _fail_all(self, why: str) -> None:
        for question_id, future in self._waiting.items():
            if not future.done():
                future.set_result(Answer(id=question_id, status=503, code="unavailable", message=why))

    # --- figures -----------------------------------------------------------------------------------

    def lag(self) -> Mapping[TopicPartition, int]:
        """Committed records that are not indexed yet, per searchable partition led here."""
        out = {}
        for partition in self._replicas.all():
            if partition.is_leader and partition.config.searchable:
                seen = self.progress.get(partition.tp)
                reached = partition.log_start_offset if seen is None else seen.next_offset
                out[partition.tp] = max(0, partition.last_stable_offset - reached)
        return out


def _path(given: Path | None) -> str | None:
    return None if given is None else str(given)
