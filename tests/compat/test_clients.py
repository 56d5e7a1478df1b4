"""kafka-python, aiokafka and confluent-kafka, unchanged: what one writes, it and the others read back."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence

import pytest

from chronik.client import ClientOptions, Cluster, Consumer, parse_bootstrap
from chronik.model import TopicPartition
from chronik.records.batch import headers
from chronik.records.compression import Compression
from tests.compat.clients import CLIENTS, Client, Record
from tests.process import ServerProcess

COMPRESSIONS = (None, "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, broker: ServerProcess) -> Client:
    return CLIENTS[request.param](broker.bootstrap)


def same(got: Sequence[Record], sent: Sequence[Record]) -> bool:
    """Equal but for timestamps that the client chose itself."""
    return [(r.key, r.value, r.headers) for r in got] == [(r.key, r.value, r.headers) for r in sent] and all(
        s.timestamp_ms is None or s.timestamp_ms == g.timestamp_ms for g, s in zip(got, sent, strict=True)
    )


async def codecs(bootstrap: str, topic: str, end_offset: int) -> set[int]:
    """How the batches of a topic's first partition lie in the log."""
    tp = TopicPartition(topic, 0)
    async with Cluster(parse_bootstrap(bootstrap), ClientOptions()) as cluster, Consumer(cluster) as consumer:
        consumer.assign({tp: 0})
        found = [fetched async for fetched in consumer.batches({tp: end_offset})]
    return {header.compression for fetched in found for _, header in headers(fetched.data)}


def test_topics_are_created_listed_and_deleted(client: Client, topic: str) -> None:
    client.create(topic, partitions=3)
    assert topic in client.topics()
    assert client.partitions(topic) == 3
    client.delete(topic)
    assert topic not in client.topics()


def test_a_topic_is_created_only_once(client: Client, topic: str) -> None:
    client.create(topic)
    with pytest.raises(Exception, match=r"(?i)exist|\[36\]"):
        client.create(topic)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_compression(
    broker: ServerProcess, client: Client, topic: str, compression: str | None
) -> None:
    """T29: a client that misses something in what is advertised sends the records uncompressed."""
    client.create(topic)
    sent = [Record(f"value {number}".encode() * 20, f"key {number}".encode()) for number in range(200)]
    assert client.produce(topic, sent, compression) == list(range(200))
    assert same(client.consume(topic, 200), sent)
    assert asyncio.run(codecs(broker.bootstrap, topic, 200)) == {Compression.named(compression or "none")}


def test_headers_nulls_and_empty_values(client: Client, topic: str) -> None:
    client.create(topic)
    sent = [
        Record(b"value", b"key", (("a", b"1"), ("a", b"2"), ("empty", b""))),
        Record(None, b"tombstone"),
        Record(b"", b""),
        Record(b"no key"),
        Record("räksmörgås".encode(), "ключ".encode(), (("ключ", "значение".encode()),)),
    ]
    client.produce(topic, sent)
    assert same(client.consume(topic, len(sent)), sent)


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_values_of_a_megabyte(client: Client, topic: str, compression: str | None) -> None:
    client.create(topic)
    source = random.Random(7)
    sent = [Record(source.randbytes(1_000_000)) for _ in range(3)]
    assert client.produce(topic, sent, compression) == [0, 1, 2]
    assert same(client.consume(topic, 3), sent)


def test_timestamps_are_kept(client: Client, topic: str) -> None:
    client.create(topic)
    sent = [Record(b"x", timestamp_ms=1_700_000_000_000 + number) for number in range(10)]
    client.produce(topic, sent)
    assert same(client.consume(topic, 10), sent)


@pytest.mark.parametrize("acks", [1, "all"])
def test_offsets_go_on_from_batch_to_batch(client: Client, topic: str, acks: int | str) -> None:
    client.create(topic)
    for round_number in range(5):
        assert client.produce(topic, [Record(b"%d" % round_number)] * 3, acks=acks) == [
            round_number * 3 + index for index in range(3)
        ]
    assert [record.value for record in client.consume(topic, 11, offset=4)] == [
        b"%d" % (offset // 3) for offset in range(4, 15)
    ]


def test_a_record_without_acknowledgement_arrives_too(client: Client, topic: str) -> None:
    client.create(topic)
    client.produce(topic, [Record(b"fire")] * 5, acks=0)
    assert [record.value for record in client.consume(topic, 5)] == [b"fire"] * 5


def test_the_first_produce_creates_the_topic(client: Client, topic: str) -> None:
    assert client.produce(topic, [Record(b"first")]) == [0]
    assert client.partitions(topic) == 1


@pytest.mark.parametrize(("writer", "reader"), list(itertools.permutations(CLIENTS, 2)))
def test_each_client_reads_what_another_wrote(
    broker: ServerProcess, topic: str, writer: str, reader: str
) -> None:
    sent = [Record(b"v" * 100, b"k", (("h", b"x"),)) for _ in range(50)]
    writing = CLIENTS[writer](broker.bootstrap)
    for compression in COMPRESSIONS:
        writing.produce(topic, sent, compression)
    assert same(CLIENTS[reader](broker.bootstrap).consume(topic, 250), sent * len(COMPRESSIONS))
