"""Batch and stream reads, beside the official connector where it can say the same (P01)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.node import ChronikNode
from tests.spark.topics import Topics


def read(
    spark: SparkSession, topics: Topics, topic: str, kind: str = "chronik", **options: object
) -> DataFrame:
    reader = spark.read.format(kind).option("kafka.bootstrap.servers", topics.bootstrap)
    if "assign" not in options and "subscribePattern" not in options:
        reader = reader.option("subscribe", topic)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def values(frame: DataFrame) -> list[bytes | None]:
    rows = frame.orderBy("partition", "offset").collect()
    return [None if row.value is None else bytes(row.value) for row in rows]


def test_rows_are_those_of_the_official_connector(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create(partitions=3)
    contents = [b'{"n": %d}' % n for n in range(300)] + [None, b""]
    keys = [b"key-%d" % (n % 17) if n % 5 else None for n in range(302)]
    topics.fill(topic, contents, keys=keys)
    ours, theirs = (read(spark, topics, topic, kind, includeHeaders=True) for kind in ("chronik", "kafka"))
    assert [(f.name, f.dataType.simpleString()) for f in ours.schema] == [
        (f.name, f.dataType.simpleString()) for f in theirs.schema
    ]
    columns = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    rows = [frame.select(*columns).orderBy("partition", "offset").collect() for frame in (ours, theirs)]
    assert len(rows[0]) == 302
    assert rows[0] == rows[1]


def test_offsets_by_number_name_and_partition(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create(partitions=2)
    for partition in (0, 1):
        topics.fill(topic, [b"%d-%d" % (partition, n) for n in range(10)], partition=partition)
    start = json.dumps({topic: {"0": 8, "1": -2}})
    end = json.dumps({topic: {"0": -1, "1": 2}})
    found = values(read(spark, topics, topic, startingOffsets=start, endingOffsets=end))
    assert found == [b"0-8", b"0-9", b"1-0", b"1-1"]
    only = read(spark, topics, topic, assign=json.dumps({topic: [1]}))
    assert only.count() == 10
    by_pattern = read(spark, topics, topic, subscribePattern=topic[:-1] + "[0-9]", startingOffsets="latest")
    assert by_pattern.count() == 0


def test_filters_and_columns(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create(partitions=2)
    for partition in (0, 1):
        topics.fill(topic, [b"%d" % n for n in range(50)], partition=partition)
    frame = read(spark, topics, topic)
    assert values(frame.where("partition = 1 and offset between 5 and 7")) == [b"5", b"6", b"7"]
    assert frame.count() == 100  # a filter of one query is none of the next
    assert frame.where(f"topic = '{topic}' and timestamp > '2020-01-01'").count() == 100
    assert frame.where("timestamp < '2020-01-01'").count() == 0
    assert frame.where("topic = 'another'").count() == 0
    narrow = spark.read.format("chronik").schema("offset long, value binary")
    rows = narrow.options(**{"bootstrap.servers": topics.bootstrap, "subscribe": topic}).load()
    assert rows.columns == ["offset", "value"]
    assert sorted(row.offset for row in rows.collect()) == sorted(list(range(50)) * 2)


def test_ranges_are_split(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"%d" % n for n in range(100)])
    frame = read(spark, topics, topic, minPartitions=7)
    assert frame.rdd.getNumPartitions() == 7
    assert [int(value or b"") for value in values(frame)] == list(range(100))


def test_aborted_transactions_are_not_seen(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"before"])
    topics.fill(topic, [b"aborted"] * 3, abort=True)
    topics.fill(topic, [b"committed"], abort=False)
    assert values(read(spark, topics, topic)) == [b"before", b"committed"]
    uncommitted = read(spark, topics, topic, **{"isolation.level": "read_uncommitted"})
    assert values(uncommitted) == [b"before", *[b"aborted"] * 3, b"committed"]


def test_offsets_that_are_gone(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"%d" % n for n in range(10)])
    topics.delete_records(topic, before=4)
    start = json.dumps({topic: {"0": 1}})
    with pytest.raises(PySparkException, match="offsets 1 to 3 have been deleted"):
        read(spark, topics, topic, startingOffsets=start).count()
    rest = read(spark, topics, topic, startingOffsets=start, failOnDataLoss=False)
    assert values(rest) == [b"%d" % n for n in range(4, 10)]
    end = json.dumps({topic: {"0": 99}})
    with pytest.raises(PySparkException, match="offset 99 was to be reached"):
        read(spark, topics, topic, endingOffsets=end).count()
    assert read(spark, topics, topic, endingOffsets=end, failOnDataLoss=False).count() == 6


def test_by_time(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"old"])
    (old,) = topics.records(topic)[0]
    far = old.timestamp_ms + 3_600_000
    assert read(spark, topics, topic, startingTimestamp=old.timestamp_ms).count() == 1
    assert read(spark, topics, topic, startingTimestamp=1, endingTimestamp=2).count() == 0
    with pytest.raises(PySparkException, match="no record as young as"):
        read(spark, topics, topic, startingTimestamp=far).count()
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read(spark, topics, topic, startingTimestamp=far, **strategy).count() == 0


def test_a_missing_topic_is_one_sentence(spark: SparkSession, topics: Topics) -> None:
    with pytest.raises(PySparkException, match="topic 'nowhere' does not exist"):
        read(spark, topics, "nowhere").count()


class Stream:
    """A query over a topic whose rows are gathered run by run; every run is `available now`."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.topic = topic
        self.folder = folder

    def run(self, kind: str = "chronik", **options: object) -> list[str]:
        """The values of this run."""
        given = {
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
        }
        frame = self.spark.readStream.format(kind).options(**{**given, **options}).load()
        got: list[str] = []

        def take(batch: DataFrame, _: int) -> None:
            got.extend(row.text for row in batch.selectExpr("cast(value as string) as text").collect())

        query = (
            frame.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self.folder / kind))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(got)


@pytest.fixture
def stream(spark: SparkSession, topics: Topics, tmp_path: Path) -> Any:
    return lambda topic: Stream(spark, topics.bootstrap, topic, tmp_path)


def test_a_stream_goes_on_where_it_stopped(topics: Topics, stream: Any) -> None:
    topic = topics.create(partitions=2)
    flow = stream(topic)
    topics.fill(topic, [b"a%d" % n for n in range(5)])
    assert flow.run() == [f"a{n}" for n in range(5)]
    assert flow.run() == []
    topics.fill(topic, [b"b%d" % n for n in range(3)])
    assert flow.run() == ["b0", "b1", "b2"]


def test_a_topic_made_anew_is_noticed(topics: Topics, stream: Any) -> None:
    topic = topics.create()
    flow = stream(topic)
    topics.fill(topic, [b"old"])
    assert flow.run() == ["old"]
    topics.delete(topic)
    topics.create(name=topic)
    topics.fill(topic, [b"new1", b"new2"])
    with pytest.raises(PySparkException, match="deleted and created again"):
        flow.run()
    assert flow.run(failOnDataLoss="false") == ["new1", "new2"]


def test_a_group_is_told_how_far_a_stream_is(
    spark: SparkSession, topics: Topics, tmp_path: Path, node: ChronikNode
) -> None:
    topic = topics.create()
    topics.fill(topic, [b"%d" % n for n in range(10)])
    frame = (
        spark.readStream.format("chronik")
        .option("kafka.bootstrap.servers", node.bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "4")
        .option("commitGroup", "watch")
        .load()
    )
    sizes: list[int] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: sizes.append(batch.count()))
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert sizes == [4, 4, 2]
