"""What becomes of a sink's rows, micro-batch by micro-batch, each once.

Tables and indexes are written by the driver's own function for each micro-batch; what it published is known
by the query's id and the batch's number, so a batch that is run again is recognised and left alone. Topics
are written by the data source, which has its own memory of decided batches.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from chronik.model import ChronikError
from chronik.published.documents import CURRENT, FORMAT, Manifest, read_manifest
from chronik.published.steps import PublishedStep
from chronik.spark.jobs.files import Folder
from chronik.spark.jobs.index import STAGING, combine, replace_file
from chronik.spark.jobs.steps import StepLog
from chronik.spark.options import Connect
from chronik.spark.pipeline.spec import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH: Final = "batch"
"""The key under which a result remembers the last micro-batch it holds."""
CONSOLE_ROWS: Final = 20

WriteBatch = Callable[["DataFrame", int], None]


def batch_writer(
    spark: SparkSession, sink: Sink, place: str, query_id: Callable[[], str], say: Callable[[str], None]
) -> WriteBatch:
    """The function that publishes a micro-batch of this sink."""
    match sink.format:
        case "parquet":
            return lambda frame, number: write_parquet(spark, frame, number, sink, place, query_id())
        case "delta":
            return lambda frame, number: write_delta(frame, number, sink, place, query_id())
        case "iceberg":
            return lambda frame, number: write_iceberg(spark, frame, number, sink, query_id())
        case "index":
            return lambda frame, number: write_index(frame, number, sink, place, query_id())
        case "console":
            return lambda frame, number: say(table_text(frame, sink, number))
    raise ChronikError(f"a sink of format {sink.format} is not written batch by batch")


def as_records(frame: DataFrame, sink: Sink) -> DataFrame:
    """Rows as key and value: the columns that the sink names, or all of them as one JSON text."""
    from pyspark.sql import functions as F

    names = [name for name in frame.columns if name not in (sink.key, "headers")]
    value = F.col(sink.value) if sink.value is not None else F.to_json(F.struct(*names))
    columns = [value.alias("value")]
    if sink.key is not None:
        columns.insert(0, F.col(sink.key).cast("string").alias("key"))
    return frame.select(*columns)


def topic_options(sink: Sink, connect: Connect) -> dict[str, str]:
    return {**sink.options, "kafka.bootstrap.servers": connect.bootstrap, "topic": sink.topic or ""}


def write_parquet(
    spark: SparkSession, frame: DataFrame, number: int, sink: Sink, place: str, query_id: str
) -> None:
    folder = Folder(spark, place)
    log = StepLog(folder, sink.name)
    if log.last is not None and log.last.topic_id == query_id and log.last.offsets.get(BATCH, -1) >= number:
        return
    staging = f"{log.staging}/rows"
    writer = frame.write.mode("overwrite").options(**sink.options)
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    writer.parquet(folder.uri(staging))
    moves = {}
    for file in folder.files(staging):
        if file.path.endswith(".parquet"):
            inside, _, name = file.path[len(staging) + 1 :].rpartition("/")
            moves[file.path] = "/".join(filter(None, [inside, f"{log.version:012d}-{name}"]))
    log.commit(
        PublishedStep(
            version=log.version, topic=sink.name, topic_id=query_id, offsets={BATCH: number}, moves=moves
        )
    )


def write_delta(frame: DataFrame, number: int, sink: Sink, place: str, query_id: str) -> None:
    writer = frame.write.format("delta").mode("overwrite" if sink.mode == "complete" else "append")
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    writer = writer.option("txnAppId", query_id).option("txnVersion", number).option("mergeSchema", "true")
    writer.options(**sink.options).save(place)


def write_iceberg(spark: SparkSession, frame: DataFrame, number: int, sink: Sink, query_id: str) -> None:
    from pyspark.sql import functions as F

    name = f"archive.pipelines.`{sink.name}`"
    mark = f"{query_id}:{number}"
    if not spark.catalog.tableExists(name):
        made = frame.limit(0).writeTo(name).using("iceberg")
        if sink.partition_by:
            made = made.partitionedBy(*(F.col(column) for column in sink.partition_by))
        made.tableProperty("write.spark.accept-any-schema", "true").create()
    elif spark.sql(f"select 1 from {name}.snapshots where summary['chronik-batch'] = '{mark}'").count():
        return
    writer = frame.writeTo(name).option("mergeSchema", "true").option("snapshot-property.chronik-batch", mark)
    writer.append()


def write_index(frame: DataFrame, number: int, sink: Sink, place: str, query_id: str) -> None:
    """Rows as documents; a row without partition and offset of its own gets its task and its turn."""
    root = Path(place).absolute() / sink.name
    manifest = read_manifest(root)
    if manifest is not None and manifest.topic_id == query_id and manifest.offsets.get(BATCH, -1) >= number:
        return
    staging = root / STAGING
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    where = str(staging)
    first = manifest.documents if manifest is not None else 0
    rows = as_documents(frame, sink)
    shards = [Path(path) for path in rows.rdd.mapPartitionsWithIndex(_shard_builder(where, first)).collect()]
    parts = [root / manifest.path, *shards] if manifest is not None else shards
    version = manifest.version + 1 if manifest is not None else 0
    documents = combine(parts, staging / "version")
    name = f"{version:06d}"
    shutil.rmtree(root / name, ignore_errors=True)
    (staging / "version").rename(root / name)
    made = Manifest(
        format=FORMAT,
        topic=sink.name,
        topic_id=query_id,
        version=version,
        path=name,
        offsets={BATCH: number},
        documents=documents,
    )
    replace_file(root / CURRENT, msgspec.json.encode(made))
    shutil.rmtree(staging, ignore_errors=True)


def as_documents(frame: DataFrame, sink: Sink) -> DataFrame:
    from pyspark.sql import functions as F

    text = F.to_json(F.struct(*[name for name in frame.columns if not name.startswith("_")]))
    key = F.col(sink.key).cast("string") if sink.key is not None else F.lit(None).cast("string")

    def own(name: str, kind: str) -> Any:
        return F.col(name).cast(kind) if name in frame.columns else F.lit(None).cast(kind)

    return frame.select(
        key.alias("key"),
        text.alias("text"),
        own("_partition", "int").alias("partition"),
        own("_offset", "long").alias("offset"),
        own("_timestamp", "timestamp").alias("timestamp"),
    )


def _shard_builder(place: str, first: int) -> Callable[[int, Iterable[Any]], Iterable[str]]:
    def build(task: int, rows: Iterable[Any]) -> Iterator[str]:
        import tantivy

        from chronik.published.documents import Documents, index_schema
        from chronik.published.paths import Paths
        from chronik.spark.jobs.index import WRITER_BYTES

        path = Path(place) / uuid.uuid4().hex
        path.mkdir()
        writer = tantivy.Index(index_schema(), path=str(path)).writer(WRITER_BYTES, 1)
        paths = Paths()
        add = Documents(writer, paths).add
        count = 0
        for row in rows:
            time_ms = int(row.timestamp.timestamp() * 1000) if row.timestamp is not None else 0
            partition = row.partition if row.partition is not None else task
            offset = row.offset if row.offset is not None else first + count
            key = row.key.encode() if row.key is not None else None
            add(key, row.text.encode(), partition, offset, time_ms)
            count += 1
        paths.save(path)
        writer.commit()
        writer.wait_merging_threads()
        if count:
            yield str(path)

    return build


def table_text(frame: DataFrame, sink: Sink, number: int) -> str:
    """A micro-batch as lines of JSON, for the terminal."""
    rows = frame.limit(CONSOLE_ROWS + 1).toJSON().collect()
    shown = [f"{sink.name}, batch {number}: {row}" for row in rows[:CONSOLE_ROWS]]
    if len(rows) > CONSOLE_ROWS:
        total = frame.count()
        shown.append(
            f"{sink.name}, batch {number}: {total:,} rows in all, the first {CONSOLE_ROWS} are shown"
        )
    elif rows:
        shown.append(f"{sink.name}, batch {number}: {len(rows)} rows in all")
    return "\n".join(shown)


def describe(progress: Any) -> dict[str, Any]:
    """The parts of Spark's progress report that people ask for."""
    if progress is None:
        return {}
    found = json.loads(progress if isinstance(progress, str) else progress.json)
    sources = found.get("sources", [])
    return {
        "batch": found.get("batchId"),
        "rows": found.get("numInputRows", 0),
        "rows_per_second": found.get("processedRowsPerSecond", 0.0),
        "input_rows_per_second": found.get("inputRowsPerSecond", 0.0),
        "end_offsets": [source.get("endOffset") for source in sources],
    }
