"""The child process: reads questions from stdin, answers on stdout, indexes meanwhile, ends with its node."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from chronik.client import ClientOptions, Cluster
from chronik.client.options import Address
from chronik.model import ChronikError, RequestError, TopicPartition
from chronik.query.history import History
from chronik.query.indexer import Indexer
from chronik.query.messages import (
    Answer,
    Assignment,
    Progress,
    QueryError,
    Question,
    read_frame,
    write_frame,
)
from chronik.query.priority import give_way
from chronik.query.request import SearchRequest, SearchResult
from chronik.query.searching import Search

log = logging.getLogger("chronik.query")

GARBAGE_OBJECTS: Final = 100_000
"""Records come and go by ten thousands, and none of them is ever part of a cycle."""
REFRESH_SECONDS: Final = 5.0
READ_SECONDS: Final = 2.0
"""What a search waits at most for records that were committed before it to come here."""
QUESTIONS_AT_ONCE: Final = 32
STOP_SECONDS_MAX: Final = 2.0
Message: TypeAlias = Question | Assignment


class ChildOptions(msgspec.Struct, frozen=True, kw_only=True):
    data_dir: str
    host: str
    port: int
    log_level: str = "INFO"
    sql_memory_bytes: int = 1 << 30
    sql_rows_max: int = 10_000
    sql_seconds_max: float = 30.0
    archive_dir: str | None = None
    published_index_dir: str | None = None
    realtime_index: bool = True


class Child:
    def __init__(self, options: ChildOptions, writer: asyncio.StreamWriter) -> None:
        self._options = options
        self._writer = writer
        self._root = Path(options.data_dir)
        self._indexer = Indexer(self._root / "index", self._connect, self._send, is_on=options.realtime_index)
        published = options.published_index_dir
        self._history = None if published is None else History(Path(published))
        self._searchers = ThreadPoolExecutor(2, "search")
        self._sql: Any = None
        self._slots = asyncio.Semaphore(QUESTIONS_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def _connect(self) -> Cluster:
        options = ClientOptions(client_id="chronik-query", deadline_ms=30_000)
        return Cluster([Address(self._options.host, self._options.port)], options)

    def _send(self, message: Answer | Progress) -> None:
        write_frame(self._writer, message)

    async def run(self, reader: asyncio.StreamReader) -> None:
        indexing = asyncio.get_running_loop().create_task(self._indexer.run())
        decoder = msgspec.msgpack.Decoder(Message)
        try:
            while (frame := await read_frame(reader)) is not None:
                message: Message = decoder.decode(frame)
                if isinstance(message, Assignment):
                    self._indexer.assign(message)
                else:
                    task = asyncio.get_running_loop().create_task(self._answer(message))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        finally:
            indexing.cancel()
            # The node is gone, or waits: whatever holds on to a cancelled task must not keep this process.
            await asyncio.wait({indexing}, timeout=STOP_SECONDS_MAX)

    async def _answer(self, question: Question) -> None:
        async with self._slots:
            try:
                answer = Answer(id=question.id, body=await self._perform(question))
            except QueryError as error:
                answer = Answer(id=question.id, status=error.status, code=error.code, message=error.message)
            except RequestError as error:
                answer = Answer(id=question.id, status=400, code=error.code.name, message=str(error))
            except msgspec.ValidationError as error:
                answer = Answer(id=question.id, status=400, code="invalid_body", message=f"{error}.")
            except (ChronikError, OSError) as error:
                answer = Answer(id=question.id, status=503, code="unavailable", message=f"{error}.")
            except BaseException as error:  # tantivy's panics are no Exception
                if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                    raise
                log.exception("%s failed", question.method)
                message = "The query process failed; the node's log says why."
                answer = Answer(id=question.id, status=500, code="internal_error", message=message)
        self._send(answer)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def _perform(self, question: Question) -> Any:
        match question.method:
            case "search":
                return await self._search(question.body)
            case "indices":
                return self._indices()
            case "sql" | "tables" | "explain":
                return await self._run_sql(question.method, question.body)
            case method:
                raise QueryError(404, "not_found", f"There is no method {method}.")

    async def _search(self, body: Any) -> Any:
        request = msgspec.convert(body["request"], SearchRequest)
        wanted: dict[str, list[int]] = body["partitions"]
        ends = {
            TopicPartition(topic, int(number)): end
            for topic, by in body["ends"].items()
            for number, end in by.items()
        }
        deadline = asyncio.get_running_loop().time() + (REFRESH_SECONDS if request.refresh else READ_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._indexer.until_read(ends)
        found = await self._look(request, wanted, body["topic_ids"])
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
                    await self._indexer.until(ends)
            found = await self._look(request, wanted, body["topic_ids"])
        return found

    async def _look(
        self, request: SearchRequest, wanted: dict[str, list[int]], topic_ids: dict[str, str]
    ) -> SearchResult:
        loop = asyncio.get_running_loop()
        work = partial(Search(self._indexer, self._history, request).run, wanted, topic_ids)
        return await loop.run_in_executor(self._searchers, work)

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

    async def _run_sql(self, method: str, body: Any) -> Any:
        if self._sql is None:
            from chronik.query.sql import SqlEngine  # DuckDB and Arrow: only when somebody asks

            archive = self._options.archive_dir
            self._sql = SqlEngine(
                self._root / "sql", self._connect, self._options, None if archive is None else Path(archive)
            )
        return await getattr(self._sql, method)(body)


async def main() -> None:
    options = msgspec.json.decode(sys.argv[1], type=ChildOptions)
    logging.basicConfig(
        level=options.log_level,
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    give_way()
    gc.set_threshold(GARBAGE_OBJECTS)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    await Child(options, writer).run(reader)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
    # Threads may be in the middle of a query that nobody waits for any more.
    os._exit(0)
