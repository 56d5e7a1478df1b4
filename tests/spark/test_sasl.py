"""The data source and the official connector over SASL_SSL with ACLs, on three nodes; one dies.

They have the rights that they need and no others. The nodes speak mutual TLS with each other. `--broker
kafka` runs the same against Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from chronik.security.acls import Operation, ResourceType
from tests.closed_cluster import WAYS, ClosedCluster, closed_cluster
from tests.spark.processes import wait_for

KINDS = ("kafka", "chronik")
TOPICS = {kind: f"by-{kind}" for kind in KINDS}
STREAMED = {(kind, way): f"{kind}-{number}" for kind in KINDS for number, way in enumerate(WAYS)}
"""Topics of one partition, one for each stream."""
RECORDS = 50
RIGHTS = (
    *((ResourceType.TOPIC, name, Operation.READ) for name in (*TOPICS.values(), *STREAMED.values())),
    *((ResourceType.TOPIC, name, Operation.WRITE) for name in (*TOPICS.values(), *STREAMED.values())),
    (ResourceType.GROUP, "*", Operation.READ),
    (ResourceType.TRANSACTIONAL_ID, "*", Operation.WRITE),
    (ResourceType.TRANSACTIONAL_ID, "*", Operation.DESCRIBE),
)


@pytest.fixture(scope="module")
def closed(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClosedCluster]:
    folder = tmp_path_factory.mktemp("closed")
    topics = {
        **dict.fromkeys(TOPICS.values(), 2),
        **dict.fromkeys(STREAMED.values(), 1),
        "secrets": 1,
    }
    assert spark._jvm is not None
    system = spark._jvm.java.lang.System
    with closed_cluster(folder, request.config.getoption("--broker"), topics, RIGHTS) as given:
        name, urls = given.allowed_urls
        system.setProperty(name, urls)
        yield given
        system.clearProperty(name)


def options(closed: ClosedCluster, way: str) -> dict[str, str]:
    given = {"bootstrap.servers": closed.bootstrap, **closed.settings(way)}
    return {f"kafka.{name}": value for name, value in given.items()}


def write(spark: SparkSession, kind: str, given: dict[str, str], topic: str, text: str) -> None:
    frame = spark.range(RECORDS).selectExpr("cast(id as string) as key", f"concat(id, ' {text}') as value")
    frame.write.format(kind).options(**given, topic=topic).mode("append").save()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_written_and_read_with_a_login(
    spark: SparkSession, closed: ClosedCluster, way: str, kind: str
) -> None:
    topic, given = TOPICS[kind], options(closed, way)
    write(spark, kind, given, topic, f"by {way}")
    read = spark.read.format(kind).options(**given, subscribe=topic).load()
    values = [str(row.value) for row in read.selectExpr("cast(value as string) as value").collect()]
    found = sorted(int(value.split()[0]) for value in values if value.endswith(f" by {way}"))
    assert found == list(range(RECORDS))


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_without_the_right_is_not_read(spark: SparkSession, closed: ClosedCluster, kind: str) -> None:
    given = options(closed, "SCRAM-SHA-512")
    with pytest.raises((PySparkException, Py4JError), match=r"(?i)not authorized|authorization"):
        spark.read.format(kind).options(**given, subscribe="secrets").load().collect()


@dataclass
class Stream:
    """A streaming query that reads a topic into a table, and who writes to the topic."""

    spark: SparkSession
    kind: str
    topic: str
    given: dict[str, str]
    expected: list[str] = field(default_factory=list)

    @property
    def table(self) -> str:
        return self.topic.replace("-", "_")

    def start(self) -> StreamingQuery:
        reader = self.spark.readStream.format(self.kind).options(
            **self.given, subscribe=self.topic, startingOffsets="earliest"
        )
        values = reader.load().selectExpr("cast(value as string) as value")
        writer = values.writeStream.format("memory").queryName(self.table)
        return writer.trigger(processingTime="200 milliseconds").start()

    def write(self, text: str) -> None:
        write(self.spark, self.kind, self.given, self.topic, text)
        self.expected += [f"{number} {text}" for number in range(RECORDS)]

    def wait(self) -> None:
        """Until all that was written was read, once."""

        def found() -> list[str]:
            return sorted(row.value for row in self.spark.table(self.table).collect())

        wait_for(lambda: len(found()) >= len(self.expected), f"{len(self.expected)} records of {self.topic}")
        assert found() == sorted(self.expected)


def test_a_node_dies_under_streams(spark: SparkSession, closed: ClosedCluster) -> None:
    """One stream for each way to log in, by the connector and by the data source. Each has read something;
    then a leader is gone. What is written afterwards, by the producers that wrote before, is read, once."""
    streams = [Stream(spark, kind, topic, options(closed, way)) for (kind, way), topic in STREAMED.items()]
    queries = []
    try:
        for stream in streams:
            stream.write("before")
            queries.append(stream.start())
        for stream in streams:
            stream.wait()
        closed.cluster.kill(closed.cluster.leader_of(streams[0].topic))
        for stream in streams:
            stream.write("after")
        for stream in streams:
            stream.wait()
        assert [query.exception() for query in queries] == [None] * len(streams)
    finally:
        for query in queries:
            query.stop()
