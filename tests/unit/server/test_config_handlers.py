"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from chronik.metadata.commands import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from chronik.metadata.snapshot import decode_snapshot, encode_snapshot
from chronik.model import ErrorCode
from chronik.server import config_changes
from chronik.wire.api import ApiKey
from tests.unit.server.harness import Harness

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def describe(
    harness: Harness, resource_type: int, name: str, *, keys: list[str] | None = None, version: int = 4
) -> Any:
    response = harness.call(
        ApiKey.DESCRIBE_CONFIGS,
        version,
        resources=[{"resource_type": resource_type, "resource_name": name, "configuration_keys": keys}],
        include_synonyms=True,
        include_documentation=True,
    )
    return response.results[0]


def change(harness: Harness, resource_type: int, name: str, *configs: tuple[str, int, str | None]) -> Any:
    response = harness.call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        resources=[
            {
                "resource_type": resource_type,
                "resource_name": name,
                "configs": [
                    {"name": key, "config_operation": operation, "value": value}
                    for key, operation, value in configs
                ],
            }
        ],
    )
    return response.responses[0]


@pytest.mark.parametrize("version", range(1, 5))
def test_a_topics_configs_with_sources(version: int) -> None:
    harness = Harness(min_insync_replicas=2)
    harness.topic("orders", retention_ms="77")
    result = describe(harness, TOPIC_RESOURCE, "orders", version=version)
    assert result.error_code == ErrorCode.none
    shown = {config.name: config for config in result.configs}
    assert (shown["retention.ms"].value, shown["retention.ms"].config_source) == ("77", 1)
    assert (shown["min.insync.replicas"].value, shown["min.insync.replicas"].config_source) == ("2", 4)
    assert (shown["cleanup.policy"].value, shown["cleanup.policy"].config_source) == ("delete", 5)
    assert [(s.name, s.value, s.source) for s in shown["retention.ms"].synonyms] == [
        ("retention.ms", "77", 1),
        ("log.retention.ms", "604800000", 5),
    ]
    if version >= 3:
        assert shown["retention.ms"].config_type == 5
        assert shown["retention.ms"].documentation


def test_only_the_named_keys() -> None:
    harness = Harness()
    harness.topic("orders")
    result = describe(harness, TOPIC_RESOURCE, "orders", keys=["retention.ms", "nope"])
    assert [config.name for config in result.configs] == ["retention.ms"]


@pytest.mark.parametrize(
    ("resource_type", "name", "code"),
    [
        (TOPIC_RESOURCE, "missing", ErrorCode.unknown_topic_or_partition),
        (TOPIC_RESOURCE, "?", ErrorCode.invalid_topic_exception),
        (BROKER_RESOURCE, "9", ErrorCode.invalid_request),
        (16, "", ErrorCode.invalid_request),
        (32, "", ErrorCode.invalid_request),
        (8, "2", ErrorCode.invalid_request),
    ],
)
def test_what_cannot_be_described(resource_type: int, name: str, code: ErrorCode) -> None:
    assert describe(Harness(), resource_type, name).error_code == code


def test_a_brokers_configs() -> None:
    harness = Harness(default_partitions=6)
    shown = {config.name: config for config in describe(harness, BROKER_RESOURCE, "1").configs}
    assert (shown["num.partitions"].value, shown["num.partitions"].read_only) == ("6", True)
    assert shown["advertised.listeners"].value == "KAFKA://host-1:9092"
    assert shown["broker.rack"].value is None
    assert shown["broker.rack"].synonyms == ()  # a default of null is none, as in Kafka
    assert not shown["log.retention.ms"].read_only
    assert describe(harness, BROKER_RESOURCE, "").configs == ()


def test_changes_are_in_force_at_once_and_layered() -> None:
    harness = Harness()
    harness.topic("orders")
    services = harness.services
    assert (
        change(harness, BROKER_RESOURCE, "", ("log.retention.hours", SET, "1")).error_code == ErrorCode.none
    )
    assert services.topic_config("orders").retention_ms == 3_600_000
    change(harness, BROKER_RESOURCE, "1", ("log.retention.ms", SET, "50"))
    assert services.topic_config("orders").retention_ms == 50
    change(harness, TOPIC_RESOURCE, "orders", ("retention.ms", SET, "7"))
    assert services.topic_config("orders").retention_ms == 7
    (config,) = describe(harness, TOPIC_RESOURCE, "orders", keys=["retention.ms"]).configs
    assert [(s.name, s.value, s.source) for s in config.synonyms] == [
        ("retention.ms", "7", 1),
        ("log.retention.ms", "50", 2),
        ("log.retention.hours", "1", 3),
        ("log.retention.ms", "604800000", 5),
    ]
    assert [config.name for config in describe(harness, BROKER_RESOURCE, "").configs] == [
        "log.retention.hours"
    ]
    change(harness, TOPIC_RESOURCE, "orders", ("retention.ms", DELETE, None))
    change(harness, BROKER_RESOURCE, "1", ("log.retention.ms", DELETE, None))
    assert services.topic_config("orders").retention_ms == 3_600_000


def test_lists_are_appended_to_and_subtracted_from() -> None:
    harness = Harness()
    harness.topic("orders")

    def policy() -> str:
        return harness.store.state.topics["orders"].configs["cleanup.policy"]

    change(harness, TOPIC_RESOURCE, "orders", ("cleanup.policy", APPEND, "compact"))
    assert policy() == "delete,compact"
    change(harness, TOPIC_RESOURCE, "orders", ("cleanup.policy", SUBTRACT, "delete"))
    assert policy() == "compact"
    assert change(harness, TOPIC_RESOURCE, "orders", ("cleanup.policy", SUBTRACT, "compact")).error_code == (
        ErrorCode.invalid_config
    )


@pytest.mark.parametrize(
    ("resource_type", "name", "configs", "code"),
    [
        (TOPIC_RESOURCE, "orders", [("retention.ms", SET, "soon")], ErrorCode.invalid_config),
        (TOPIC_RESOURCE, "orders", [("retention.msec", SET, "5")], ErrorCode.invalid_config),
        (TOPIC_RESOURCE, "orders", [("retention.ms", SET, None)], ErrorCode.invalid_request),
        (TOPIC_RESOURCE, "orders", [("retention.ms", 9, "5")], ErrorCode.invalid_request),
        (TOPIC_RESOURCE, "orders", [("retention.ms", APPEND, "5")], ErrorCode.invalid_config),
        (
            TOPIC_RESOURCE,
            "orders",
            [("flush.ms", SET, "5"), ("flush.ms", SET, "6")],
            ErrorCode.invalid_request,
        ),
        (TOPIC_RESOURCE, "missing", [("retention.ms", SET, "5")], ErrorCode.unknown_topic_or_partition),
        (BROKER_RESOURCE, "9", [("log.retention.ms", SET, "5")], ErrorCode.invalid_request),
        (BROKER_RESOURCE, "1", [("num.partitions", SET, "5")], ErrorCode.invalid_request),
        (BROKER_RESOURCE, "1", [("log.retention.ms", SET, "x")], ErrorCode.invalid_config),
        (32, "group", [("x", SET, "5")], ErrorCode.invalid_config),
        (32, "", [("consumer.session.timeout.ms", SET, "50000")], ErrorCode.invalid_request),
        (32, "group", [("consumer.session.timeout.ms", SET, "44999")], ErrorCode.invalid_config),
        (32, "group", [("consumer.session.timeout.ms", SET, "60001")], ErrorCode.invalid_config),
        (32, "group", [("consumer.heartbeat.interval.ms", SET, "4999")], ErrorCode.invalid_config),
        (16, "sub", [("x", SET, "5")], ErrorCode.invalid_request),
        (16, "sub", [("match", SET, "client_id=(")], ErrorCode.invalid_config),
        (16, "sub", [("match", SET, "colour=blue")], ErrorCode.invalid_config),
        (16, "sub", [("interval.ms", SET, "99")], ErrorCode.invalid_config),
        (8, "1", [("x", SET, "5")], ErrorCode.invalid_config),
    ],
)
def test_invalid_changes_are_refused_with_a_message(
    resource_type: int, name: str, configs: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    harness = Harness()
    harness.topic("orders")
    result = change(harness, resource_type, name, *configs)
    assert result.error_code == code
    assert result.error_message
    assert harness.store.state.topics["orders"].configs == {}
    assert harness.store.state.broker_configs == {}


LAGS = ("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "9")


def test_values_that_contradict_each_other_are_refused() -> None:
    harness = Harness()
    harness.topic("orders")
    both = change(harness, TOPIC_RESOURCE, "orders", *LAGS)
    assert both.error_code is ErrorCode.invalid_config
    assert "min.compaction.lag.ms (10)" in both.error_message
    assert change(harness, TOPIC_RESOURCE, "orders", LAGS[0]).error_code is ErrorCode.none
    assert change(harness, TOPIC_RESOURCE, "orders", LAGS[1]).error_code is ErrorCode.invalid_config
    cleared = change(harness, TOPIC_RESOURCE, "orders", (LAGS[0][0], DELETE, None), LAGS[1])
    assert cleared.error_code is ErrorCode.none
    brokers = change(harness, BROKER_RESOURCE, "", ("log.cleaner.min.compaction.lag.ms", SET, "10"))
    assert brokers.error_code is ErrorCode.none
    own = change(harness, BROKER_RESOURCE, "1", ("log.cleaner.max.compaction.lag.ms", SET, "9"))
    assert own.error_code is ErrorCode.invalid_config
    created = harness.call(
        ApiKey.CREATE_TOPICS,
        7,
        topics=[
            {
                "name": "new",
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": [],
                "configs": [{"name": name, "value": value} for name, _, value in LAGS],
            }
        ],
        timeout=1_000,
    )
    assert created.topics[0].error_code is ErrorCode.invalid_config


def test_group_and_transaction_configs_are_shown_and_changed_live() -> None:
    harness = Harness(group_initial_rebalance_delay_ms=250, offsets_topic_partitions=7)
    services = harness.services
    shown = {config.name: config for config in describe(harness, BROKER_RESOURCE, "1").configs}
    assert (shown["group.initial.rebalance.delay.ms"].value, shown["offsets.retention.minutes"].value) == (
        "250",
        "10080",
    )
    assert (shown["offsets.topic.num.partitions"].value, shown["offsets.topic.num.partitions"].read_only) == (
        "7",
        True,
    )
    changes = {
        "group.min.session.timeout.ms": "100",
        "group.max.session.timeout.ms": "200",
        "group.initial.rebalance.delay.ms": "0",
        "group.max.size": "3",
        "group.consumer.session.timeout.ms": "7000",
        "group.consumer.heartbeat.interval.ms": "700",
        "group.consumer.max.size": "4",
        "group.consumer.assignors": "range",
        "offset.metadata.max.bytes": "5",
        "offsets.retention.minutes": "6",
        "offsets.retention.check.interval.ms": "60",
        "transaction.max.timeout.ms": "8",
        "transactional.id.expiration.ms": "9",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "10",
    }
    done = change(harness, BROKER_RESOURCE, "", *((name, SET, value) for name, value in changes.items()))
    assert done.error_code is ErrorCode.none
    groups, transactions = services.groups.config, services.transactions.config
    classic, consumer = groups.classic, groups.consumer
    assert (classic.session_timeout_ms_min, classic.session_timeout_ms_max) == (100, 200)
    assert (classic.initial_rebalance_delay_ms, classic.group_size_max) == (0, 3)
    assert (consumer.session_timeout_ms, consumer.heartbeat_interval_ms) == (7_000, 700)
    assert (consumer.group_size_max, consumer.assignors) == (4, ("range",))
    assert (groups.offset_metadata_bytes_max, groups.offsets_retention_ms) == (5, 360_000)
    assert groups.expiry_interval_ms == 60
    assert (transactions.timeout_ms_max, transactions.expiration_ms, transactions.expiry_interval_ms) == (
        8,
        9,
        10,
    )
    refused = change(harness, BROKER_RESOURCE, "1", ("group.max.session.timeout.ms", SET, "99"))
    assert refused.error_code is ErrorCode.invalid_config
    assert "group.min.session.timeout.ms" in refused.error_message


@pytest.mark.parametrize("version", range(3))
def test_the_old_alter_configs_replaces_everything(version: int) -> None:
    harness = Harness()
    harness.topic("orders", retention_ms="77", segment_bytes="1000")

    def alter(validate_only: bool, *resources: tuple[int, str, dict[str, str | None]]) -> list[ErrorCode]:
        response = harness.call(
            ApiKey.ALTER_CONFIGS,
            version,
            resources=[
                {
                    "resource_type": kind,
                    "resource_name": name,
                    "configs": [{"name": key, "value": value} for key, value in configs.items()],
                }
                for kind, name, configs in resources
            ],
            validate_only=validate_only,
        )
        return [result.error_code for result in response.responses]

    change_it = (TOPIC_RESOURCE, "orders", {"retention.ms": "5"})
    assert alter(True, change_it) == [ErrorCode.none]
    assert harness.store.state.topics["orders"].configs["segment.bytes"] == "1000"
    assert alter(False, change_it, change_it) == [ErrorCode.invalid_request] * 2
    assert alter(False, change_it, (TOPIC_RESOURCE, "x", {"a": None})) == [
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert harness.store.state.topics["orders"].configs == {"retention.ms": "5"}


def test_a_config_without_effect_is_stored_and_shown() -> None:
    """As librdkafka's and franz-go's own tests set it."""
    harness = Harness()
    name = "sasl.kerberos.min.time.before.relogin"
    assert change(harness, BROKER_RESOURCE, "1", (name, SET, "58000")).error_code == ErrorCode.none
    (shown,) = describe(harness, BROKER_RESOURCE, "1", keys=[name]).configs
    assert (shown.value, shown.config_source, shown.read_only) == ("58000", 2, False)
    assert shown.documentation.startswith("Without effect")


def test_a_password_is_stored_and_never_shown() -> None:
    harness = Harness()
    name = "ssl.keystore.password"
    assert change(harness, BROKER_RESOURCE, "", (name, SET, "secret")).error_code == ErrorCode.none
    for broker in ("", "1"):
        (shown,) = describe(harness, BROKER_RESOURCE, broker, keys=[name]).configs
        assert (shown.value, shown.is_sensitive) == (None, True)
        assert {synonym.value for synonym in shown.synonyms} == {None}


def test_a_groups_own_values_are_over_the_brokers() -> None:
    harness = Harness()
    name = "consumer.session.timeout.ms"
    groups = harness.services.groups
    assert groups.config.consumer_of("orders").session_timeout_ms == 45_000
    change(harness, BROKER_RESOURCE, "", (f"group.{name}", SET, "50000"))
    assert change(harness, GROUP_RESOURCE, "orders", (name, SET, "60000")).error_code == ErrorCode.none
    assert groups.config.consumer_of("orders").session_timeout_ms == 60_000
    assert groups.config.consumer_of("others").session_timeout_ms == 50_000
    (shown,) = describe(harness, GROUP_RESOURCE, "orders", keys=[name]).configs
    assert [(s.name, s.value, s.source) for s in shown.synonyms] == [
        (name, "60000", 8),
        (f"group.{name}", "50000", 3),
        (f"group.{name}", "45000", 5),
    ]
    change(harness, GROUP_RESOURCE, "orders", (name, DELETE, None))
    assert harness.services.state.group_configs == {}


def test_a_subscription_is_stored_shown_and_deleted() -> None:
    harness = Harness()
    configs = (("metrics", SET, "org.apache.kafka.producer."), ("match", SET, "client_id=app.*"))
    assert change(harness, CLIENT_METRICS_RESOURCE, "sub", *configs).error_code == ErrorCode.none
    change(harness, CLIENT_METRICS_RESOURCE, "sub", ("metrics", APPEND, "org.apache.kafka.consumer."))
    shown = {
        config.name: (config.value, config.config_source)
        for config in describe(harness, CLIENT_METRICS_RESOURCE, "sub").configs
    }
    assert shown == {
        "interval.ms": ("300000", 5),
        "match": ("client_id=app.*", 7),
        "metrics": ("org.apache.kafka.producer.,org.apache.kafka.consumer.", 7),
    }
    change(harness, CLIENT_METRICS_RESOURCE, "sub", ("metrics", DELETE, None), ("match", DELETE, None))
    assert harness.services.state.client_metrics == {}


def test_resources_with_configs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_changes, "RESOURCES_MAX", 1)
    harness = Harness()
    value = ("consumer.session.timeout.ms", SET, "60000")
    assert change(harness, GROUP_RESOURCE, "one", value).error_code == ErrorCode.none
    assert change(harness, GROUP_RESOURCE, "two", value).error_code == ErrorCode.policy_violation
    assert change(harness, GROUP_RESOURCE, "one", value).error_code == ErrorCode.none


def test_a_snapshot_keeps_configs_of_every_kind() -> None:
    harness = Harness()
    change(harness, GROUP_RESOURCE, "orders", ("consumer.session.timeout.ms", SET, "60000"))
    change(harness, CLIENT_METRICS_RESOURCE, "sub", ("metrics", SET, "*"))
    again = decode_snapshot(encode_snapshot(harness.services.state))
    assert again.group_configs == {"orders": {"consumer.session.timeout.ms": "60000"}}
    assert again.client_metrics == {"sub": {"metrics": "*"}}


def test_levels_of_loggers_are_configs_of_their_node() -> None:
    """KIP-412, as `kafka-configs --entity-type broker-loggers` uses it."""
    harness = Harness()
    node, name = str(harness.services.settings.node_id), "chronik.raft.core"
    former = logging.getLogger(name).level
    try:
        assert change(harness, BROKER_LOGGER_RESOURCE, node, (name, SET, "DEBUG")).error_code == 0
        assert logging.getLogger(name).level == logging.DEBUG
        result = describe(harness, BROKER_LOGGER_RESOURCE, node, keys=[name, "root"])
        assert [(one.name, one.config_source) for one in result.configs] == [("root", 6), (name, 6)]
        assert result.configs[1].value == "DEBUG"
        for wrong, code in (
            ((name, SET, "LOUD"), ErrorCode.invalid_config),
            (("chronik.nowhere", SET, "DEBUG"), ErrorCode.invalid_config),
            (("root", DELETE, None), ErrorCode.invalid_request),
            ((name, APPEND, "INFO"), ErrorCode.invalid_request),
        ):
            assert change(harness, BROKER_LOGGER_RESOURCE, node, wrong).error_code == code, wrong
        assert logging.getLogger(name).level == logging.DEBUG, "a change that was refused was made"
        assert change(harness, BROKER_LOGGER_RESOURCE, "77", (name, SET, "INFO")).error_code == 42
        assert describe(harness, BROKER_LOGGER_RESOURCE, "77").error_code == ErrorCode.invalid_request
        assert change(harness, BROKER_LOGGER_RESOURCE, node, (name, DELETE, None)).error_code == 0
        assert logging.getLogger(name).level == logging.NOTSET
    finally:
        logging.getLogger(name).setLevel(former)
