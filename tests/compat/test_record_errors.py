"""What the producer of each record hears when some of a batch are invalid (KIP-467)."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, NewTopic

from tests import java
from tests.process import ServerProcess

PROGRAM = java.ROOT / "tests" / "compat" / "foreign" / "java" / "RecordErrors.java"
DEADLINE_S = 60


def test_java_names_the_records_without_a_key(broker: ServerProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    new = NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([new])[topic].result(DEADLINE_S)
    invalid, others = java.run(str(PROGRAM), broker.bootstrap, topic).lines()
    assert invalid.startswith("10 InvalidRecordException: Compacted topic cannot accept message without key")
    assert invalid.endswith(" [3, 13, 23, 33, 43, 53, 63, 73, 83, 93]")
    assert others.startswith(
        "90 KafkaException: Failed to append record because it was part of a batch which had one more more "
        "invalid records [0, 1, 2, 4,"
    )
