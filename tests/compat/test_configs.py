"""Configs of brokers, topics, groups and client metrics subscriptions, as admin clients see them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from chronik.client import ClientOptions, Cluster
from chronik.client.apis import Api
from chronik.wire.api import ApiKey
from tests import java
from tests.process import ServerProcess

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
INVALID_REQUEST, INVALID_CONFIG = 42, 40
SET, DELETE = 0, 1
ALTER = Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1)
DESCRIBE = Api(ApiKey.DESCRIBE_CONFIGS, 1, 4)


async def ask(broker: ServerProcess, api: Api, fields: Mapping[str, Any]) -> Any:
    async with Cluster(broker.bootstrap, ClientOptions(deadline_ms=30_000)) as client:
        return await client.on_any(api, fields)


async def alter(broker: ServerProcess, kind: int, name: str, **values: str | None) -> int:
    """The error code; names have dots where Python wants underscores, None deletes."""
    configs = [
        {
            "name": key.replace("_", "."),
            "config_operation": DELETE if value is None else SET,
            "value": value,
        }
        for key, value in values.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = await ask(broker, ALTER, {"resources": [resource], "validate_only": False})
    return int(answer.responses[0].error_code)


async def describe(broker: ServerProcess, kind: int, name: str) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    fields = {"resources": [resource], "include_synonyms": True, "include_documentation": False}
    return (await ask(broker, DESCRIBE, fields)).results[0]


async def shown(broker: ServerProcess, kind: int, name: str) -> dict[str, Any]:
    result = await describe(broker, kind, name)
    assert result.error_code == 0, result.error_message
    return {config.name: config for config in result.configs}


async def shown_as(broker: ServerProcess, name: str, value: str) -> Any:
    """A config of the broker, once it is shown with this value: Apache Kafka carries a change out later."""
    async with asyncio.timeout(30):
        while (found := (await shown(broker, BROKER, "1"))[name]).value != value:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


async def test_a_broker_config_that_only_apache_kafka_needs(broker: ServerProcess) -> None:
    name = "sasl.kerberos.min.time.before.relogin"

    assert await alter(broker, BROKER, "1", **{name: "58000"}) == 0
    found = await shown_as(broker, name, "58000")
    assert (found.config_source, found.config_type) == (2, 5)
    assert await alter(broker, BROKER, "1", **{name: None}) == 0
    await shown_as(broker, name, "60000")
    assert await alter(broker, BROKER, "1", **{name: "soon"}) in (INVALID_REQUEST, INVALID_CONFIG)


def test_what_is_read_at_start_only_is_refused(broker: ServerProcess) -> None:
    assert asyncio.run(alter(broker, BROKER, "1", process_roles="broker")) == INVALID_REQUEST


def test_every_config_is_shown_with_its_type(broker: ServerProcess, topic: str) -> None:
    found = asyncio.run(shown(broker, BROKER, "1"))
    assert len(found) > 300
    kinds = {name: found[name].config_type for name in ("log.retention.ms", "ssl.key.password", "listeners")}
    assert kinds == {"log.retention.ms": 5, "ssl.key.password": 9, "listeners": 2}
    password = found["ssl.key.password"]
    assert (password.value, password.is_sensitive) == (None, True)


async def test_configs_of_a_group(broker: ServerProcess, topic: str) -> None:
    before = (await shown(broker, GROUP, topic))["consumer.session.timeout.ms"]
    assert before.value == "45000"
    assert await alter(broker, GROUP, topic, consumer_session_timeout_ms="50000") == 0
    after = (await shown(broker, GROUP, topic))["consumer.session.timeout.ms"]
    assert (after.value, after.config_source) == ("50000", 8)
    assert await alter(broker, GROUP, topic, consumer_session_timeout_ms="1") == INVALID_CONFIG
    assert await alter(broker, GROUP, topic, nonsense="1") == INVALID_CONFIG
    assert await alter(broker, GROUP, topic, share_auto_offset_reset="earliest") == 0
    assert await alter(broker, GROUP, "", consumer_session_timeout_ms="50000") == INVALID_REQUEST
    assert (await describe(broker, GROUP, "")).error_code == INVALID_REQUEST


async def test_configs_of_a_subscription(broker: ServerProcess, topic: str) -> None:
    values = {"metrics": "org.apache.kafka.producer.", "interval_ms": "60000", "match": "client_id=app.*"}
    assert await alter(broker, CLIENT_METRICS, topic, **values) == 0
    found = await shown(broker, CLIENT_METRICS, topic)
    assert {name: one.value for name, one in found.items()} == {
        "metrics": "org.apache.kafka.producer.",
        "interval.ms": "60000",
        "match": "client_id=app.*",
    }
    assert {one.config_source for one in found.values()} == {7}
    assert await alter(broker, CLIENT_METRICS, topic, interval_ms="99") in (
        INVALID_REQUEST,
        INVALID_CONFIG,
    )
    assert await alter(broker, CLIENT_METRICS, topic, nonsense="1") == INVALID_REQUEST
    assert await alter(broker, CLIENT_METRICS, topic, match="colour=blue") == INVALID_CONFIG
    assert await alter(broker, CLIENT_METRICS, topic, match="client_id=(") == INVALID_CONFIG
    assert await alter(broker, CLIENT_METRICS, "", metrics="*") == INVALID_REQUEST


def test_the_table_of_kafkas_configs_is_what_its_jars_say() -> None:
    tool = java.ROOT / "tools" / "kafka_configs.py"
    checked = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
