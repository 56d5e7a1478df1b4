"""`format("chronik")`: the class that Spark knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from chronik.spark.driver import use_own_python
from chronik.spark.options import OptionError, read_options, write_options
from chronik.spark.reader import UNREADABLE, ChronikReader, ChronikStreamReader, check_columns

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

COLUMNS: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}
HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


class ChronikDataSource(DataSource):
    """Topics of a chronik or Apache Kafka cluster, with the rows of the official Kafka connector.

    Register it once per session: `spark.dataSource.register(ChronikDataSource)`.
    """

    @classmethod
    def name(cls) -> str:
        """Spark asks this first when a session registers the source, before it looks for a Python."""
        use_own_python()
        return "chronik"

    def schema(self) -> StructType:
        options = read_options(self.options, streaming=False)
        columns = dict(COLUMNS)
        if options.include_headers:
            columns["headers"] = HEADERS
        wanted = options.columns or tuple(columns)
        columns[UNREADABLE] = StringType()
        check_columns(wanted, columns)
        return StructType([StructField(name, columns[name]) for name in wanted])

    def reader(self, schema: StructType) -> ChronikReader:
        return ChronikReader(read_options(self.options, streaming=False), _names(schema))

    def streamReader(self, schema: StructType) -> ChronikStreamReader:
        return ChronikStreamReader(read_options(self.options, streaming=True), _names(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from chronik.spark.writer import ChronikWriter

        if overwrite:
            raise OptionError("a topic cannot be overwritten: write with mode append")
        return ChronikWriter(write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from chronik.spark.writer import ChronikStreamWriter

        return ChronikStreamWriter(write_options(self.options), schema)


def _names(schema: StructType) -> list[str]:
    """The columns of a schema that is ours or a part of it: `read.schema(...)` chooses columns."""
    known: dict[str, Any] = {**COLUMNS, "headers": HEADERS, UNREADABLE: StringType()}
    check_columns(schema.fieldNames(), known)
    for field in schema.fields:
        if field.dataType.simpleString() != known[field.name].simpleString():
            raise OptionError(
                f"column {field.name} is of type {known[field.name].simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )
    return list(schema.fieldNames())
