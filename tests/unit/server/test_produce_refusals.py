"""What a client hears about batches that are not taken."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from chronik.client.apis import Api
from chronik.client.connection import Connection
from chronik.client.options import BrokerAddress, ClientOptions
from chronik.metadata.commands import CreateTopic
from chronik.model import ErrorCode, Limits
from chronik.records.compression import Compression
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.wire.api import ApiKey
from tests.unit.server.live import Live, live

BARE = [3, 14, 15, 92]


async def produce(node: Live, version: int, topic: str, batch: bytes, **fields: Any) -> Any:
    """The answer for the only partition."""
    found = node.node.parts.metadata.state.topics[topic]
    data = {"name": topic, "topic_id": found.topic_id, "partition_data": [{"index": 0, "records": batch}]}
    connection = await Connection.open(BrokerAddress("127.0.0.1", node.node.kafka_port), ClientOptions())
    answer = await connection.request(
        Api(ApiKey.PRODUCE, version, version),
        {"acks": -1, "timeout": 10_000, "topic_data": [data], **fields},
    )
    connection.close()
    return answer.responses[0].partition_responses[0]


@pytest.mark.parametrize("version", range(3, 14))
async def test_records_without_a_key_are_named_each(tmp_path: Path, version: int) -> None:
    async with live(tmp_path) as node:
        parts = node.node.parts
        assignments = ((node.node.settings.node_id,),)
        configs = {"cleanup.policy": "compact"}
        await parts.metadata.submit(
            CreateTopic(
                name="t", topic_id=parts.services.new_uuid(), assignments=assignments, configs=configs
            )
        )
        batch = build_batch([Record(key=None if n in BARE else b"k", value=b"v") for n in range(100)])
        answer = await produce(node, version, "t", bytes(batch))
        assert (answer.error_code, answer.base_offset) == (ErrorCode.invalid_record, -1)
        if version >= 8:
            assert [error.batch_index for error in answer.record_errors] == BARE
            assert "with a key" in answer.error_message


@pytest.mark.parametrize("version", range(3, 14))
async def test_zstd_needs_a_version_that_knows_it(tmp_path: Path, version: int) -> None:
    """KIP-110. A client that asks in an older version may not be able to read what it wrote."""
    async with live(tmp_path) as node:
        parts = node.node.parts
        assignments = ((node.node.settings.node_id,),)
        await parts.metadata.submit(
            CreateTopic(name="t", topic_id=parts.services.new_uuid(), assignments=assignments)
        )
        for codec in (Compression.ZSTD, Compression.LZ4, Compression.ZSTD):
            batch = build_batch([Record(key=b"k", value=b"v")], compression=codec)
            answer = await produce(node, version, "t", bytes(batch))
            known = version >= 7 or codec is not Compression.ZSTD
            expected = ErrorCode.none if known else ErrorCode.unsupported_compression_type
            assert answer.error_code is expected


async def test_where_there_is_nothing_to_say_the_message_is_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java would print an empty message behind a colon."""
    async with live(tmp_path) as node:
        await node.topic("t")
        verifier = node.node.parts.services.transaction_verifier

        async def fails(*_: object, **__: object) -> None:
            raise KeyError("a bug that is nobody else's business")

        monkeypatch.setattr(type(verifier), "verify", fails)
        batch = build_batch(
            [Record(key=b"k", value=b"v")],
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        answer = await produce(node, 12, "t", bytes(batch), transactional_id="x")
        assert answer.error_code == ErrorCode.unknown_server_error
        assert answer.error_message is None


@pytest.mark.parametrize("size", [10, 2_000_000], ids=["broken", "too large"])
async def test_a_refused_batch_is_not_kept(tmp_path: Path, size: int) -> None:
    """It may be large, and the collector of cycles counts objects, not bytes: it must not be needed."""
    async with live(tmp_path) as node:
        await node.topic("orders")
        gc.collect()
        gc.disable()
        try:
            assert (await produce(node, 9, "orders", bytes(size))).error_code != 0
            kept = [one for one in gc.get_objects() if type(one).__name__ == "_PendingProduce"]
        finally:
            gc.enable()
        assert not kept


async def test_a_request_to_too_many_topics_makes_none_of_them(tmp_path: Path) -> None:
    """Each name was counted for itself, and together they have more partitions than a request may make."""
    async with live(tmp_path, default_partitions=Limits().partitions_per_request_max // 2) as node:
        topics = node.node.parts.metadata.state.topics
        before = set(topics)
        data = [{"name": name, "partition_data": [{"index": 0, "records": b""}]} for name in "abc"]
        connection = await Connection.open(BrokerAddress("127.0.0.1", node.node.kafka_port), ClientOptions())
        fields = {"acks": -1, "timeout": 10_000, "topic_data": data}
        answer = await connection.request(Api(ApiKey.PRODUCE, 9, 9), fields)
        connection.close()
        codes = [topic.partition_responses[0].error_code for topic in answer.responses]
        assert codes == [ErrorCode.unknown_topic_or_partition] * 3
        assert set(topics) == before
