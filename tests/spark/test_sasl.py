"""The data source and the official connector over SASL_SSL with ACLs, on three nodes; one dies.

They have the rights that they need and no others. The nodes speak mutual TLS with each other. `--broker
kafka` runs the same against Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from chronik.security.acls import Operation, ResourceType
from tests.closed_cluster import BY_TOKEN, WAYS, ClosedCluster, closed_cluster
from tests.spark.processes import wait_for

KINDS = ("kafka", "chronik")
TOPICS = {kind: f"by-{kind}" for kind in KINDS}
STREAMED = {kind: f"streamed-by-{kind}" for kind in KINDS}
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
        **dict.fromkeys(STREAMED.values(), 2),
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
    found = sorted(int(value.split()[0]) for value in values_of(read) if value.endswith(f" by {way}"))
    assert found == list(range(RECORDS))


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_without_the_right_is_not_read(spark: SparkSession, closed: ClosedCluster, kind: str) -> None:
    given = options(closed, "SCRAM-SHA-512")
    with pytest.raises((PySparkException, Py4JError), match=r"(?i)not authorized|authorization"):
        spark.read.format(kind).options(**given, subscribe="secrets").load().collect()


def values_of(frame: DataFrame) -> list[str]:
    return sorted(str(row.value) for row in frame.selectExpr("cast(value as string) as value").collect())


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_dies(spark: SparkSession, closed: ClosedCluster, kind: str) -> None:
    """Under a stream that logged in with a delegation token, as jobs do, and under the producers of every way
    to log in, which the session keeps. What is written afterwards is read, each record once."""
    topic, by_token = STREAMED[kind], options(closed, BY_TOKEN)
    expected: list[str] = []

    def write_and_wait(text: str) -> None:
        for way, given in ways.items():
            write(spark, kind, given, topic, f"{text} by {way}")
            expected.extend(f"{number} {text} by {way}" for number in range(RECORDS))
        wait_for(lambda: len(values_of(spark.table(table))) >= len(expected), f"{topic} {text}")
        assert values_of(spark.table(table)) == sorted(expected)

    ways = {way: by_token if way == BY_TOKEN else options(closed, way) for way in WAYS}
    table = topic.replace("-", "_")
    stream = spark.readStream.format(kind).options(**by_token, subscribe=topic, startingOffsets="earliest")
    frame = stream.load().selectExpr("cast(value as string) as value")
    query = frame.writeStream.format("memory").queryName(table).trigger(processingTime="1 second").start()
    try:
        write_and_wait("before")
        dead = closed.cluster.leader_of(topic)
        closed.cluster.kill(dead)
        write_and_wait("after")
        assert query.exception() is None
        for given in ways.values():
            read = spark.read.format(kind).options(**given, subscribe=topic).load()
            assert values_of(read) == sorted(expected)
    finally:
        query.stop()
    closed.restart(dead)
