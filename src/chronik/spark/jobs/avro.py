"""Avro values in the registry's framing: a zero byte, four bytes of schema id, the datum.

Schemas come from a registry with the usual REST interface (`GET /schemas/ids/<id>`), as every chronik node
serves it. Its address may hold who asks: `http://user:password@host:port`, or `http://:KEY@host:port` with an
API key. A datum is decoded by its writer's schema and goes on as JSON text into the schema that all writers'
schemas together make.
"""

from __future__ import annotations

import base64
import io
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from chronik.model import ChronikError
from chronik.spark.jobs.decoding import decode_json, merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FRAME_BYTES: Final = 5
TIMEOUT_S: Final = 10
DECIMAL_DIGITS_MAX: Final = 38
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
REFERENCES_MAX: Final = 200
_NO_SCHEMA: Final = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""A registry that is not there, or answers something else."""
_PRIMITIVES: Final[Mapping[str, Callable[[], DataType]]] = {
    "boolean": BooleanType,
    "int": IntegerType,
    "long": LongType,
    "float": DoubleType,
    "double": DoubleType,
    "bytes": BinaryType,
    "fixed": BinaryType,
    "string": StringType,
    "enum": StringType,
    "null": StringType,
}
_LOGICAL: Final[Mapping[str, Callable[[], DataType]]] = {
    "date": DateType,
    "timestamp-millis": TimestampType,
    "timestamp-micros": TimestampType,
    "uuid": StringType,
}


class Referring(NamedTuple):
    """A schema with those that it refers to, each behind those that it needs itself."""

    schema: Any
    references: tuple[Any, ...]


class _Registry:
    """The address of a registry, without who asks: that is nobody's business who reads an error."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        host = parts.netloc.rpartition("@")[2]
        self.base = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        self._headers: dict[str, str] = {}
        if user:
            proof = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._headers = {"Authorization": f"Basic {proof}"}
        elif password:
            self._headers = {"Authorization": f"Bearer {password}"}

    def get(self, url: str) -> Any:
        """The schema that is found there, with what it refers to."""
        found = self._answer(url)
        schema = json.loads(found["schema"])
        gathered: dict[tuple[str, int], Any] = {}
        self._gather(found, gathered)
        return Referring(schema, tuple(gathered.values())) if gathered else schema

    def _answer(self, url: str) -> Any:
        request = urllib.request.Request(url)
        for name, value in self._headers.items():
            request.add_unredirected_header(name, value)  # not for whom the registry points to
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            data = answer.read(ANSWER_BYTES_MAX + 1)
        if len(data) > ANSWER_BYTES_MAX:
            raise ValueError(f"an answer has at most {ANSWER_BYTES_MAX} bytes")
        return json.loads(data)

    def _gather(self, found: Any, gathered: dict[tuple[str, int], Any], depth: int = 0) -> None:
        for one in found.get("references") or ():
            subject, version = str(one["subject"]), int(one["version"])
            if (subject, version) in gathered:
                continue
            if depth > REFERENCES_MAX or len(gathered) >= REFERENCES_MAX:
                raise ValueError(f"a schema refers to at most {REFERENCES_MAX} others")
            subject_path = quote(subject, safe="")
            inner = self._answer(f"{self.base}/subjects/{subject_path}/versions/{version}?deleted=true")
            self._gather(inner, gathered, depth + 1)
            gathered[subject, version] = json.loads(inner["schema"])


def fetch_schema(registry: str, schema_id: int) -> Any:
    """None if the registry has no such schema. ChronikError if it cannot be asked."""
    asked = _Registry(registry)
    url = f"{asked.base}/schemas/ids/{schema_id}"
    try:
        return asked.get(url)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise ChronikError(f"the registry answered {error.code} to {url}") from error
    except _NO_SCHEMA as error:
        raise ChronikError(f"the registry cannot be asked at {url}: {error}") from error


def record_type(schema: Any) -> StructType | str:
    """The columns of an Avro schema, or why its data cannot be columns.

    Whoever may register schemas may register any. One of them must cost its own records, not the job.
    """
    try:
        whole, references = schema if isinstance(schema, Referring) else (schema, ())
        named: dict[str, Any] = {}
        for one in references:
            spark_type(one, named)
        found = spark_type(whole, named)
        if _may_be_empty_in_arrays([*references, whole], {}):
            return "has arrays of elements without bytes, of which a few bytes can hold any number"
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        return f"cannot be columns ({type(error).__name__})"
    return found if isinstance(found, StructType) else f"is a {found.typeName()}, not a record"


def _note(schema: Mapping[str, Any], named: dict[str, Any]) -> None:
    """Remember a type by its name, alone and with its namespace."""
    if "name" in schema:
        named[schema["name"]] = schema
        if schema.get("namespace"):
            named[f"{schema['namespace']}.{schema['name']}"] = schema


def _may_be_empty_in_arrays(schema: Any, named: dict[str, Any]) -> bool:
    if isinstance(schema, list):
        return any(_may_be_empty_in_arrays(branch, named) for branch in schema)
    if not isinstance(schema, Mapping):
        return False
    _note(schema, named)
    if schema["type"] == "array" and _takes_no_byte(schema["items"], named):
        return True
    inner = [field["type"] for field in schema.get("fields", ())]
    inner += [schema[part] for part in ("items", "values") if part in schema]
    inner += [schema["type"]] if not isinstance(schema["type"], str) else []
    return any(_may_be_empty_in_arrays(one, named) for one in inner)


def _takes_no_byte(schema: Any, named: Mapping[str, Any]) -> bool:
    if isinstance(schema, str):
        return schema == "null" or (schema in named and _takes_no_byte(named[schema], named))
    if not isinstance(schema, Mapping):
        return False  # a union says in a byte which branch it is
    match schema["type"]:
        case "record":
            return all(_takes_no_byte(field["type"], named) for field in schema["fields"])
        case "fixed":
            return not schema["size"]
        case kind:
            return not isinstance(kind, str) or kind == "null"


def spark_type(schema: Any, named: dict[str, Any] | None = None) -> DataType:
    """The Spark type that holds every datum of an Avro schema. RecursionError if it holds itself."""
    named = {} if named is None else named
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        return spark_type(branches[0], named) if len(branches) == 1 else StringType()
    if isinstance(schema, str):
        return _PRIMITIVES[schema]() if schema in _PRIMITIVES else spark_type(named[schema], named)
    kind = schema["type"]
    _note(schema, named)
    logical = schema.get("logicalType")
    if logical == "decimal":
        precision, scale = schema["precision"], schema.get("scale", 0)
        if not 0 <= scale <= precision <= DECIMAL_DIGITS_MAX:
            raise ValueError("Spark has no such decimal")
        return DecimalType(precision, scale)
    if logical in _LOGICAL:
        return _LOGICAL[logical]()
    match kind:
        case "record":
            fields = [(field["name"], spark_type(field["type"], named)) for field in schema["fields"]]
            if not all(isinstance(name, str) and name for name, _ in fields):
                raise TypeError("a field's name is text")
            return StructType([StructField(name, kind) for name, kind in fields])
        case "array":
            return ArrayType(spark_type(schema["items"], named))
        case "map":
            return MapType(StringType(), spark_type(schema["values"], named))
    return spark_type(kind, named)


def as_json(value: Any) -> Any:
    """For json.dumps: what Avro has and JSON has not."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _parsed(schema: Any) -> Any:
    import fastavro

    if not isinstance(schema, Referring):
        return fastavro.parse_schema(schema)
    named: dict[str, Any] = {}
    for one in schema.references:
        fastavro.parse_schema(one, named_schemas=named)
    return fastavro.parse_schema(schema.schema, named_schemas=named)


def decoder(schemas: Mapping[int, Any]) -> Callable[[bytes | None], tuple[str | None, str | None]]:
    """A function from a value to its JSON text, or to the reason why it has none."""
    parsed: dict[int, Any] = {}
    refused: dict[int, str | None] = {}

    def decode(value: bytes | None) -> tuple[str | None, str | None]:
        import fastavro

        if value is None:
            return None, None
        if len(value) < FRAME_BYTES or value[0] != 0:
            return None, "the value does not begin with a schema id"
        schema_id = int.from_bytes(value[1:FRAME_BYTES], "big")
        if schemas.get(schema_id) is None:
            return None, f"the registry has no schema {schema_id}"
        if schema_id not in refused:
            found = record_type(schemas[schema_id])
            refused[schema_id] = found if isinstance(found, str) else None
        if (why := refused[schema_id]) is not None:
            return None, f"schema {schema_id} {why}"
        try:
            if schema_id not in parsed:
                parsed[schema_id] = _parsed(schemas[schema_id])
            datum = fastavro.schemaless_reader(io.BytesIO(value[FRAME_BYTES:]), parsed[schema_id], None)
            return json.dumps(datum, default=as_json), None
        except Exception as error:  # whatever the decoder makes of bytes that are something else
            return None, f"the value is no datum of schema {schema_id}: {type(error).__name__}"

    return decode


def fetch_latest(registry: str, topic: str) -> Any:
    """The newest schema of a topic's values."""
    asked = _Registry(registry)
    url = f"{asked.base}/subjects/{topic}-value/versions/latest"
    try:
        return asked.get(url)
    except _NO_SCHEMA as error:
        raise ChronikError(f"the registry has no schema of {topic}'s values at {url}: {error}") from error


def decode_avro_stream(
    frame: DataFrame, registry: str, topic: str, given: StructType | None = None
) -> DataFrame:
    """As `decode_avro`, for a stream: columns are fixed at the start, schemas are asked for as they come."""
    schema = given or record_type(fetch_latest(registry, topic))
    if not isinstance(schema, StructType):
        raise ChronikError(f"the newest schema of {topic}'s values {schema}")
    known: dict[int, Any] = {}
    read = decoder(known)

    def decode(value: bytes | None) -> tuple[str | None, str | None]:
        if value is not None and len(value) >= FRAME_BYTES:
            schema_id = int.from_bytes(value[1:FRAME_BYTES], "big")
            if schema_id not in known:
                known[schema_id] = fetch_schema(registry, schema_id)
        return read(value)

    return _through_json(frame, decode, schema)


def decode_avro(frame: DataFrame, registry: str, known: StructType) -> DataFrame:
    """Adds `decoded` and `reason`, as `decode_json` does."""
    framed = frame.where("octet_length(value) >= 5 and hex(substring(value, 1, 1)) = '00'")
    numbers = framed.selectExpr("conv(hex(substring(value, 2, 4)), 16, 10) as id").distinct().collect()
    schemas = {int(row.id): fetch_schema(registry, int(row.id)) for row in numbers}
    merged = known
    for _, schema in sorted(schemas.items()):
        if schema is None:
            continue
        found = record_type(schema)
        if isinstance(found, StructType):
            merged = merge(merged, found)
    return _through_json(frame, decoder(schemas), merged)


def _through_json(
    frame: DataFrame, decode: Callable[[bytes | None], tuple[str | None, str | None]], schema: StructType
) -> DataFrame:
    read = F.udf(decode, "text string, reason string")
    opened = frame.withColumn("_raw", F.col("value")).withColumn("_avro", read("value"))
    texts = opened.withColumn("value", F.encode("_avro.text", "UTF-8"))
    decoded = decode_json(texts, schema)
    return (
        decoded.withColumn("reason", F.coalesce("_avro.reason", "reason"))
        .withColumn("value", F.col("_raw"))
        .drop("_raw", "_avro")
    )
