"""Share consumers (KIP-932): there are no share groups, and who asks for one hears so instead of waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from tests import java
from tests.process import ServerProcess

SHARE_CONSUME = java.ROOT / "tests" / "compat" / "foreign" / "java" / "ShareConsume.java"
SECONDS_MAX = 30
"""Far less than the time-outs of the consumers, much more than they take."""


@pytest.fixture
def filled(broker: ServerProcess, topic: str) -> Iterator[str]:
    """A topic that is there, so that nothing else is in the way."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS_MAX)
    yield topic
    admin.delete_topics([topic])[topic].result(SECONDS_MAX)


def poll_for_long(consumer: ShareConsumer) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        assert not consumer.poll(0.5)


def test_librdkafka_fails(broker: ServerProcess, filled: str) -> None:
    consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap, "group.id": f"{filled}-share"})
    consumer.subscribe([filled])
    with pytest.raises(KafkaException) as failed:
        poll_for_long(consumer)
    error = failed.value.args[0]
    assert error.code() == KafkaError.UNSUPPORTED_VERSION
    assert error.fatal()
    assert "ShareGroupHeartbeat" in error.str()
    consumer.close()


def test_javas_consumer_fails(broker: ServerProcess, filled: str) -> None:
    said = java.run(str(SHARE_CONSUME), broker.bootstrap, filled, timeout_s=SECONDS_MAX)
    assert said.lines() == [
        "UnsupportedVersionException: The cluster does not support the share group protocol. To use share "
        "groups, the cluster must have the share group protocol enabled."
    ]


def test_the_console_tool_ends(broker: ServerProcess, filled: str) -> None:
    """It logs the consumer's error and says how much it read; it would wait for ten minutes."""
    said = java.run(
        "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
        *("--bootstrap-server", broker.bootstrap, "--topic", filled, "--group", f"{filled}-share"),
        *("--timeout-ms", "600000"),
        timeout_s=SECONDS_MAX,
    )
    assert said.out == ""
    assert "Processed a total of 0 messages" in said.err
