"""Batch and stream writes: all or nothing, and once (P01)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from chronik.spark import writer
from chronik.spark.exactly_once import Ledger, SinkDecision
from chronik.spark.options import WriteOptions, write_options
from chronik.spark.planning import DataLoss, ask
from chronik.spark.producing import OpenTransaction, end_transaction
from chronik.spark.writer import ChronikStreamWriter, Written, write_task
from tests.spark.topics import Topics


def values(topics: Topics, topic: str, partitions: int = 1) -> list[bytes]:
    return sorted(record.value or b"" for records in topics.records(topic, partitions) for record in records)


def test_rows_become_records(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create(partitions=3)
    frame = spark.range(1000).selectExpr(
        "cast(id as string) as value",
        "if(id % 2 = 0, cast(id % 10 as string), null) as key",
        "if(id = 5, array(struct('h' as key, cast('x' as binary) as value)), null) as headers",
    )
    frame.write.format("chronik").mode("append").options(
        **{"kafka.bootstrap.servers": topics.bootstrap, "topic": topic, "kafka.compression.type": "lz4"}
    ).save()
    found = [record for records in topics.records(topic, 3) for record in records]
    assert sorted(int(record.value or b"") for record in found) == list(range(1000))
    assert [record.value for record in found if record.headers == (("h", b"x"),)] == [b"5"]
    official = spark.read.format("kafka").options(
        **{"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic}
    )
    assert official.load().select("value").distinct().count() == 1000


def test_topics_and_partitions_by_column(spark: SparkSession, topics: Topics) -> None:
    names = [topics.create(partitions=2) for _ in range(2)]
    rows = [(f"{n}", names[n % 2], n // 2 % 2) for n in range(8)]
    frame = spark.createDataFrame(rows, "value string, topic string, partition int")
    frame.write.format("chronik").mode("append").option("bootstrap.servers", topics.bootstrap).save()
    for number, name in enumerate(names):
        expected = [
            [f"{n}".encode() for n in range(8) if n % 2 == number and n // 2 % 2 == partition]
            for partition in (0, 1)
        ]
        assert [sorted(r.value or b"" for r in found) for found in topics.records(name, 2)] == expected


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create(partitions=2)
    frame = spark.range(0, 100, 1, 4).selectExpr(
        "if(id = 99, raise_error('on purpose'), cast(id as string)) as value"
    )
    sink = frame.write.format("chronik").mode("append")
    with pytest.raises(PySparkException, match="on purpose"):
        sink.options(**{"bootstrap.servers": topics.bootstrap, "topic": topic}).save()
    assert values(topics, topic, 2) == []


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("id as value", {"topic": "t"}, "column value is of type bigint"),
        ("'x' as key", {"topic": "t"}, "no column value"),
        ("'x' as value", {}, "where to"),
        ("'x' as value, 'y' as other", {"topic": "t"}, "'other' cannot be written"),
    ],
)
def test_rows_that_are_no_records(
    spark: SparkSession, topics: Topics, columns: str, options: dict[str, str], said: str
) -> None:
    frame = spark.range(1).selectExpr(*columns.split(", "))
    sink = frame.write.format("chronik").mode("append").option("bootstrap.servers", topics.bootstrap)
    with pytest.raises(PySparkException, match=said):
        sink.options(**options).save()


def test_a_stream_from_topic_to_topic(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    source, target = topics.create(partitions=2), topics.create(partitions=2)
    written: list[bytes] = []
    for round_number in range(2):
        more = [b"%d-%d" % (round_number, n) for n in range(50)]
        topics.fill(source, more)
        written += more
        frame = spark.readStream.format("chronik").options(
            **{"bootstrap.servers": topics.bootstrap, "subscribe": source, "startingOffsets": "earliest"}
        )
        query = (
            frame.load()
            .select("value")
            .writeStream.format("chronik")
            .options(**{"bootstrap.servers": topics.bootstrap, "topic": target})
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert values(topics, target, 2) == sorted(written)


class Batch:
    """A micro-batch run by hand, so that it can be stopped anywhere."""

    def __init__(self, topics: Topics, topic: str, sink_id: str) -> None:
        given = {"bootstrap.servers": topics.bootstrap, "topic": topic}
        self.options: WriteOptions = write_options(given)
        self.sink_id = sink_id
        self.writer = ChronikStreamWriter(self.options, StructType().add("value", "binary"))

    def tasks(self, batch_id: int, parts: Sequence[Sequence[bytes]]) -> list[Written]:
        return [
            write_task(
                self.options,
                iter([pa.RecordBatch.from_pydict({"value": pa.array(part, pa.binary())})]),
                sink_id=self.sink_id,
                batch_id=batch_id,
                slot=slot,
            )
            for slot, part in enumerate(parts)
        ]

    def decide(self, batch_id: int, written: Sequence[Written]) -> None:
        transactions = tuple(each.transaction for each in written if each.transaction is not None)

        async def work(cluster: Any) -> None:
            await Ledger(cluster, self.sink_id, self.options.topic or "").decide(
                SinkDecision(batch_id, transactions)
            )

        ask(self.options.connect, work)

    def commit_one(self, transaction: OpenTransaction | None) -> None:
        assert transaction is not None
        ask(self.options.connect, lambda cluster: end_transaction(cluster, transaction, commit=True))


PARTS = [[b"a", b"b"], [b"c"], [b"d", b"e"]]


def test_a_crash_before_the_decision_adds_nothing_twice(topics: Topics) -> None:
    topic = topics.create(partitions=2)
    batch = Batch(topics, topic, topic)
    batch.tasks(0, PARTS)
    assert values(topics, topic, 2) == []
    batch.writer.commit(list(batch.tasks(0, PARTS)), 0)
    assert values(topics, topic, 2) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_crash_in_the_middle_of_the_commits_is_made_good(topics: Topics) -> None:
    topic = topics.create(partitions=2)
    batch = Batch(topics, topic, topic)
    written = batch.tasks(0, PARTS)
    batch.decide(0, written)
    batch.commit_one(written[0].transaction)
    again = batch.tasks(0, [[b"a", b"b", b"c"], [b"d", b"e"]])  # cut in another way this time
    assert all(each.decided for each in again)
    batch.writer.commit(list(again), 0)
    assert values(topics, topic, 2) == [b"a", b"b", b"c", b"d", b"e"]
    batch.writer.commit(list(batch.tasks(0, PARTS)), 0)
    assert values(topics, topic, 2) == [b"a", b"b", b"c", b"d", b"e"]
    batch.writer.commit(list(batch.tasks(1, [[b"f"]])), 1)
    assert values(topics, topic, 2) == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_a_decided_transaction_that_was_aborted_is_told(topics: Topics) -> None:
    topic = topics.create()
    batch = Batch(topics, topic, topic)
    written = batch.tasks(0, PARTS)
    batch.decide(0, written)
    transaction = written[1].transaction
    assert transaction is not None
    ask(batch.options.connect, lambda cluster: end_transaction(cluster, transaction, commit=False))
    with pytest.raises(DataLoss, match="aborted before it could be committed"):
        batch.writer.commit(list(batch.tasks(0, PARTS)), 0)


def test_an_aborted_batch_leaves_nothing(topics: Topics) -> None:
    topic = topics.create(partitions=2)
    batch = Batch(topics, topic, topic)
    written: list[Any] = [*batch.tasks(0, PARTS), None]
    batch.writer.abort(written, 0)
    assert values(topics, topic, 2) == []
    assert isinstance(batch.writer, writer.ChronikStreamWriter)
