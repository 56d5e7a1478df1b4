"""Records that a hostile producer wrote cost themselves alone, through every reader of the pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chronik.client import Cluster
from chronik.client.apis import PRODUCE
from chronik.model import ErrorCode, TopicPartition
from chronik.published.documents import read_manifest
from chronik.spark.jobs.archive import ArchiveOptions, archive
from chronik.spark.jobs.index import IndexOptions, index
from chronik.spark.jobs.stats import stats
from chronik.spark.options import connect_options
from tests.spark.topics import Topics
from tests.unit.records.bombs import bomb, nonsense

HOSTILE = [
    b'{"a":' * 200 + b"1" + b"}" * 200,
    b'{"a":' * 5000 + b"1" + b"}" * 5000,
    b'{"n": 1' + b"0" * 2000 + b"}",
    b'{"n": 1e99999}',
    b'{"n": -170141183460469231731687303715884105728}',
    b'{"\\ud800": 1}',
    b'{"s": "\\ud800"}',
    b'{"n": "\xed\xa0\x80"}',
    b"[" * 10_000,
    b'{"n": 1, "n": 2}',
    b"\x00\x00\x00\x00\x07nothing",
    b"\xff\xfe",
]
GOOD = [b'{"n": %d}' % number for number in range(20)]


def put(topics: Topics, topic: str, batch: bytearray) -> None:
    async def work(cluster: Cluster) -> None:
        tp = TopicPartition(topic, 0)
        fields = {
            "transactional_id": None,
            "acks": -1,
            "timeout": 10_000,
            "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
        }
        response = await cluster.send(await cluster.leader(tp), PRODUCE, fields)
        (result,) = response.responses[0].partition_responses
        assert result.error_code == ErrorCode.none, result

    topics.run(work)


@pytest.fixture
def poisoned(topics: Topics) -> str:
    topic = topics.create()
    topics.fill(topic, GOOD[:10])
    put(topics, topic, nonsense(record_count=3))
    topics.fill(topic, HOSTILE)
    put(topics, topic, bomb())
    topics.fill(topic, GOOD[10:])
    return topic


def test_the_rest_is_read_archived_indexed_and_counted(
    spark: SparkSession, topics: Topics, poisoned: str, tmp_path: Path
) -> None:
    options = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": poisoned}
    frame = spark.read.format("chronik").options(**options).load()
    assert frame.count() == len(GOOD) + len(HOSTILE)
    columns = {"includeHeaders": "true", "columns": "offset,value,headers,timestamp,unreadable"}
    bad = spark.read.format("chronik").options(**options, **columns).load().where("unreadable is not null")
    rows = bad.orderBy("offset").collect()
    assert [(row.offset, row.value, row.headers) for row in rows] == [(12, None, None), (25, None, None)]
    assert "offsets 10 to 12" in rows[0].unreadable
    assert "may be decompressed" in rows[1].unreadable

    connect = connect_options({"bootstrap.servers": topics.bootstrap})
    archived = archive(spark, poisoned, ArchiveOptions(connect=connect, folder=str(tmp_path / "tables")))
    assert archived.rows + archived.dead == len(GOOD) + len(HOSTILE) + 2
    tables = str(tmp_path / "tables")
    table = spark.read.parquet(f"{tables}/topic={poisoned}")
    assert {row.n for row in table.selectExpr("value.n as n").collect()} >= set(range(20))
    letters = spark.read.parquet(f"{tables}/_dead_letters/topic={poisoned}")
    reasons = {row.offset: row.reason for row in letters.collect()}
    assert len(reasons) == archived.dead
    assert "cannot be read" in reasons[12]
    assert "cannot be read" in reasons[25]
    assert {13, 14} <= reasons.keys()  # nested too deep

    indexed = index(spark, poisoned, IndexOptions(connect=connect, folder=str(tmp_path / "index")))
    assert (indexed.documents, indexed.unreadable) == (len(GOOD) + len(HOSTILE), 2)
    manifest = read_manifest(tmp_path / "index" / poisoned)
    assert manifest is not None
    assert manifest.documents == indexed.documents

    counted = stats(spark, connect, [poisoned])
    assert sum(hour.records for hour in counted.hours) == len(GOOD) + len(HOSTILE)


def test_a_pipeline_names_them_among_the_rejected(
    spark: SparkSession, topics: Topics, poisoned: str, tmp_path: Path
) -> None:
    from chronik.spark.pipeline.document import Document
    from chronik.spark.pipeline.frames import Frames
    from chronik.spark.pipeline.spec import parse

    text = f"""
name = "poison"
trigger = "batch"
checkpoint = "checkpoint"

[sources.records]
topic = "{poisoned}"
decode = "json"
schema = "n bigint"

[sinks.table]
from = "records"
format = "parquet"
path = "table"
"""
    document = Document("poison.toml", text)
    views = Frames(
        spark,
        parse(document),
        document,
        connect_options({"bootstrap.servers": topics.bootstrap}),
        tmp_path,
    ).build()
    assert {row.n for row in views["records"].collect()} >= set(range(20))
    reasons = {row.offset: row.reason for row in views["records_bad"].collect()}
    assert "offsets 10 to 12" in reasons[12]
    assert 25 in reasons
