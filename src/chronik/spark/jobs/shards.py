"""Lets Spark's tasks build index shards: a data source whose rows say what each task made.

The records never leave the Python worker that fetched them; only the path of its shard does.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from chronik.spark.jobs.index import SHARD_COLUMNS, SHARDS, build_shard
from chronik.spark.options import ReadOptions, read_options
from chronik.spark.reader import ChronikReader


class ShardSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "chronik-shards"

    def schema(self) -> str:
        return SHARDS

    def reader(self, schema: StructType) -> ShardReader:
        return ShardReader(read_options(self.options, streaming=False), self.options["staging"])


class ShardReader(ChronikReader):
    def __init__(self, options: ReadOptions, staging: str) -> None:
        super().__init__(options, SHARD_COLUMNS)
        self._staging = staging

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return build_shard(super().read(partition), self._staging)
