"""SQL over topics: reads what the query needs, runs it in DuckDB within limits, hands rows back.

DuckDB may touch nothing but this engine's own files, statements other than SELECT are refused before it sees
them, and every query has bounds of rows, time and memory.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import decimal
import io
import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

import duckdb
import msgspec
import pyarrow as pa

from chronik.client import Cluster, Consumer, FetchOptions
from chronik.client.offsets import EARLIEST, LATEST, list_offsets
from chronik.model import ErrorCode, TopicPartition
from chronik.query.columns import SCHEMA, ColumnReader
from chronik.query.messages import QueryError
from chronik.query.pushdown import Bounds, Plan, read_plan
from chronik.query.tables import PartitionColumns, TopicColumns, literal, quoted, single, table_source

__all__ = ["SqlEngine"]

log = logging.getLogger(__name__)

AT_ONCE: Final = 2
QUERY_CHARS_MAX: Final = 100_000
SAMPLE_RECORDS: Final = 200


class Limits(Protocol):
    @property
    def sql_memory_bytes(self) -> int: ...
    @property
    def sql_rows_max(self) -> int: ...
    @property
    def sql_seconds_max(self) -> float: ...


class SqlRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    query: str
    limit: int | None = None
    timeout_ms: int | None = None
    format: str = "json"


class SqlEngine:
    def __init__(self, root: Path, connect: Callable[[], Cluster], limits: Limits) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        self._connect = connect
        self._limits = limits
        self._threads = ThreadPoolExecutor(AT_ONCE, "sql")
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._topics: dict[str, TopicColumns] = {}
        self._reading: dict[str, asyncio.Lock] = {}

    # --- methods -------------------------------------------------------------------------------------

    async def sql(self, body: Any) -> Any:
        request = msgspec.convert(body, SqlRequest)
        if request.format not in ("json", "csv", "arrow"):
            raise QueryError(400, "invalid_body", "format is json, csv or arrow.")
        return await self._within_limits(request, lambda run: run.rows(request.format))

    async def explain(self, body: Any) -> Any:
        request = msgspec.convert(body, SqlRequest)
        return await self._within_limits(request, lambda run: run.plan())

    async def tables(self, _body: Any) -> Any:
        """Every topic, with columns as its youngest records suggest."""
        async with self._connect() as cluster:
            names = sorted(name for name in await cluster.topics() if not name.startswith("__"))
            return {"tables": [await self._describe(cluster, name) for name in names]}

    async def _describe(self, cluster: Cluster, name: str) -> dict[str, Any]:
        tps = [TopicPartition(name, number) for number in await cluster.partitions(name)]
        low = await list_offsets(cluster, dict.fromkeys(tps, EARLIEST))
        high = await list_offsets(cluster, dict.fromkeys(tps, LATEST), read_committed=True)
        starts = {tp: max(low[tp].offset, high[tp].offset - SAMPLE_RECORDS) for tp in tps}
        ends = {tp: at.offset for tp, at in high.items() if starts[tp] < at.offset}
        batches: list[pa.RecordBatch] = []
        if ends:
            options = FetchOptions(read_committed=True, max_wait_ms=100, partition_max_bytes=256 * 1024)
            async with Consumer(cluster, options, on_out_of_range="earliest") as consumer:
                consumer.assign({tp: starts[tp] for tp in ends})
                async for part in consumer.batches(ends):
                    batches += ColumnReader(name, part.tp.partition).read(part, ends[part.tp])

        def work() -> list[dict[str, str]]:
            with duckdb.connect(config={"threads": "1"}) as connection:
                connection.execute("SET TimeZone = 'UTC'")
                connection.register("sample", pa.Table.from_batches(batches, SCHEMA))
                described = connection.execute(f"DESCRIBE {table_source(connection, 'sample')}").fetchall()
            columns = [{"name": "topic", "type": "VARCHAR"}]
            return columns + [{"name": column, "type": kind} for column, kind, *_ in described]

        loop = asyncio.get_running_loop()
        rows = sum(at.offset - low[tp].offset for tp, at in high.items())
        return {"name": name, "rows": rows, "columns": await loop.run_in_executor(self._threads, work)}

    # --- running -------------------------------------------------------------------------------------

    async def _within_limits(self, request: SqlRequest, finish: Callable[[_Run], Any]) -> Any:
        if len(request.query) > QUERY_CHARS_MAX:
            raise QueryError(400, "invalid_sql", f"A query has at most {QUERY_CHARS_MAX} characters.")
        seconds = self._limits.sql_seconds_max
        if request.timeout_ms is not None:
            seconds = min(seconds, max(1, request.timeout_ms) / 1000)
        rows = min(self._limits.sql_rows_max, max(0, request.limit or self._limits.sql_rows_max))
        began = time.monotonic()
        try:
            async with asyncio.timeout(seconds), self._slots:
                run = _Run(self._root, self._limits, request.query, rows)
                try:
                    await self._prepare(run)
                    left = seconds - (time.monotonic() - began)
                    answer = await self._on_thread(run, lambda: run.bounded(left, finish))
                finally:
                    run.stop()
        except TimeoutError:
            raise QueryError(
                408,
                "query_timed_out",
                f"The query was stopped after {seconds:g} s; narrow it by offset or time.",
            ) from None
        if isinstance(answer, dict):
            answer["took"] = round((time.monotonic() - began) * 1000, 3)
        return answer

    async def _on_thread(self, run: _Run, work: Callable[[], Any]) -> Any:
        task = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            run.interrupt()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # what it failed with was our doing
            raise

    async def _prepare(self, run: _Run) -> None:
        plan = await self._on_thread(run, run.plan_reading)
        async with self._connect() as cluster:
            known = await cluster.topics(plan.tables) if plan.tables else {}
            for table in plan.tables:
                info = known.get(table)
                if info is None or info.error_code != ErrorCode.none:
                    raise QueryError(404, "unknown_table", f"There is no topic {table!r}.")
                async with self._reading.setdefault(table, asyncio.Lock()):
                    await self._read_topic(run, cluster, table, str(info.topic_id), plan.bounds)

    async def _read_topic(
        self, run: _Run, cluster: Cluster, name: str, topic_id: str, bounds: Bounds
    ) -> None:
        topic = self._topics.get(name)
        if topic is None or topic.topic_id != topic_id:
            topic = self._topics[name] = TopicColumns(self._root, name, topic_id)
        numbers = sorted(await cluster.partitions(name))
        if bounds.partition is not None:
            numbers = [number for number in numbers if number == bounds.partition]
        tps = [TopicPartition(name, number) for number in numbers]
        low = {
            tp: at.offset for tp, at in (await list_offsets(cluster, dict.fromkeys(tps, EARLIEST))).items()
        }
        high = await list_offsets(cluster, dict.fromkeys(tps, LATEST), read_committed=True)
        ends = {tp: min(at.offset, bounds.end_offset) for tp, at in high.items()}
        firsts = await _firsts(cluster, low, ends, bounds)
        kept = {tp: self._columns(topic, tp, low[tp], firsts[tp]) for tp in tps}
        behind = {tp: ends[tp] for tp in tps if kept[tp].position < ends[tp]}
        if behind:
            await self._catch_up(run, cluster, name, kept, behind)
        starts = {tp.partition: start for tp, start in low.items()}
        await self._on_thread(run, lambda: run.add_table(name, [kept[tp] for tp in tps], starts))

    def _columns(self, topic: TopicColumns, tp: TopicPartition, start: int, first: int) -> PartitionColumns:
        """What is kept of a partition, or a throw-away place when the query needs only its end."""
        kept = topic.partition(tp.partition)
        kept.trim(start)
        if kept.is_empty:
            kept.begin_at(start)
        if first > kept.position:
            kept = PartitionColumns(self._root / ".once" / uuid.uuid4().hex)
            kept.begin_at(first)
        return kept

    async def _catch_up(
        self,
        run: _Run,
        cluster: Cluster,
        name: str,
        kept: Mapping[TopicPartition, PartitionColumns],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        readers = {tp: ColumnReader(name, tp.partition) for tp in ends}
        options = FetchOptions(read_committed=True, max_wait_ms=100)
        async with Consumer(cluster, options, on_out_of_range="earliest") as consumer:
            consumer.assign({tp: kept[tp].position for tp in ends})
            async for part in consumer.batches(ends):

                def work(part: Any = part) -> None:
                    columns, end = kept[part.tp], ends[part.tp]
                    columns.add(list(readers[part.tp].read(part, end)), min(part.next_offset, end))
                    if columns.is_due:
                        columns.flush(run.connection)

                await self._on_thread(run, work)


async def _firsts(
    cluster: Cluster, low: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], bounds: Bounds
) -> dict[TopicPartition, int]:
    """The first offset of each partition that the query can see."""
    firsts = {tp: max(start, bounds.first_offset) for tp, start in low.items()}
    if bounds.first_timestamp_ms is not None and low:
        at = await list_offsets(cluster, dict.fromkeys(low, bounds.first_timestamp_ms))
        for tp, found in at.items():
            firsts[tp] = max(firsts[tp], found.offset if found.offset >= 0 else ends[tp])
    return firsts


class _Run:
    """One query in a database of its own."""

    def __init__(self, root: Path, limits: Limits, query: str, rows_max: int) -> None:
        self._query = query.strip().rstrip(";")
        self._rows_max = rows_max
        self._sources: list[str] = []
        self._lock = threading.Lock()
        self._open = True
        self.connection = duckdb.connect(
            config={
                "threads": "1",
                "memory_limit": f"{limits.sql_memory_bytes // 1024} KiB",
                "temp_directory": str(root / ".spill"),
                "max_temp_directory_size": f"{4 * limits.sql_memory_bytes // 1024} KiB",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "preserve_insertion_order": "false",
            }
        )
        self.connection.execute("SET TimeZone = 'UTC'")
        self.connection.execute(f"SET allowed_directories = [{literal(f'{root.resolve()}/')}]")
        self.connection.execute("SET enable_external_access = false")
        self.connection.execute("SET lock_configuration = true")

    def interrupt(self) -> None:
        with self._lock:
            if self._open:
                self.connection.interrupt()

    def stop(self) -> None:
        with self._lock:
            self._open = False
        self.connection.close()

    def plan_reading(self) -> Plan:
        serialized = single(self.connection, "SELECT json_serialize_sql(?)", [self._query])
        return read_plan(self._query, serialized, self._evaluate)

    def _evaluate(self, expression: str) -> int | None:
        try:
            value = single(self.connection, f"SELECT {expression}")
        except duckdb.Error:
            return None
        return value if isinstance(value, int) else None

    def add_table(self, name: str, kept: list[PartitionColumns], starts: Mapping[int, int]) -> None:
        files = [path for one in kept for path in one.files()]
        tail = [batch for one in kept for batch in one.tail()]
        parts = []
        if files:
            listed = ", ".join(literal(str(path.resolve())) for path in files)
            parts.append(f"SELECT * FROM read_parquet([{listed}], union_by_name = true)")
        if tail or not files:
            held = f"tail_{len(self._sources)}"
            self.connection.register(held, pa.Table.from_batches(tail, SCHEMA))
            parts.append(table_source(self.connection, quoted(held)))
        gone = " OR ".join(
            f'(partition = {p} AND "offset" < {start})' for p, start in starts.items() if start
        )
        where = f" WHERE NOT ({gone})" if gone else ""
        source = " UNION ALL BY NAME ".join(f"({part})" for part in parts)
        view = f"CREATE VIEW {quoted(name)} AS SELECT {literal(name)} AS topic, * FROM ({source}){where}"
        self.connection.execute(view)
        self._sources.append(f"{name}: {len(files)} files, {sum(b.num_rows for b in tail)} rows in memory")

    def bounded(self, seconds: float, finish: Callable[[_Run], Any]) -> Any:
        """Run on a thread; stopped from outside, or by itself when its time is up."""
        timer = threading.Timer(max(0.01, seconds), self.interrupt)
        timer.start()
        try:
            return finish(self)
        except duckdb.InterruptException:
            raise TimeoutError from None
        except duckdb.OutOfMemoryException as error:
            raise QueryError(
                413, "out_of_memory", f"The query needs more memory than it may have: {error}"
            ) from None
        except duckdb.Error as error:
            raise QueryError(400, "invalid_sql", str(error)) from None
        finally:
            timer.cancel()

    def rows(self, form: str) -> Any:
        result = self.connection.execute(self._query)
        if form == "arrow":
            return _arrow(result, self._rows_max)
        columns = [{"name": name, "type": str(kind)} for name, kind, *_ in result.description or ()]
        rows = result.fetchmany(self._rows_max + 1)
        is_cut = len(rows) > self._rows_max
        plain_rows = [[plain(value) for value in row] for row in rows[: self._rows_max]]
        answer = {"columns": columns, "rows": plain_rows, "row_count": len(plain_rows), "is_cut": is_cut}
        return answer if form == "json" else {"csv": _csv(answer), "is_cut": is_cut}

    def plan(self) -> Any:
        rows = self.connection.execute(f"EXPLAIN {self._query}").fetchall()
        text = "\n".join(str(row[-1]) for row in rows)
        return {"plan": "\n".join([*self._sources, "", text])}


def _arrow(result: duckdb.DuckDBPyConnection, rows_max: int) -> dict[str, Any]:
    found: Any = result
    # DuckDB 1.x and 2.x have different names for it.
    table = (getattr(found, "to_arrow_table", None) or found.fetch_arrow_table)()
    cut = table.slice(0, rows_max)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, cut.schema) as writer:
        writer.write_table(cut)
    return {"arrow": sink.getvalue(), "is_cut": table.num_rows > rows_max}


def _csv(answer: Mapping[str, Any]) -> str:
    import csv

    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow([column["name"] for column in answer["columns"]])
    for row in answer["rows"]:
        writer.writerow([msgspec.json.encode(v).decode() if isinstance(v, dict | list) else v for v in row])
    return sink.getvalue()


def plain(value: Any) -> Any:
    """A value of DuckDB's as JSON has it: times as ISO text, bytes as base64, what is no number as null."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case decimal.Decimal():
            return float(value)
        case list() | tuple():
            return [plain(one) for one in value]
        case dict():
            return {str(name): plain(one) for name, one in value.items()}
        case _:
            return str(value)
