"""A pipeline file with every kind of sink, run twice: the second run adds what is new (P02)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tantivy
from pyspark.sql import SparkSession

from chronik.spark.jobs.index import read_manifest
from chronik.spark.options import connect_options
from chronik.spark.pipeline.run import Run, load
from tests.spark.topics import Topics

PIPELINE = """
name = "all"
trigger = "available-now"
checkpoint = "checkpoint"

[sources.orders]
topic = "{source}"
decode = "json"
schema = "id bigint, kind string, amount double"

[[steps]]
name = "large"
sql = "select id, kind, amount from orders where amount >= 10"

[[steps]]
name = "priced"
python = "pricing.py:with_tax"
input = "large"

[sinks.files]
from = "priced"
format = "parquet"
path = "files"
partition_by = ["kind"]

[sinks.delta_table]
from = "large"
format = "delta"
path = "delta"

[sinks.{iceberg}]
from = "large"
format = "iceberg"
path = "{lake}"

[sinks.again]
from = "large"
format = "topic"
topic = "{target}"
key = "id"

[sinks.words]
from = "orders"
format = "index"
path = "index"

[sinks.rejected]
from = "orders_bad"
format = "console"
"""
PRICING = """
def with_tax(frame):
    return frame.selectExpr("*", "amount * 1.2 as total")
"""


def run(spark: SparkSession, folder: Path, bootstrap: str) -> list[str]:
    loaded = load(folder / "all.toml", lambda _: connect_options({"bootstrap.servers": bootstrap}))
    said: list[str] = []
    work = Run(spark, loaded, said.append)
    work.start()
    work.follow(lambda status: None)
    assert {query.state for query in work.status.queries} == {"done"}
    return said


def values(numbers: range) -> list[bytes | None]:
    return [json.dumps({"id": n, "kind": "ab"[n % 2], "amount": n * 1.0}).encode() for n in numbers]


def test_every_sink_run_by_run(spark: SparkSession, topics: Topics, tmp_path: Path, lake: Path) -> None:
    source, target = topics.create(partitions=2), topics.create(partitions=2)
    iceberg = f"t{source[2:10]}"
    text = PIPELINE.format(source=source, target=target, lake=lake, iceberg=iceberg)
    (tmp_path / "all.toml").write_text(text)
    (tmp_path / "pricing.py").write_text(PRICING)
    topics.fill(source, [*values(range(20)), b"broken"])
    said = run(spark, tmp_path, topics.bootstrap)
    assert any("the value is no JSON" in line for line in said)
    topics.fill(source, values(range(20, 25)))
    run(spark, tmp_path, topics.bootstrap)
    large = list(range(10, 25))
    files = spark.read.parquet(str(tmp_path / "files")).orderBy("id").collect()
    assert [(row.id, row.kind, round(row.total, 6)) for row in files] == [
        (n, "ab"[n % 2], round(n * 1.2, 6)) for n in large
    ]
    spark.catalog.refreshTable(f"archive.pipelines.`{iceberg}`")  # another session has no cache
    tables: list[Any] = [
        spark.read.format("delta").load(str(tmp_path / "delta")),
        spark.table(f"archive.pipelines.`{iceberg}`"),
    ]
    for table in tables:
        assert [row.id for row in table.orderBy("id").collect()] == large
    sent = [record for records in topics.records(target, 2) for record in records]
    assert sorted(int(record.key or b"") for record in sent) == large
    root = tmp_path / "index" / "words"
    manifest = read_manifest(root)
    assert manifest is not None
    assert manifest.documents == 25
    assert tantivy.Index.open(str(root / manifest.path)).searcher().num_docs == 25
