"""The official connector, unchanged, against a node: streams and writes. Batch reads are in test_read.

Guards P06.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.topics import Topics


def test_it_writes_a_batch(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create(partitions=2)
    frame = spark.range(500).selectExpr(
        "cast(id % 7 as string) as key",
        "cast(id as string) as value",
        "array(struct('h' as key, cast('x' as binary) as value)) as headers",
    )
    frame.write.format("kafka").options(
        **{"kafka.bootstrap.servers": topics.bootstrap, "topic": topic, "includeHeaders": "true"}
    ).save()
    found = [record for records in topics.records(topic, 2) for record in records]
    assert sorted(int(record.value or b"") for record in found) == list(range(500))
    assert {record.headers for record in found} == {(("h", b"x"),)}


def test_it_streams_from_topic_to_topic(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    source, target = topics.create(partitions=3), topics.create(partitions=2)
    expected: list[bytes] = []
    for part in range(2):
        more = [b"%d-%d" % (part, n) for n in range(40)]
        topics.fill(source, more)
        expected += more
        frame = spark.readStream.format("kafka").options(
            **{
                "kafka.bootstrap.servers": topics.bootstrap,
                "subscribe": source,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": "25",
            }
        )
        query = (
            frame.load()
            .select("key", "value")
            .writeStream.format("kafka")
            .options(**{"kafka.bootstrap.servers": topics.bootstrap, "topic": target})
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        found = sorted(record.value or b"" for records in topics.records(target, 2) for record in records)
        assert found == sorted(expected)
