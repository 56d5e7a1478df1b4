"""The archive job: topics into Parquet, Delta or Iceberg tables, step by step, every record once.

Parquet: `topic=<topic>/date=<day of the timestamp, UTC>/*.parquet` under the result folder. Delta: one table
per topic in `<topic>/`. Iceberg: one table per topic, `archive.topics.<topic>`, in a Hadoop catalog over the
folder. Columns are those of the data source, with `value` decoded. Bad records lie in `_dead_letters/`, with
the bytes they had and the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from chronik.model import ChronikError
from chronik.published.steps import DEAD_LETTERS, PublishedStep
from chronik.spark.jobs.decoding import (
    decode_json,
    decode_raw,
    infer_json,
    merge,
    name_unreadable,
    with_unreadable,
)
from chronik.spark.jobs.files import Folder
from chronik.spark.jobs.steps import (
    OVERTAKEN_MAX,
    Plan,
    StepLog,
    deleted_unread,
    is_overtaken,
    look,
    lost_ranges,
    plan,
)
from chronik.spark.options import Connect
from chronik.spark.ranges import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TableFormat = Literal["parquet", "delta", "iceberg"]
Decode = Literal["json", "avro", "raw"]
Progress = Callable[[int, int], None]
"""Called with records done and records there are."""

STEP_RECORDS: Final = 10_000_000
INTENT: Final = "_chronik/{topic}/intent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    connect: Connect
    folder: str
    table_format: TableFormat = "parquet"
    decode: Decode = "json"
    registry: str | None = None
    step_records: int = STEP_RECORDS
    fail_on_data_loss: bool = True
    include_headers: bool = False
    read: Mapping[str, str] = field(default_factory=dict)
    """Further options of the data source, for security."""


@dataclass(slots=True)
class Archived:
    """What a run did for a topic."""

    topic: str
    rows: int = 0
    dead: int = 0
    steps: int = 0
    files: int = 0
    size_bytes: int = 0
    lost: list[OffsetRange] = field(default_factory=list)
    """Offsets that were deleted before the job read them."""

    def note(self, work: Plan, written: _Written) -> None:
        self.rows += written.rows
        self.dead += written.dead
        self.steps += 1
        self.files += len(written.moves)
        self.size_bytes += written.size_bytes
        self.lost += work.lost


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """What a step has made that does not count yet."""

    moves: Mapping[str, str] = field(default_factory=dict)
    rows: int = 0
    dead: int = 0
    size_bytes: int = 0
    schema: Any = None


def archive(
    spark: SparkSession, topic: str, options: ArchiveOptions, progress: Progress = lambda done, total: None
) -> Archived:
    """Bring the archive of a topic up to the end that the topic has now.

    Records that were deleted before it read them cost themselves alone: what is there is archived, and
    DataLoss names them at the end, unless `fail_on_data_loss` is off.
    """
    run = _ArchiveRun(spark, topic, options)
    done = Archived(topic)
    total = overtaken = 0
    while True:
        work = run.next_plan()
        total = total or work.left
        progress(min(done.rows + done.dead, total), total)
        try:
            written = run.write(work) if work.size else run.nothing
        except Exception:  # Spark hands on what a task raised in several wrappings
            overtaken += 1
            if overtaken > OVERTAKEN_MAX or not run.is_overtaken(work):
                raise
            continue
        overtaken = 0
        # Not tried again: another step's files would take the place of those that count and were not moved.
        # There is a step without records, too, where a killed run began one whose records are gone.
        if work.size or work.lost or work.left:
            run.commit(work, written)
            done.note(work, written)
        if work.size >= work.left:
            break
    progress(total, total)
    if done.lost and options.fail_on_data_loss:
        raise deleted_unread(done.lost)
    return done


class _ArchiveRun:
    def __init__(self, spark: SparkSession, topic: str, options: ArchiveOptions) -> None:
        self._spark = spark
        self._topic = topic
        self._options = options
        self._folder = Folder(spark, options.folder)
        self._log = StepLog(self._folder, topic)
        self._intent = INTENT.format(topic=topic)

    def next_plan(self) -> Plan:
        last = self._log.last
        bounds = look(self._options.connect, [self._topic])
        intended = self._intended()
        return plan(
            last.offsets if last is not None else None,
            last.topic_id if last is not None else "",
            self._topic,
            bounds,
            limit=self._options.step_records,
            fail_on_data_loss=self._options.fail_on_data_loss,
            ends=intended.get("ends"),
            begun_records=None if "ends" in intended else intended.get("records"),
        )

    def is_overtaken(self, work: Plan) -> bool:
        return is_overtaken(work, look(self._options.connect, [self._topic]))

    def _intended(self) -> Mapping[str, Any]:
        """The step that a killed run began, if any. A table may hold it, so its repetition ends where it did.

        Up to release 0.1 it had the number of its records alone.
        """
        if self._options.table_format == "parquet" or not self._folder.exists(self._intent):
            return {}
        found = self._folder.read_json(self._intent)
        return found if found["version"] == self._log.version else {}

    @property
    def nothing(self) -> _Written:
        """Of a step without records. The schema stays."""
        last = self._log.last
        return _Written(schema=last.schema if last is not None else None)

    def write(self, work: Plan) -> _Written:
        frame = self._decoded(work)
        schema = frame.schema["decoded"].dataType
        observation = Observation("archive")
        bad = F.col("reason").isNotNull()
        counted = frame.observe(
            observation, F.count(F.lit(1)).alias("rows"), F.count(F.when(bad, True)).alias("dead")
        )
        good = counted.where(~bad).select(*self._columns(frame), F.to_date("timestamp").alias("date"))
        moves = self._write_good(good, work)
        counts: Mapping[str, Any] = observation.get
        rows, dead = int(counts["rows"] or 0), int(counts["dead"] or 0)
        if dead:
            letters = frame.where(bad).select(
                "key",
                "value",
                "partition",
                "offset",
                "timestamp",
                "reason",
                F.to_date("timestamp").alias("date"),
            )
            moves |= self._stage(letters, "dead", f"{DEAD_LETTERS}/topic={self._topic}")
        return _Written(
            moves=moves,
            rows=rows - dead,
            dead=dead,
            size_bytes=sum(file.size_bytes for file in self._folder.files(self._log.staging)),
            schema=schema.jsonValue() if isinstance(schema, StructType) else None,
        )

    def commit(self, work: Plan, written: _Written) -> None:
        self._log.commit(
            PublishedStep(
                version=self._log.version,
                topic=self._topic,
                topic_id=work.topic_id,
                ranges={str(each.tp.partition): (each.start, each.end) for each in work.ranges},
                offsets={str(each.tp.partition): each.end for each in work.ranges},
                lost=lost_ranges(work.lost),
                moves=dict(written.moves),
                rows=written.rows,
                dead=written.dead,
                schema=written.schema,
            )
        )

    def _decoded(self, work: Plan) -> DataFrame:
        options = work.options(self._options.connect.bootstrap, self._options.read)
        options["includeHeaders"] = str(self._options.include_headers).lower()
        options["columns"] = with_unreadable(self._options.include_headers)
        frame = self._spark.read.format("chronik").options(**options).load()
        return name_unreadable(self._decode(frame))

    def _decode(self, frame: DataFrame) -> DataFrame:
        match self._options.decode:
            case "raw":
                return decode_raw(frame)
            case "avro":
                from chronik.spark.jobs.avro import decode_avro

                if self._options.registry is None:
                    raise ChronikError(
                        "Avro needs the address of a schema registry: --registry http://host:port"
                    )
                return decode_avro(frame, self._options.registry, self._known_schema())
        schema = infer_json(self._spark, F.col("value"), frame.where("value is not null"))
        return decode_json(frame, merge(self._known_schema(), schema))

    def _known_schema(self) -> StructType:
        """The schema of the steps so far. A schema only grows."""
        last = self._log.last
        return StructType.fromJson(last.schema) if last is not None and last.schema else StructType()

    def _columns(self, frame: DataFrame) -> list[Any]:
        names = [name for name in frame.columns if name not in ("topic", "value", "decoded", "reason")]
        at = names.index("key") + 1
        return [*names[:at], F.col("decoded").alias("value"), *names[at:]]

    def _write_good(self, good: DataFrame, work: Plan) -> dict[str, str]:
        match self._options.table_format:
            case "parquet":
                return self._stage(good, "good", f"topic={self._topic}")
            case "delta":
                if self._intended():
                    _only_count(good)  # Delta may skip the write, and then nothing would be counted
                self._note_intent(work)
                writer = good.write.format("delta").mode("append").partitionBy("date")
                # Delta remembers the last version of each writer and skips a second attempt by itself.
                writer = writer.option("txnAppId", f"chronik-{self._topic}").option(
                    "txnVersion", self._log.version
                )
                writer.option("mergeSchema", "true").save(self._folder.uri(self._topic))
            case "iceberg":
                self._note_intent(work)
                self._append_iceberg(good)
        return {}

    def _note_intent(self, work: Plan) -> None:
        ends = {str(each.tp.partition): each.end for each in work.ranges}
        noted = {"version": self._log.version, "records": work.size, "ends": ends}
        self._folder.write_json(self._intent, noted, replace=True)

    def _append_iceberg(self, good: DataFrame) -> None:
        name = f"archive.topics.`{self._topic}`"
        version = str(self._log.version)
        if not self._spark.catalog.tableExists(name):
            # Not `good.limit(0)`: the counts that `good` observes would be final after that query.
            empty = self._spark.createDataFrame([], good.schema)
            made = empty.writeTo(name).using("iceberg").partitionedBy(F.col("date"))
            made.tableProperty("write.spark.accept-any-schema", "true").create()
        elif self._spark.sql(
            f"select 1 from {name}.snapshots where summary['chronik-step'] = '{version}'"
        ).count():
            _only_count(good)
            return
        writer = (
            good.writeTo(name).option("mergeSchema", "true").option("snapshot-property.chronik-step", version)
        )
        writer.append()

    def _stage(self, frame: DataFrame, kind: str, target: str) -> dict[str, str]:
        """Write Parquet files into staging; returns where each of them is to go."""
        folder = f"{self._log.staging}/{kind}"
        frame.write.mode("overwrite").partitionBy("date").parquet(self._folder.uri(folder))
        moves = {}
        for file in self._folder.files(folder):
            if file.path.endswith(".parquet"):
                inside, _, name = file.path[len(folder) + 1 :].rpartition("/")
                moves[file.path] = f"{target}/{inside}/{self._log.version:012d}-{name}"
        return moves


def _only_count(good: DataFrame) -> None:
    """Run the query for what it observes."""
    good.write.format("noop").mode("overwrite").save()
