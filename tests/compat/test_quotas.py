"""Quotas as client libraries meet them: told in the answer, honoured, and nothing is lost (X04)."""

from __future__ import annotations

import asyncio
import time

import pytest
from confluent_kafka import KafkaError, Producer, ThrottleEvent
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import ThrottlingQuotaExceededError

from chronik.client.apis import Api
from chronik.client.connection import Connection
from chronik.client.options import BrokerAddress, ClientOptions
from chronik.wire.api import ApiKey
from tests.process import HOST, ServerProcess

RATE = 50_000
ALTER = Api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1)


@pytest.fixture
def greedy(broker: ServerProcess, topic: str) -> str:
    """A client id that may write 50 KB/s and change one partition a second."""
    values = {"producer_byte_rate": RATE, "controller_mutation_rate": 1.0}

    async def limit() -> None:
        entry = {
            "entity": [{"entity_type": "client-id", "entity_name": topic}],
            "ops": [{"key": key, "value": value, "remove": False} for key, value in values.items()],
        }
        connection = await Connection.open(BrokerAddress(HOST, broker.kafka_port), ClientOptions())
        answer = await connection.request(ALTER, {"entries": [entry], "validate_only": False})
        assert answer.entries[0].error_code == 0
        connection.close()

    asyncio.run(limit())
    return topic


def test_librdkafka_hears_of_its_quota(broker: ServerProcess, topic: str, greedy: str) -> None:
    throttles: list[ThrottleEvent] = []
    errors: list[KafkaError | None] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "client.id": greedy,
            "throttle_cb": throttles.append,
            "linger.ms": 0,
            "batch.size": 1,
        }
    )
    deadline = time.monotonic() + 60
    while not throttles and time.monotonic() < deadline:
        producer.produce(topic, bytes(100_000), on_delivery=lambda error, _: errors.append(error))
        producer.flush(30)
    assert throttles
    assert throttles[0].throttle_time > 0
    producer.produce(topic, b"after", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    assert not any(errors)
    assert len(errors) < 40, "it was told before long"


def test_kafka_python_hears_of_its_quota(
    broker: ServerProcess, topic: str, greedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, client_id=greedy)
    deadline = time.monotonic() + 60
    while "throttled by broker" not in caplog.text and time.monotonic() < deadline:
        producer.send(topic, bytes(100_000)).get(60)
    assert "ProduceResponse throttled by broker" in caplog.text
    producer.close()


def test_topics_beyond_the_quota_are_refused(broker: ServerProcess, topic: str, greedy: str) -> None:
    """KIP-599: the burst is served, what follows is refused until it is paid for. A client that honours the
    throttle asks no more on its connection, hence a new one each time."""
    refused = ""
    for number in range(6):
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap, client_id=greedy)
        try:
            admin.create_topics([NewTopic(f"{topic}-{number}", 6, 1)])
        except ThrottlingQuotaExceededError:
            refused = f"after {number}"
            break
        finally:
            admin.close()
    assert refused > "after 0", "the burst is served, and no more"
