"""KIP-714: a real client finds that its metrics are wanted, and pushes them."""

from __future__ import annotations

import time
import urllib.request

import confluent_kafka
from prometheus_client.parser import text_string_to_metric_families

from chronik.wire.api import ApiKey
from tests.node import ChronikNode
from tests.process import ServerProcess
from tests.wire import WireClient

CLIENT_METRICS = 16
DEADLINE_S = 60


def change(broker: ChronikNode, operation: int, **values: str) -> None:
    client = WireClient(broker.kafka_port)
    configs = [
        {"name": key.replace("_", "."), "config_operation": operation, "value": value}
        for key, value in values.items()
    ]
    resource = {"resource_type": CLIENT_METRICS, "resource_name": "compat", "configs": configs}
    answer = client.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False}
    )
    assert answer.responses[0].error_code == 0
    client.close()


def pushes(broker: ChronikNode) -> dict[str, float]:
    """Pushes so far, by result."""
    url = f"http://127.0.0.1:{broker.settings['http_port']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        sample.labels["result"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == "chronik_telemetry_pushes_total"
    }


def test_librdkafka_pushes_its_metrics(broker: ServerProcess, topic: str, only_chronik: None) -> None:
    assert isinstance(broker, ChronikNode)
    wanted = {"metrics": "*", "interval_ms": "200", "match": "client_id=pushing"}
    change(broker, 0, **wanted)
    try:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "client.id": "pushing"})
        deadline = time.monotonic() + DEADLINE_S
        while pushes(broker).get("none", 0) < 3:
            assert time.monotonic() < deadline, pushes(broker)
            producer.produce(topic, b"value")
            producer.flush(DEADLINE_S)
        producer.close()
        assert set(pushes(broker)) == {"none"}
    finally:
        change(broker, 1, **dict.fromkeys(wanted, ""))
