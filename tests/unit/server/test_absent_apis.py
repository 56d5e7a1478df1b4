"""APIs that tools call and that mean little here: answered as Kafka answers them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chronik.metadata.commands import CLIENT_METRICS_RESOURCE, GROUP_RESOURCE
from chronik.model import ErrorCode
from chronik.wire.api import ApiKey
from tests.unit.server.live import Live, live

BROKER, BROKER_LOGGER, TOPIC = 4, 8, 2


async def test_replicas_stay_in_the_one_directory(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders", 2)
        described = await node.call(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=None)
        here = described.results[0].log_dir

        async def move(path: str, *partitions: int) -> list[ErrorCode]:
            topics = [{"name": "orders", "partitions": list(partitions)}]
            answer = await node.call(
                ApiKey.ALTER_REPLICA_LOG_DIRS, 2, dirs=[{"path": path, "topics": topics}]
            )
            return [ErrorCode(one.error_code) for one in answer.results[0].partitions]

        assert await move(here, 0, 1, 9) == [ErrorCode.none, ErrorCode.none, ErrorCode.replica_not_available]
        assert await move("/elsewhere", 0) == [ErrorCode.log_dir_not_found]


async def resources(node: Live, version: int, *kinds: int) -> list[tuple[int, str]]:
    fields: dict[str, Any] = {"resource_types": list(kinds)} if version else {}
    answer = await node.call(ApiKey.LIST_CONFIG_RESOURCES, version, **fields)
    assert answer.error_code is ErrorCode.none
    if version == 0:
        return [(CLIENT_METRICS_RESOURCE, one.resource_name) for one in answer.config_resources]
    return [(one.resource_type, one.resource_name) for one in answer.config_resources]


async def test_resources_with_configs_are_listed(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("orders")
        for kind, name, key, value in (
            (CLIENT_METRICS_RESOURCE, "latency", "metrics", "org.apache"),
            (GROUP_RESOURCE, "billing", "consumer.session.timeout.ms", "50000"),
        ):
            configs = [{"name": key, "config_operation": 0, "value": value}]
            change = {"resource_type": kind, "resource_name": name, "configs": configs}
            answer = await node.call(
                ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[change], validate_only=False
            )
            assert answer.responses[0].error_code is ErrorCode.none
        metrics, group = (CLIENT_METRICS_RESOURCE, "latency"), (GROUP_RESOURCE, "billing")
        assert await resources(node, 0) == [metrics]
        assert await resources(node, 1, GROUP_RESOURCE) == [group]
        everything = [(TOPIC, "orders"), (BROKER_LOGGER, "1"), (BROKER, "1"), metrics, group]
        assert await resources(node, 1) == everything
        answer = await node.call(ApiKey.LIST_CONFIG_RESOURCES, 1, resource_types=[99])
        assert answer.error_code is ErrorCode.unsupported_version


async def test_features_stay_at_their_level(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        name, feature = next(iter(node.node.parts.services.features.items()))

        async def update(version: int, feature_name: str, level: int) -> ErrorCode:
            how = {"upgrade_type": 1} if version else {"allow_downgrade": False}
            wanted = [{"feature": feature_name, "max_version_level": level, **how}]
            answer = await node.call(ApiKey.UPDATE_FEATURES, version, feature_updates=wanted, timeout=1_000)
            if version < 2:
                done = [feature_name] if answer.error_code is ErrorCode.none else []
                assert [one.feature for one in answer.results] == done
            return ErrorCode(answer.error_code)

        for version in (0, 1, 2):
            assert await update(version, name, feature.level) is ErrorCode.none
            assert await update(version, name, feature.level + 1) is ErrorCode.invalid_update_version
            assert await update(version, "nonsense", 1) is ErrorCode.invalid_update_version


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        (ApiKey.SHARE_GROUP_HEARTBEAT, {"group_id": "g", "member_id": "m", "member_epoch": 0}),
        (ApiKey.SHARE_FETCH, {"group_id": "g", "member_id": "m", "share_session_epoch": 0}),
        (ApiKey.SHARE_ACKNOWLEDGE, {"group_id": "g", "member_id": "m", "share_session_epoch": 1}),
    ],
)
async def test_a_share_consumer_is_told_that_there_are_no_share_groups(
    tmp_path: Path, api: ApiKey, fields: dict[str, Any]
) -> None:
    async with live(tmp_path) as node:
        versions = await node.call(
            ApiKey.API_VERSIONS, 3, client_software_name="t", client_software_version="1"
        )
        assert api in {one.api_key for one in versions.api_keys}  # else the client waits in silence
        assert (await node.call(api, 1, **fields)).error_code is ErrorCode.unsupported_version
