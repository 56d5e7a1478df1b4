"""Runs a pipeline: starts the queries of its sinks, follows them, tells how they are doing."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from chronik.client.offsets import LATEST, list_offsets
from chronik.model import ChronikError
from chronik.spark.jobs.index import replace_file
from chronik.spark.options import Connect
from chronik.spark.pipeline.checks import check_functions, check_sql, check_topics
from chronik.spark.pipeline.document import Document
from chronik.spark.pipeline.frames import Frames
from chronik.spark.pipeline.sinks import as_records, batch_writer, describe, topic_options
from chronik.spark.pipeline.spec import Pipeline, Sink, parse
from chronik.spark.planning import ask
from chronik.spark.reader import from_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_SECONDS: Final = 0.5
LAG_SECONDS: Final = 3.0
START_ATTEMPTS_MAX: Final = 4
START_POLL_SECONDS: Final = 0.05
# Spark's own words.
_INITIALIZING: Final = "Initializing "
_TOO_SLOW: Final = "Python worker failed to connect back"


class QueryStatus(msgspec.Struct, kw_only=True):
    sink: str
    rows: int = 0
    """Read since this run began."""
    rows_per_second: float = 0.0
    batch: int | None = None
    lag: int | None = None
    state: str = "starting"
    error: str = ""


class RunStatus(msgspec.Struct, kw_only=True):
    """What `chronik pipeline status` shows; one file for each run, replaced every second."""

    name: str
    file: str
    pid: int
    host: str
    started_at: float
    updated_at: float
    trigger: str
    queries: list[QueryStatus]


@dataclass(slots=True)
class Loaded:
    """A pipeline file that passed every check that needs no Spark."""

    pipeline: Pipeline
    document: Document
    folder: Path
    connect: Connect


def load(path: Path, connect_for: Callable[[str | None], Connect]) -> Loaded:
    """Read a pipeline file and check all there is to check before Spark starts."""
    try:
        document = Document(path.name, path.read_text())
    except OSError as error:
        raise ChronikError(f"{path} cannot be read: {error.strerror}") from None
    pipeline = parse(document)
    folder = path.absolute().parent
    check_sql(document, pipeline)
    check_functions(document, pipeline, folder)
    connect = connect_for(pipeline.bootstrap)
    check_topics(document, pipeline, connect)
    return Loaded(pipeline, document, folder, connect)


@dataclass(slots=True)
class Run:
    """The queries of a pipeline under way."""

    spark: SparkSession
    loaded: Loaded
    say: Callable[[str], None]
    queries: dict[str, StreamingQuery] = field(default_factory=dict)
    status: RunStatus = field(init=False)
    _seen: dict[str, set[Any]] = field(default_factory=dict)
    _asked_at: float = 0.0

    def __post_init__(self) -> None:
        pipeline = self.loaded.pipeline
        now = time.time()
        self.status = RunStatus(
            name=pipeline.name,
            file=self.loaded.document.name,
            pid=os.getpid(),
            host=socket.gethostname(),
            started_at=now,
            updated_at=now,
            trigger=pipeline.trigger,
            queries=[QueryStatus(sink=name) for name in pipeline.sinks],
        )

    def start(self) -> None:
        pipeline, folder = self.loaded.pipeline, self.loaded.folder
        made = Frames(self.spark, pipeline, self.loaded.document, self.loaded.connect, folder).build()
        for sink in pipeline.sinks.values():
            frame = made[sink.input]
            if pipeline.trigger == "batch":
                self._write_once(sink, frame)
            elif not frame.isStreaming:
                raise self.loaded.document.error(
                    ("sinks", sink.name, "from"),
                    f'{sink.input} reads only tables, which do not flow: set trigger = "batch"',
                )
            else:
                self.queries[sink.name] = self._start_patiently(sink, frame)

    def _place(self, sink: Sink) -> str:
        path = sink.path or ""
        return path if "://" in path else str(self.loaded.folder / path)

    def _start_patiently(self, sink: Sink, frame: DataFrame) -> StreamingQuery:
        """One after the other, and again if need be: Spark gives the Python process of a source ten seconds
        to call back, which are soon over when a busy machine starts several at once."""
        for _ in range(START_ATTEMPTS_MAX):
            query = self._start_query(sink, frame)
            while query.isActive and str(query.status["message"]).startswith(_INITIALIZING):
                time.sleep(START_POLL_SECONDS)
            error = None if query.isActive else query.exception()
            if error is None or _TOO_SLOW not in str(error):
                break
        return query

    def _start_query(self, sink: Sink, frame: DataFrame) -> StreamingQuery:
        pipeline = self.loaded.pipeline
        checkpoint = pipeline.checkpoint
        checkpoint = checkpoint if "://" in checkpoint else str(self.loaded.folder / checkpoint)
        rows = as_records(frame, sink) if sink.format == "topic" else frame
        writer = rows.writeStream.queryName(f"{pipeline.name}.{sink.name}").outputMode(sink.mode)
        writer = writer.option("checkpointLocation", f"{checkpoint}/{sink.name}")
        if pipeline.trigger == "available-now":
            writer = writer.trigger(availableNow=True)
        elif pipeline.trigger != "continuous":
            writer = writer.trigger(processingTime=pipeline.trigger)
        if sink.format == "topic":
            return writer.format("chronik").options(**topic_options(sink, self.loaded.connect)).start()
        identity: list[str] = []

        def query_id() -> str:
            """Kept in the checkpoint, so it is the same in every run."""
            if not identity:
                identity.append(_query_id(self.spark, f"{checkpoint}/{sink.name}"))
            return identity[0]

        write = batch_writer(self.spark, sink, self._place(sink), query_id, self.say)
        return writer.foreachBatch(write).start()

    def _write_once(self, sink: Sink, frame: DataFrame) -> None:
        """A batch run: tables are replaced, topics and indexes get what there is."""
        status = next(each for each in self.status.queries if each.sink == sink.name)
        place = self._place(sink)
        if sink.format == "topic":
            options = topic_options(sink, self.loaded.connect)
            as_records(frame, sink).write.format("chronik").mode("append").options(**options).save()
        elif sink.format in ("parquet", "delta"):
            writer = frame.write.format(sink.format).mode("overwrite").options(**sink.options)
            (writer.partitionBy(*sink.partition_by) if sink.partition_by else writer).save(place)
        else:
            run_id = f"batch-{self.status.started_at}"
            batch_writer(self.spark, sink, place, lambda: run_id, self.say)(frame, 0)
        status.state = "done"

    def follow(self, on_status: Callable[[RunStatus], None]) -> None:
        """Run until every query has ended; raises the error of the first one that failed."""
        while True:
            # Read before the status, so that the last status shows how each query ended.
            is_over = not any(query.isActive for query in self.queries.values())
            self._look()
            on_status(self.status)
            if is_over:
                break
            time.sleep(POLL_SECONDS)
        for query in self.queries.values():
            if (error := query.exception()) is not None:
                raise error

    def stop(self) -> None:
        for query in self.queries.values():
            if query.isActive:
                query.stop()

    def _lag(self, end_offsets: list[Any]) -> int:
        """Records there are behind what the last batch read."""
        reached = {
            tp: offset
            for each in end_offsets
            if isinstance(each, dict)
            for tp, offset in from_json(each).items()
        }
        ends = ask(self.loaded.connect, lambda cluster: list_offsets(cluster, dict.fromkeys(reached, LATEST)))
        return sum(max(0, ends[tp].offset - offset) for tp, offset in reached.items() if tp in ends)

    def _look(self) -> None:
        self.status.updated_at = now = time.time()
        for status in self.status.queries:
            query = self.queries.get(status.sink)
            if query is None:
                continue
            seen = self._seen.setdefault(status.sink, set())
            for progress in query.recentProgress:
                found = describe(progress)
                if found.get("batch") is not None and (found["batch"], found["rows"]) not in seen:
                    seen.add((found["batch"], found["rows"]))
                    status.rows += found["rows"]
                    status.batch = found["batch"]
                    status.rows_per_second = found["rows_per_second"] or 0.0
            status.state = "running" if query.isActive else "done"
            if query.lastProgress is not None and now - self._asked_at >= LAG_SECONDS:
                status.lag = self._lag(describe(query.lastProgress)["end_offsets"])
            error = query.exception()
            if error is not None:
                status.state, status.error = "failed", str(error).splitlines()[0]
        if now - self._asked_at >= LAG_SECONDS:
            self._asked_at = now


def _query_id(spark: SparkSession, checkpoint: str) -> str:
    from chronik.spark.jobs.files import Folder

    return str(Folder(spark, checkpoint).read_json("metadata")["id"])


def write_status(status: RunStatus, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{status.name}.json"
    replace_file(path, msgspec.json.encode(status))
    return path


def read_statuses(folder: Path) -> list[RunStatus]:
    if not folder.is_dir():
        return []
    return [msgspec.json.decode(file.read_bytes(), type=RunStatus) for file in sorted(folder.glob("*.json"))]


def is_alive(status: RunStatus) -> bool | None:
    """Whether the run's process is there; None for another machine's."""
    if status.host != socket.gethostname():
        return None
    try:
        os.kill(status.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
