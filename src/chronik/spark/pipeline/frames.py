"""Sources and steps as Spark views."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from chronik.model import ChronikError
from chronik.spark.jobs.avro import decode_avro_stream
from chronik.spark.jobs.decoding import (
    decode_csv,
    decode_json,
    infer_json,
    name_unreadable,
    table_schema,
    with_unreadable,
)
from chronik.spark.jobs.files import Folder
from chronik.spark.jobs.steps import look
from chronik.spark.options import Connect
from chronik.spark.pipeline.document import Document
from chronik.spark.pipeline.spec import Pipeline, Source, Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLE_RECORDS = 20_000
_ENVELOPE = ("key", "topic", "partition", "offset", "timestamp")


class Frames:
    """The views of a pipeline, made in the order in which they are read."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, document: Document, connect: Connect, folder: Path
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._document = document
        self._connect = connect
        self._folder = folder
        self._is_batch = pipeline.trigger == "batch"
        self._schemas = Folder(spark, str(folder / pipeline.checkpoint))
        self.views: dict[str, DataFrame] = {}

    def build(self) -> dict[str, DataFrame]:
        for source in self._pipeline.sources.values():
            self._add(source.name, self._source(source))
        for step in self._pipeline.steps:
            self._add(step.name, self._step(step))
        return self.views

    def _add(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(name)
        self.views[name] = frame

    def _source(self, source: Source) -> DataFrame:
        if source.table is not None:
            frame = self._table(source)
        else:
            rows = self._rows(source, static=self._is_batch)
            frame = rows if source.decode == "raw" else self._decoded(source, rows)
        if source.watermark_column is not None:
            if source.watermark_column not in frame.columns:
                what = f"source {source.name} has no column {source.watermark_column!r} for its watermark; "
                columns = ", ".join(frame.columns)
                raise self._document.error(("sources", source.name, "watermark"), f"{what}it has {columns}")
            frame = frame.withWatermark(source.watermark_column, source.watermark_delay)
        return frame

    def _table(self, source: Source) -> DataFrame:
        place = source.table or ""
        local = self._folder / place
        reader = self._spark.read.format(source.table_format).options(**source.options)
        if source.schema is not None:
            reader = reader.schema(source.schema)
        return reader.load(str(local) if "://" not in place else place)

    def _rows(self, source: Source, *, static: bool) -> DataFrame:
        options = {
            **source.options,
            "kafka.bootstrap.servers": self._connect.bootstrap,
            "subscribe": ",".join(source.topics),
            "startingOffsets": source.start if not static else "earliest",
        }
        if source.decode != "raw":
            options["columns"] = with_unreadable()
        if static:
            return self._spark.read.format("chronik").options(**options).load()
        return self._spark.readStream.format("chronik").options(**options).load()

    def _decoded(self, source: Source, rows: DataFrame) -> DataFrame:
        match source.decode:
            case "csv":
                decoded = decode_csv(rows, source.schema or "")
            case "avro":
                given = self._given_schema(source)
                decoded = decode_avro_stream(rows, source.registry or "", source.topics[0], given)
            case _:
                decoded = decode_json(rows, self._json_schema(source))
        decoded = name_unreadable(decoded)
        bad = decoded.where("reason is not null").drop("decoded")
        self._add(source.bad_name, bad)
        envelope = [F.col(name).alias(f"_{name}") for name in _ENVELOPE]
        return decoded.where("reason is null and value is not null").select("decoded.*", *envelope)

    def _given_schema(self, source: Source) -> StructType | None:
        if source.schema is None:
            return None
        try:
            return table_schema(source.schema)
        except Exception as error:
            what = f'{source.schema!r} is no schema: write "id bigint, name string"'
            raise self._document.error(("sources", source.name, "schema"), what) from error

    def _json_schema(self, source: Source) -> StructType:
        """Given, or found in a sample once and kept beside the checkpoint: columns must not change."""
        given = self._given_schema(source)
        if given is not None:
            return given
        path = f"schema-{source.name}.json"
        if self._schemas.exists(path):
            return StructType.fromJson(self._schemas.read_json(path))
        found = infer_json(self._spark, F.col("value"), self._sample(source).where("value is not null"))
        if not found.fields:
            what = f"topic {source.topics[0]} holds no JSON object to learn a schema from: add schema"
            raise self._document.error(("sources", source.name), what)
        self._schemas.write_json(path, found.jsonValue(), replace=True)
        return found

    def _sample(self, source: Source) -> DataFrame:
        """The youngest records, by their offsets: a limit in SQL would start reading everything."""
        bounds = look(self._connect, source.topics)
        share = max(1, SAMPLE_RECORDS // max(1, len(bounds.latest)))
        starts: dict[str, dict[str, int]] = {}
        for tp, latest in bounds.latest.items():
            starts.setdefault(tp.topic, {})[str(tp.partition)] = max(bounds.earliest[tp], latest - share)
        options = {
            **source.options,
            "kafka.bootstrap.servers": self._connect.bootstrap,
            "subscribe": ",".join(source.topics),
            "startingOffsets": json.dumps(starts),
        }
        return self._spark.read.format("chronik").options(**options).load()

    def _step(self, step: Step) -> DataFrame:
        if step.sql is not None:
            try:
                return self._spark.sql(step.sql)
            except Exception as error:
                said = getattr(error, "getErrorClass", lambda: None)()
                first = str(error).strip().splitlines()[0]
                path = ("steps", step.position, "sql")
                raise self._document.error(
                    path, first if said or first else "Spark refuses this SQL"
                ) from error
        function = load_function(step.python or "", self._folder)
        made = function(*(self.views[name] for name in step.inputs))
        if not hasattr(made, "createOrReplaceTempView"):
            what = f"{step.python} returned {type(made).__name__}, not a DataFrame"
            raise self._document.error(("steps", step.position, "python"), what)
        result: DataFrame = made
        return result


def load_function(place: str, folder: Path) -> Any:
    where, _, name = place.rpartition(":")
    if not where.endswith(".py"):
        return getattr(importlib.import_module(where), name)
    file = folder / where
    specification = importlib.util.spec_from_file_location(file.stem, file)
    if specification is None or specification.loader is None:
        raise ChronikError(f"{file} cannot be loaded")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return getattr(module, name)
