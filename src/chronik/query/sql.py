"""SQL over topics: reads what the query needs, runs it in DuckDB within limits, hands rows back.

DuckDB may touch nothing but the files of the query's own tables, statements other than SELECT and functions
that are not listed are refused before it sees them, and every query has bounds of rows, time and memory.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from chronik.client import Cluster, Consumer, Fetched, FetchOptions
from chronik.client.offsets import EARLIEST, LATEST, list_offsets
from chronik.model import ErrorCode, TopicPartition
from chronik.query.archive import Archive, ArchivedTopic
from chronik.query.column_reader import ColumnReader
from chronik.query.kept_columns import KeptColumns
from chronik.query.messages import QueryError, Stuck, ended
from chronik.query.pushdown import RowBounds
from chronik.query.results import FORMATS
from chronik.query.run import AT_ONCE, FilesMoved, QueryLimits, QueryRun, describe
from chronik.query.tables import (
    FLUSH_BYTES,
    OWN_FOLDERS,
    RESULTS,
    PartitionColumns,
    TopicColumns,
    remove_unknown,
)
from chronik.query.unreadable_records import Skipped

__all__ = ["SqlEngine"]

log = logging.getLogger(__name__)

QUERY_CHARS_MAX: Final = 100_000
MEMORY_PER_FLUSH: Final = 16
"""Memory of a query divided by the bytes that are flushed at once, which pass through JSON and Parquet."""
TAILS_PER_FLUSH: Final = 2
"""Memory for the tails of all partitions of a topic, as a multiple of the size at which one is flushed. All
topics together may keep twice that."""
SAMPLE_RECORDS: Final = 200
ATTEMPTS_MAX: Final = 3
STOP_SECONDS_MAX: Final = 2.0
"""Bounded, since some functions of DuckDB ignore interrupts."""


class SqlRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    query: str
    limit: int | None = None
    timeout_ms: int | None = None
    format: str = "json"
    readable: frozenset[str] | None = None
    """Topics that the caller may read; None: all of them."""

    def require(self, table: str) -> None:
        """Refuses topics that do not exist in the same way, so that the answer does not reveal them."""
        if self.readable is not None and table not in self.readable:
            raise QueryError(403, "topic_authorization_failed", f"Topic {table!r} may not be read.")


class TablesRequest(msgspec.Struct, frozen=True, kw_only=True):
    readable: frozenset[str] | None = None


class SqlEngine:
    def __init__(
        self,
        root: Path,
        connect: Callable[[], Cluster],
        limits: QueryLimits,
        skipped: Skipped,
        archive_dir: Path | None = None,
    ) -> None:
        self._skipped = skipped
        self._root = root
        self._archive = None if archive_dir is None else Archive(archive_dir.resolve())
        for left in OWN_FOLDERS:
            shutil.rmtree(root / left, ignore_errors=True)  # of a process that was killed
        root.mkdir(parents=True, exist_ok=True)
        self._connect = connect
        self._limits = limits
        self._flush_bytes = min(FLUSH_BYTES, limits.sql_memory_bytes // AT_ONCE // MEMORY_PER_FLUSH)
        self._threads = ThreadPoolExecutor(AT_ONCE, "sql")
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.kept = KeptColumns(root, limits.sql_columns_bytes_max)
        self._reading: dict[str, asyncio.Lock] = {}

    # --- methods -------------------------------------------------------------------------------------

    async def sql(self, body: Any, number: int) -> Any:
        """The rows go to a file with this number, which is the node's from then on."""
        request = msgspec.convert(body, SqlRequest)
        if request.format not in FORMATS:
            raise QueryError(400, "invalid_body", "format is json, csv or arrow.")
        path, began = self._root / RESULTS / str(number), time.monotonic()
        try:
            return await self._within_limits(request, lambda run: run.rows(request.format, path, began))
        except asyncio.CancelledError:
            path.unlink(missing_ok=True)  # it was finished when nobody waited any more
            raise

    async def explain(self, body: Any, _number: int) -> Any:
        request = msgspec.convert(body, SqlRequest)
        return await self._within_limits(request, lambda run: run.plan())

    async def tables(self, body: Any, _number: int) -> Any:
        """Every topic that may be read, with columns as its youngest records suggest."""
        async with self._connect() as cluster:
            names = sorted(name for name in await self._sweep(cluster) if not name.startswith("__"))
            readable = msgspec.convert(body, TablesRequest).readable
            names = [name for name in names if readable is None or name in readable]
            return {"tables": [await self._describe(cluster, name) for name in names]}

    async def _sweep(self, cluster: Cluster) -> list[str]:
        """All topics; what was kept of others goes."""
        topics = await cluster.topics()
        known = {f"{name}.{info.topic_id}" for name, info in topics.items()}
        await asyncio.get_running_loop().run_in_executor(self._threads, remove_unknown, self._root, known)
        return list(topics)

    async def _describe(self, cluster: Cluster, name: str) -> dict[str, Any]:
        info = (await cluster.topics([name]))[name]
        tps = [TopicPartition(name, number) for number in await cluster.partitions(name)]
        low = await list_offsets(cluster, dict.fromkeys(tps, EARLIEST))
        archived = await self._look(name, str(info.topic_id), RowBounds())
        high = await list_offsets(cluster, dict.fromkeys(tps, LATEST), read_committed=True)
        starts = {tp: max(low[tp].offset, high[tp].offset - SAMPLE_RECORDS) for tp in tps}
        ends = {tp: at.offset for tp, at in high.items() if starts[tp] < at.offset}
        batches: list[pa.RecordBatch] = []
        if ends:
            options = FetchOptions(read_committed=True, max_wait_ms=100, partition_max_bytes=256 * 1024)
            async with Consumer(cluster, options, on_out_of_range="earliest") as consumer:
                consumer.assign({tp: starts[tp] for tp in ends})
                async for part in consumer.batches(ends):
                    batches += ColumnReader(name, part.tp.partition, self._skipped).read(part, ends[part.tp])

        seams = {tp: _seam(tp, low[tp].offset, archived) for tp in tps}
        rows = sum(max(0, at.offset - seams[tp]) for tp, at in high.items())
        rows += archived.rows if archived is not None else 0
        work = partial(describe, batches, archived)
        columns = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        return {"name": name, "rows": rows, "columns": columns}

    # --- running -------------------------------------------------------------------------------------

    async def _within_limits(self, request: SqlRequest, finish: Callable[[QueryRun], Any]) -> Any:
        if len(request.query) > QUERY_CHARS_MAX:
            raise QueryError(400, "invalid_sql", f"A query has at most {QUERY_CHARS_MAX} characters.")
        seconds = self._limits.sql_seconds_max
        if request.timeout_ms is not None:
            seconds = min(seconds, max(1, request.timeout_ms) / 1000)
        began = time.monotonic()
        try:
            async with asyncio.timeout(seconds), self._slots:
                answer = await self._attempts(request, began + seconds, finish)
        except TimeoutError:
            raise QueryError(
                408,
                "query_timed_out",
                f"The query was stopped after {seconds:g} s; narrow it by offset or time.",
            ) from None
        return answer

    async def _attempts(self, request: SqlRequest, deadline: float, finish: Callable[[QueryRun], Any]) -> Any:
        rows = self._limits.sql_rows_max
        if request.limit is not None:
            rows = min(rows, max(0, request.limit))
        for attempt in range(ATTEMPTS_MAX):
            run: QueryRun = QueryRun.guarded(partial(QueryRun, self._root, self._limits, request.query, rows))
            is_stuck = False
            try:
                await self._prepare(run, request)
                left = deadline - time.monotonic()
                return await self._on_thread(run, partial(run.bounded, left, finish))
            except (FilesMoved, FileNotFoundError) as error:
                if attempt == ATTEMPTS_MAX - 1:
                    log.warning("a file of a query cannot be read: %s", error)
                    raise QueryError(
                        409, "unreadable", "A file cannot be read; the node's log says which."
                    ) from None
            except Stuck:
                is_stuck = True  # closing its database would wait for it
                raise
            finally:
                if not is_stuck:
                    run.stop()
                self.kept.release(run.held)
        raise AssertionError("unreachable")

    async def _on_thread(self, run: QueryRun, work: Callable[[], Any]) -> Any:
        task = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            run.interrupt()
            if not await ended(task, STOP_SECONDS_MAX):
                raise Stuck("query") from None
            raise

    async def _prepare(self, run: QueryRun, request: SqlRequest) -> None:
        plan = await self._on_thread(run, partial(run.guarded, run.plan_reading))
        for table in plan.tables:
            request.require(table)
        async with self._connect() as cluster:
            known = await cluster.topics(plan.tables) if plan.tables else {}
            for table in plan.tables:
                info = known.get(table)
                if info is None or info.error_code != ErrorCode.none:
                    raise QueryError(404, "unknown_table", f"There is no topic {table!r}.")
                async with self._reading.setdefault(table, asyncio.Lock()):
                    await self._read_topic(run, cluster, table, str(info.topic_id), plan.bounds)
        await self._on_thread(run, partial(run.guarded, run.seal))

    async def _read_topic(
        self, run: QueryRun, cluster: Cluster, name: str, topic_id: str, bounds: RowBounds
    ) -> None:
        topic = await self._on_thread(run, partial(self.kept.hold, name, topic_id, run.held))
        numbers = sorted(await cluster.partitions(name))
        if bounds.partition is not None:
            numbers = [number for number in numbers if number == bounds.partition]
        tps = [TopicPartition(name, number) for number in numbers]
        low = {
            tp: at.offset for tp, at in (await list_offsets(cluster, dict.fromkeys(tps, EARLIEST))).items()
        }
        # Log start first: records that are archived and deleted meanwhile are then found in the archive.
        archived = await self._look(name, topic_id, bounds)
        seams = {tp: _seam(tp, start, archived) for tp, start in low.items()}
        high = await list_offsets(cluster, dict.fromkeys(tps, LATEST), read_committed=True)
        ends = {tp: min(at.offset, bounds.end_offset) for tp, at in high.items()}
        firsts = await _firsts(cluster, seams, ends, bounds)
        kept = {tp: self._columns(run, topic, tp, seams[tp], firsts[tp]) for tp in tps}
        behind = {tp: ends[tp] for tp in tps if kept[tp].position < ends[tp]}
        if behind:
            await self._catch_up(run, cluster, name, kept, behind)
        starts = {tp.partition: start for tp, start in seams.items()}
        columns = [kept[tp] for tp in tps]
        await self._on_thread(
            run, lambda: run.guarded(lambda: run.add_table(name, columns, starts, archived))
        )

    async def _look(self, name: str, topic_id: str, bounds: RowBounds) -> ArchivedTopic | None:
        if self._archive is None:
            return None
        work = partial(self._archive.look, name, topic_id, bounds)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _columns(
        self, run: QueryRun, topic: TopicColumns, tp: TopicPartition, start: int, first: int
    ) -> PartitionColumns:
        """The kept columns of a partition, or temporary ones if the query needs only its end."""
        kept = topic.partition(tp.partition)
        kept.trim(start)
        if kept.is_empty:
            kept.begin_at(start)
        if first > kept.position:
            kept = run.once()
            kept.begin_at(first)
        return kept

    async def _catch_up(
        self,
        run: QueryRun,
        cluster: Cluster,
        name: str,
        kept: Mapping[TopicPartition, PartitionColumns],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        readers = {tp: ColumnReader(name, tp.partition, self._skipped) for tp in ends}
        options = FetchOptions(read_committed=True, max_wait_ms=100)
        async with Consumer(cluster, options, on_out_of_range="earliest") as consumer:
            consumer.assign({tp: kept[tp].position for tp in ends})
            async for part in consumer.batches(ends):
                work = partial(self._take, run, readers[part.tp], part, kept, ends[part.tp])
                await self._on_thread(run, partial(run.guarded, work))

    def _take(
        self,
        run: QueryRun,
        reader: ColumnReader,
        part: Fetched,
        kept: Mapping[TopicPartition, PartitionColumns],
        end: int,
    ) -> None:
        """Batch by batch: a few compressed megabytes may hold many more."""
        columns = kept[part.tp]
        for batch in reader.read(part, end):
            columns.add([batch], batch.column("offset")[-1].as_py() + 1)
            if columns.is_due(self._flush_bytes):
                self.kept.flush(columns, run.connection)
        columns.add([], max(columns.position, min(part.next_offset, end)))
        own = sum(one.tail_bytes for one in kept.values())
        everybody = self.kept.tail_bytes()
        if own > TAILS_PER_FLUSH * self._flush_bytes or everybody > 2 * TAILS_PER_FLUSH * self._flush_bytes:
            for one in kept.values():
                self.kept.flush(one, run.connection)


def _seam(tp: TopicPartition, log_start_offset: int, archived: ArchivedTopic | None) -> int:
    """The first offset that is read from the log."""
    return max(log_start_offset, archived.ends.get(tp.partition, 0) if archived is not None else 0)


async def _firsts(
    cluster: Cluster, low: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], bounds: RowBounds
) -> dict[TopicPartition, int]:
    """The first offset of each partition that the query can see."""
    firsts = {tp: max(start, bounds.first_offset) for tp, start in low.items()}
    if bounds.first_timestamp_ms is not None and low:
        at = await list_offsets(cluster, dict.fromkeys(low, bounds.first_timestamp_ms))
        for tp, found in at.items():
            firsts[tp] = max(firsts[tp], found.offset if found.offset >= 0 else ends[tp])
    return firsts
