"""What the bytes of a value mean: columns for good records, a reason for bad ones.

A schema only grows. A field that was seen once keeps its type; records that contradict it are bad records,
because rewriting what lies there already is not for a run to decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from chronik.spark.reader import UNREADABLE
from chronik.spark.source import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CORRUPT: Final = "_chronik_corrupt"
LIMITS: Final = {"maxNestingDepth": "64"}
"""Deeper objects are bad records: neither Python nor Parquet follows a schema as deep as the parser goes."""
INFERENCE: Final = {"dropFieldIfAllNull": "true", "columnNameOfCorruptRecord": CORRUPT, **LIMITS}


def merge(old: StructType, new: StructType) -> StructType:
    """The old schema with whatever fields only the new one has, at any depth."""
    fields = {field.name: field for field in old.fields}
    for field in new.fields:
        known = fields.get(field.name)
        kind = field.dataType if known is None else _merge_types(known.dataType, field.dataType)
        fields[field.name] = StructField(field.name, kind)
    return StructType(list(fields.values()))


def _merge_types(old: DataType, new: DataType) -> DataType:
    if isinstance(old, StructType) and isinstance(new, StructType):
        return merge(old, new)
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return ArrayType(_merge_types(old.elementType, new.elementType))
    return old


def infer_json(spark: SparkSession, values: Column, frame: DataFrame) -> StructType:
    """The schema of all JSON objects among the values, found in one pass inside the JVM."""
    texts: Any = frame.select(values.cast("string"))._jdf
    strings = getattr(texts, "as")(spark._jvm.org.apache.spark.sql.Encoders.STRING())  # type: ignore[union-attr]
    reader = spark._jsparkSession.read()
    for name, value in INFERENCE.items():
        reader = reader.option(name, value)
    found = StructType.fromJson(_json(reader.json(strings).schema().json()))
    return StructType([field for field in found.fields if field.name != CORRUPT])


def _json(text: str) -> Any:
    import json

    return json.loads(text)


def decode_json(frame: DataFrame, schema: StructType) -> DataFrame:
    """Adds `decoded` (null for a tombstone) and `reason` (null for a good record)."""
    text = F.col("value").cast("string")
    whole = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, **LIMITS}
    parsed = frame.withColumn("_parsed", F.from_json(text, whole, options))
    reason = (
        F.when(F.col("value").isNull(), F.lit(None))
        .when(~F.is_valid_utf8(text), F.lit("the value is not UTF-8"))
        .when(F.trim(text) == "", F.lit("the value is empty"))
        .when(~F.trim(text).startswith("{"), F.lit("the value is no JSON object"))
        .when(
            F.col(f"_parsed.{CORRUPT}").isNotNull() | F.col("_parsed").isNull(),
            F.when(F.try_parse_json(text).isNull(), F.lit("the value is no JSON")).otherwise(
                F.lit("the value does not fit the schema of those before it")
            ),
        )
    )
    decoded = F.col("_parsed").dropFields(CORRUPT) if schema.fields else F.lit(None).cast("string")
    return (
        parsed.withColumn("reason", reason)
        .withColumn("decoded", F.when(F.col("reason").isNull() & F.col("value").isNotNull(), decoded))
        .drop("_parsed")
    )


def with_unreadable(include_headers: bool = False) -> str:
    """The option `columns` of a read that also sees which batches cannot be read."""
    return ",".join([*COLUMNS, *(["headers"] if include_headers else []), UNREADABLE])


def name_unreadable(decoded: DataFrame) -> DataFrame:
    """A batch that cannot be read is a bad record whose reason says so."""
    return decoded.withColumn("reason", F.coalesce(UNREADABLE, "reason")).drop(UNREADABLE)


def table_schema(columns: str) -> StructType:
    """A schema as SQL writes it: `id bigint, name string`. ValueError for anything else."""
    found = StructType.fromDDL(columns)
    if not isinstance(found, StructType):
        raise ValueError(f"{columns!r} is no list of columns")
    return found


def decode_csv(frame: DataFrame, columns: str) -> DataFrame:
    """Adds `decoded` and `reason`; `columns` is the schema as SQL writes it."""
    whole = StructType([*table_schema(columns).fields, StructField(CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    text = F.col("value").cast("string")
    parsed = frame.withColumn("_parsed", F.from_csv(text, whole.simpleString()[7:-1], options))
    reason = F.when(F.col(f"_parsed.{CORRUPT}").isNotNull(), F.lit("the value does not fit the columns"))
    return (
        parsed.withColumn("reason", reason)
        .withColumn("decoded", F.when(F.col("reason").isNull(), F.col("_parsed").dropFields(CORRUPT)))
        .drop("_parsed")
    )


def decode_raw(frame: DataFrame) -> DataFrame:
    return frame.withColumn("decoded", F.col("value")).withColumn("reason", F.lit(None).cast("string"))
