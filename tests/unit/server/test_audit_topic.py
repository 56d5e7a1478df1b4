"""The audit log's topic: nobody but a super user changes its configs, and nobody makes it forget (X06)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from chronik.metadata.commands import TOPIC_RESOURCE, SetConfigs
from chronik.model import AUDIT_TOPIC, ErrorCode
from chronik.security.acls import Operation, ResourceType
from chronik.server.access import EVERYTHING, Access, Granted
from chronik.server.audit_topic import audit_topic_configs
from chronik.server.dispatch import Connection
from chronik.server.internal_topics import mend_internal_topics
from chronik.wire.api import ApiKey, parse_request_header
from chronik.wire.schema import decode_response, encode_request
from tests.unit.server.harness import Harness, answer

APIS = (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS)
HARMLESS = {**audit_topic_configs(3), "retention.ms": "200000000"}


def audited(configs: Mapping[str, str] | None = None) -> Harness:
    harness = Harness()
    harness.topic(AUDIT_TOPIC, (1, 2, 3), **(audit_topic_configs(3) if configs is None else configs))
    return harness


def alter(harness: Harness, api: ApiKey, configs: Mapping[str, str], access: Access = EVERYTHING) -> Any:
    shown = [{"name": name, "value": value} for name, value in configs.items()]
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": AUDIT_TOPIC, "configs": shown}
    frame = encode_request(api, 1, 1, "test", {"resources": [resource]})
    header, offset = parse_request_header(frame, 4)
    connection = Connection(peer_host="10.0.0.9", listener_host="", listener_port=1, access=access)
    response = asyncio.run(answer(harness.dispatcher, header, frame, offset, connection))
    assert response is not None
    return decode_response(api, 1, response, 4)[1].responses[0]


@pytest.mark.parametrize("api", APIS)
def test_a_right_on_every_topic_is_none_on_the_audit_log(api: ApiKey) -> None:
    harness = audited()
    before = harness.services.state.topics[AUDIT_TOPIC].configs
    on_all = Granted("User:ada", "h", [Operation.ALTER_CONFIGS], [ResourceType.TOPIC])
    assert alter(harness, api, HARMLESS, on_all).error_code == ErrorCode.topic_authorization_failed
    assert harness.services.state.topics[AUDIT_TOPIC].configs == before
    assert alter(harness, api, HARMLESS).error_code == ErrorCode.none
    assert harness.services.state.topics[AUDIT_TOPIC].configs["retention.ms"] == "200000000"


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "1"),
        ("retention.bytes", "1"),
        ("segment.ms", "1"),
        ("segment.bytes", "14"),
        ("max.message.bytes", "1"),
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
        ("cleanup.policy", ""),
        ("min.insync.replicas", "4"),
    ],
)
def test_no_super_user_makes_it_forget_or_stop(api: ApiKey, name: str, value: str) -> None:
    harness = audited()
    before = harness.services.state.topics[AUDIT_TOPIC].configs
    refused = alter(harness, api, {**HARMLESS, name: value})
    assert refused.error_code == ErrorCode.invalid_config
    assert name in refused.error_message
    assert harness.services.state.topics[AUDIT_TOPIC].configs == before


def test_no_bound_falls_back_to_what_the_brokers_say() -> None:
    harness = audited()
    rest = {name: value for name, value in HARMLESS.items() if name != "retention.ms"}
    refused = alter(harness, ApiKey.ALTER_CONFIGS, rest)  # what it does not name is dropped
    assert (refused.error_code, "retention.ms" in refused.error_message) == (ErrorCode.invalid_config, True)
    keep_all = {**HARMLESS, "retention.ms": "-1", "retention.bytes": "-1"}
    assert alter(harness, ApiKey.ALTER_CONFIGS, keep_all).error_code == ErrorCode.none


def test_one_that_an_older_node_made_is_bounded_at_the_next_start(caplog: pytest.LogCaptureFixture) -> None:
    kept = {"cleanup.policy": "delete", "retention.ms": str(30 * 24 * 3_600_000), "segment.bytes": "67108864"}
    harness = audited({**kept, "segment.ms": "1"})
    asyncio.run(mend_internal_topics(harness.services))
    configs = harness.services.state.topics[AUDIT_TOPIC].configs
    assert configs == {**audit_topic_configs(3), **kept}
    assert configs["retention.bytes"] == str(1024**3)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    asyncio.run(mend_internal_topics(harness.services))
    assert len(caplog.records) == 1


def test_one_that_was_emptied_by_its_configs_is_mended() -> None:
    harness = audited()
    harm = {"retention.ms": "1", "cleanup.policy": "compact", "min.insync.replicas": "9"}
    harness.submit(SetConfigs(resource_type=TOPIC_RESOURCE, name=AUDIT_TOPIC, values={**harm}))
    asyncio.run(mend_internal_topics(harness.services))
    assert harness.services.state.topics[AUDIT_TOPIC].configs == audit_topic_configs(3)
