"""The child process: reads questions from stdin, answers on stdout, indexes meanwhile, ends with its node."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import logging
import os
import ssl
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from chronik.client import ClientOptions, Cluster
from chronik.client.login import Login
from chronik.client.options import BrokerAddress
from chronik.columns.private_directory import private_directory
from chronik.model import ChronikError, Limits, RequestError, TopicPartition
from chronik.query.confinement import Confinement, confine
from chronik.query.history import History
from chronik.query.indexer import Indexer
from chronik.query.messages import (
    Assignment,
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
    Stuck,
    ended,
    frame_of,
    read_frame,
    write_frame,
)
from chronik.query.priority import be_first_to_go, give_way
from chronik.query.request import SearchRequest, SearchResult
from chronik.query.searching import Search
from chronik.query.unreadable_records import Skipped
from chronik.records.compression import limit_decompression
from chronik.security.scram import Sign
from chronik.tasks import Tasks

log = logging.getLogger("chronik.query")

GARBAGE_OBJECTS: Final = 100_000
"""Threshold of the garbage collector. Many objects live shortly here, and none is part of a cycle."""
REFRESH_SECONDS: Final = 5.0
READ_SECONDS: Final = 2.0
"""Longest time that a search waits to read records that were committed before it."""
QUESTIONS_AT_ONCE: Final = 32
SQL_OVERHEAD_BYTES: Final = 448 * 1024 * 1024
"""Memory of the SQL process besides what queries may use: Python, DuckDB, Arrow, compiled code, thread stacks
and a result that is being sent."""
TAILS_PART: Final = 4
"""Records that are not indexed yet have this part of the search process's memory, about."""
FILES_MAX: Final = 4096
SEARCH_STOP_SECONDS_MAX: Final = 5.0
STUCK_EXIT_CODE: Final = 75
STOP_SECONDS_MAX: Final = 2.0
Message: TypeAlias = Question | Assignment | Cancel | Credentials | Logs | Ping


class ChildOptions(msgspec.Struct, frozen=True, kw_only=True):
    kind: str = "search"
    """search, or sql"""
    ports: tuple[int, ...] = ()
    """Kafka ports of all brokers."""
    data_dir: str
    host: str
    port: int
    log_level: str = "INFO"
    search_memory_bytes: int = 1 << 30
    sql_memory_bytes: int = 1 << 30
    sql_columns_bytes_max: int = 32 << 30
    sql_result_bytes_max: int = 64 << 20
    sql_rows_max: int = 10_000
    sql_seconds_max: float = 30.0
    archive_dir: str | None = None
    published_index_dir: str | None = None
    realtime_index: bool = True
    decompressed_bytes_max: int = Limits().decompressed_bytes_max


def _signer(seed: bytes) -> Sign:
    from chronik.security.warrants import ClientKey  # 6 MB that only closed clusters need

    return ClientKey(seed).sign


class Child:
    def __init__(self, options: ChildOptions, writer: asyncio.StreamWriter) -> None:
        self._options = options
        self._writer = writer
        self._root = Path(options.data_dir)
        self._skipped = Skipped()
        self._indexer = Indexer(
            self._root / "index",
            self._connect,
            self._send,
            is_on=options.realtime_index,
            skipped=self._skipped,
            tails_bytes_max=options.search_memory_bytes // TAILS_PART,
        )
        published = options.published_index_dir
        self._history = (
            None if published is None else History(Path(published), self._root / "index" / ".published")
        )
        self._searchers = ThreadPoolExecutor(2, "search")
        self._sql: Any = None
        self._slots = asyncio.Semaphore(QUESTIONS_AT_ONCE)
        self._tasks = Tasks("query")
        self._is_stuck = False
        self._assigned = asyncio.Event()
        self._login: Login | None = None
        self._tls: ssl.SSLContext | None = None
        self._answering: dict[int, asyncio.Task[None]] = {}

    def _connect(self) -> Cluster:
        options = ClientOptions(
            client_id="chronik-query",
            deadline_ms=30_000,
            tls=lambda: (
                self._tls
            ),  # the trusted certificates and the login may change while the client is open
            login=lambda: self._login,
        )
        return Cluster([BrokerAddress(self._options.host, self._options.port)], options)

    def _send(self, message: QueryAnswer | IndexProgress | ChildHello | Pong) -> None:
        write_frame(self._writer, message)

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Run until the node closes stdin or the indexing fails; then the node starts another process."""
        loop = asyncio.get_running_loop()
        tasks = {loop.create_task(self._listen(reader))}
        if self._options.kind == "search":
            tasks.add(loop.create_task(self._index()))
        try:
            ended_first, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended_first:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            # Bounded: a task that does not react to cancellation must not keep this process alive.
            await asyncio.wait(tasks, timeout=STOP_SECONDS_MAX)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        decoder = msgspec.msgpack.Decoder(Message)
        while (frame := await read_frame(reader)) is not None:
            self._take(decoder.decode(frame))

    async def _index(self) -> None:
        """Index from the first assignment on. Credentials arrive before it; a connection without them would
        be refused and retried."""
        await self._assigned.wait()
        await self._indexer.run()

    def _take(self, message: Message) -> None:
        match message:
            case Ping():
                self._send(self._pong())
            case Assignment():
                self._indexer.assign(message)
                self._assigned.set()
            case Logs():
                self._indexer.learn(message)
            case Credentials():
                self._believe(message)
            case Cancel():
                if (task := self._answering.get(message.id)) is not None:
                    task.cancel()
                else:
                    self._send(_nobody_waits(message.id))
            case Question():
                number = message.id
                task = self._tasks.spawn(self._answer(message), message.method)
                self._answering[number] = task
                task.add_done_callback(lambda _: self._answering.pop(number, None))

    def _pong(self) -> Pong:
        if self._sql is None:
            return Pong(skipped=self._skipped.count)
        kept = self._sql.kept
        return Pong(skipped=self._skipped.count, columns_bytes=kept.bytes, columns_dropped=kept.dropped)

    def _believe(self, given: Credentials) -> None:
        self._login = Login(
            mechanism=given.mechanism,
            user=given.user,
            password=given.password,
            sign=_signer(given.seed) if given.seed else None,
            warrant=given.warrant,
        )
        if given.trust is not None:
            self._tls = ssl.create_default_context(cadata=given.trust)
            self._tls.check_hostname = False  # brokers prove by the login who they are

    async def _answer(self, question: Question) -> None:
        is_stuck = False
        try:
            answer = await self._try(question)
            is_stuck = self._is_stuck
            frame = frame_of(answer)
        except asyncio.CancelledError:
            frame = frame_of(_nobody_waits(question.id))
        except (ValueError, OverflowError, RecursionError, MemoryError) as error:
            # The answer cannot be encoded: text that is not UTF-8, a number or a frame that is too long.
            log.warning("the answer to a question (%s) cannot be sent: %s", question.method, error)
            message = "The answer cannot be sent: it is too large, or holds what is no text."
            frame = frame_of(
                QueryAnswer(id=question.id, status=413, code="result_too_large", message=message)
            )
        if is_stuck:
            log.warning("%s did not stop when it was cancelled: the process ends", question.method)
            self._writer.transport.set_write_buffer_limits(0)
            self._writer.write(frame_of(Farewell()))
        self._writer.write(frame)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()
        if is_stuck:
            os._exit(STUCK_EXIT_CODE)

    async def _try(self, question: Question) -> QueryAnswer:
        async with self._slots:
            try:
                return QueryAnswer(id=question.id, body=await self._perform(question))
            except QueryError as error:
                self._is_stuck = self._is_stuck or isinstance(error, Stuck)
                return QueryAnswer(
                    id=question.id, status=error.status, code=error.code, message=error.message
                )
            except RequestError as error:
                return QueryAnswer(id=question.id, status=400, code=error.code.name, message=str(error))
            except msgspec.ValidationError as error:
                return QueryAnswer(id=question.id, status=400, code="invalid_body", message=f"{error}.")
            except ChronikError as error:
                return QueryAnswer(id=question.id, status=503, code="unavailable", message=f"{error}.")
            except OSError as error:
                log.warning("%s failed: %s", question.method, error)
                message = f"{error.strerror or 'Something cannot be reached'}; the node's log says what."
                return QueryAnswer(id=question.id, status=503, code="unavailable", message=message)
            except BaseException as error:  # tantivy's panics are no Exception
                if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                    raise
                log.exception("%s failed", question.method)
                message = "The query process failed; the node's log says why."
                return QueryAnswer(id=question.id, status=500, code="internal_error", message=message)

    async def _perform(self, question: Question) -> Any:
        match question.method:
            case "search":
                return await self._search(question.body)
            case "indices":
                return self._indices()
            case "sql" | "tables" | "explain":
                return await self._run_sql(question)
            case method:
                raise QueryError(404, "not_found", f"There is no method {method}.")

    async def _search(self, body: Any) -> Any:
        request = msgspec.convert(body["request"], SearchRequest)
        wanted: dict[str, list[int]] = body["partitions"]
        topic_ids: dict[str, str] = body["topic_ids"]
        ends = {
            TopicPartition(topic, int(number)): end
            for topic, by in body["ends"].items()
            for number, end in by.items()
        }
        self._indexer.learn(msgspec.convert(body["logs"], Logs))
        deadline = asyncio.get_running_loop().time() + (REFRESH_SECONDS if request.refresh else READ_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._indexer.until_read(ends, topic_ids)
                if request.refresh:
                    await self._indexer.until_rechecked(ends, topic_ids)
        found = await self._look(request, wanted, topic_ids)
        reached = {
            TopicPartition(topic, p): end for topic, by in found.reached.items() for p, end in by.items()
        }
        if (
            request.refresh
            and self._indexer.is_on
            and any(reached.get(tp, -1) < end for tp, end in ends.items())
        ):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._indexer.until(ends, topic_ids)
            found = await self._look(request, wanted, topic_ids)
        return found

    async def _look(
        self, request: SearchRequest, wanted: dict[str, list[int]], topic_ids: dict[str, str]
    ) -> SearchResult:
        loop = asyncio.get_running_loop()
        work = partial(Search(self._indexer, self._history, request).run, wanted, topic_ids)
        task = loop.run_in_executor(self._searchers, work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # A search cannot be stopped, only waited for.
            if not await ended(task, SEARCH_STOP_SECONDS_MAX):
                raise Stuck("search") from None
            raise

    def _indices(self) -> Any:
        return [
            {
                "index": topic.name,
                "documents": sum(topic.documents.get(number, 0) for number in topic.committed),
                "size_bytes": topic.index.size_bytes,
                "partitions": len(topic.committed),
                "ready": sum(topic.is_ready(number) for number in topic.committed),
            }
            for topic in self._indexer.topics.values()
        ]

    async def _run_sql(self, question: Question) -> Any:
        if self._sql is None:
            from chronik.query.sql import SqlEngine  # DuckDB and Arrow: only where somebody asks

            archive = self._options.archive_dir
            self._sql = SqlEngine(
                self._root / "sql",
                self._connect,
                self._options,
                self._skipped,
                None if archive is None else Path(archive),
            )
        return await getattr(self._sql, question.method)(question.body, question.id)


def _nobody_waits(question_id: int) -> QueryAnswer:
    return QueryAnswer(id=question_id, status=408, code="cancelled", message="Nobody waited for it any more.")


def settle(options: ChildOptions) -> dict[str, str]:
    """Set this process's limits and give up all rights that the task does not need, before any client's input
    is read. Threads that already run would keep their rights, so Arrow and DuckDB are imported afterwards.
    """
    limit_decompression(options.decompressed_bytes_max)
    readable = [Path(one) for one in (options.archive_dir, options.published_index_dir) if one is not None]
    for folder in readable:
        with contextlib.suppress(OSError):  # Landlock rules need an existing folder
            folder.mkdir(parents=True, exist_ok=True)
    data_bytes_max = options.search_memory_bytes
    if options.kind == "sql":
        data_bytes_max = options.sql_memory_bytes + SQL_OVERHEAD_BYTES
        if importlib.util.find_spec("numba") is not None:
            from chronik.columns.warming import warm

            warm()
            if (kept := private_directory(Path(tempfile.gettempdir()))) is not None:
                readable.append(kept)
    writable = Path(options.data_dir) / ("sql" if options.kind == "sql" else "index")
    writable.mkdir(parents=True, exist_ok=True)
    return confine(
        Confinement(
            writable=writable,
            readable=readable,
            ports=sorted({options.port, *options.ports}),
            data_bytes_max=data_bytes_max,
            files_max=FILES_MAX,
            may_link=options.kind == "search",
        )
    )


async def main(options: ChildOptions, confinement: dict[str, str]) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    child = Child(options, writer)
    write_frame(writer, ChildHello(confinement=confinement))
    await child.run(reader)


if __name__ == "__main__":
    given = msgspec.json.decode(sys.argv[1], type=ChildOptions)
    logging.basicConfig(
        level=given.log_level,
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    give_way()
    be_first_to_go()
    gc.set_threshold(GARBAGE_OBJECTS)
    code = 0
    try:
        asyncio.run(main(given, settle(given)))
    except KeyboardInterrupt:
        pass
    except BaseException:
        log.exception("the process ends")
        code = 1
    # Threads may be in the middle of a query that nobody waits for any more.
    os._exit(code)
