"""Broker configs whose values are settings of the node: shown as they are, and not taken as changed."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from chronik.config import table
from chronik.metadata.commands import BROKER_RESOURCE, TOPIC_RESOURCE
from chronik.metadata.fixed_configs import FIXED, SETTING_OF
from chronik.model import ErrorCode, Limits
from chronik.server import listener as listener_module
from chronik.server.connection_limits import LIMIT_SETTINGS, ConnectionLimits, is_of_this_machine
from chronik.wire.api import ApiKey
from chronik.wire.schema import encode_request
from tests.unit.server.harness import Harness
from tests.unit.server.live import live
from tests.unit.server.test_config_handlers import DELETE, SET, change, describe
from tests.unit.server.test_login import address, closed

HOST = "127.0.0.1"
STATIC = 4


def shown(harness: Harness) -> dict[str, Any]:
    return {config.name: config for config in describe(harness, BROKER_RESOURCE, "1").configs}


def test_settings_are_shown_under_kafkas_names() -> None:
    harness = Harness(
        authorizer=True,
        cluster_secret="a secret of the nodes",
        connections_max_reauth_ms=60_000,
        delegation_token_secret_key="do not show me",
        delegation_token_max_lifetime_ms=7_000,
        delegation_token_expiry_time_ms=6_000,
        kafka_tls_cert=Path("/tls/chain.pem"),
        kafka_tls_ca=Path("/tls/ca.pem"),
        kafka_tls_client_auth="required",
        listeners="OUTSIDE://0.0.0.0:9443",
        listener_security_protocol_map="KAFKA:SASL_PLAINTEXT,OUTSIDE:SASL_SSL",
        sasl_enabled_mechanisms="SCRAM-SHA-512,OAUTHBEARER",
        sasl_oauthbearer_jwks="/keys.json",
        sasl_oauthbearer_expected_issuer="https://issuer",
        sasl_oauthbearer_expected_audience="chronik",
        sasl_oauthbearer_clock_skew_seconds=5,
        sasl_oauthbearer_sub_claim_name="name",
        ssl_principal_mapping_rules="RULE:^CN=(.*)$/$1/,DEFAULT",
    )
    found = shown(harness)
    expected = {
        "advertised.listeners": "KAFKA://host-1:9092",
        "authorizer.class.name": "chronik",
        "connections.max.reauth.ms": "60000",
        "delegation.token.expiry.time.ms": "6000",
        "delegation.token.max.lifetime.ms": "7000",
        "inter.broker.listener.name": "KAFKA",
        "listener.security.protocol.map": "KAFKA:SASL_PLAINTEXT,OUTSIDE:SASL_SSL",
        "log.dir": "/data",
        "log.dirs": "/data",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.clock.skew.seconds": "5",
        "sasl.oauthbearer.expected.audience": "chronik",
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        "sasl.oauthbearer.jwks.endpoint.url": "/keys.json",
        "sasl.oauthbearer.sub.claim.name": "name",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "ssl.client.auth": "required",
        "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
        "ssl.keystore.location": "/tls/chain.pem",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/,DEFAULT",
        "ssl.truststore.location": "/tls/ca.pem",
    }
    assert {name: found[name].value for name in expected} == expected
    assert {found[name].config_source for name in expected} == {STATIC}
    assert all(found[name].read_only for name in expected)
    assert not any(found[name].documentation.startswith("Without effect") for name in expected)
    assert found["listeners"].value.split(",")[1] == "OUTSIDE://0.0.0.0:9443"
    key = found["delegation.token.secret.key"]
    assert (key.value, key.is_sensitive, key.config_source) == (None, True, STATIC)


@pytest.mark.parametrize("name", sorted(one.name for one in FIXED))
def test_a_change_of_a_setting_is_refused_and_names_it(name: str) -> None:
    harness = Harness()
    for broker in ("", "1"):
        result = change(harness, BROKER_RESOURCE, broker, (name, SET, "1"))
        assert result.error_code == ErrorCode.invalid_request
        assert name in result.error_message
        assert SETTING_OF.get(name, name) in result.error_message
    assert describe(harness, BROKER_RESOURCE, "").configs == ()


def test_every_setting_that_is_named_exists() -> None:
    assert {*SETTING_OF.values(), *LIMIT_SETTINGS.values()} <= table().keys()


def test_limits_of_connections_are_settings_until_a_config_says_otherwise() -> None:
    harness = Harness()
    limits = Limits(connections_max=100, connections_possible=400, connections_per_ip_max=50)
    assert ConnectionLimits.resolve(harness.services.broker_configs(), limits) == (100, 50, None)
    found = shown(harness)
    assert (found["max.connections"].value, found["max.connections"].config_source) == ("10000", STATIC)
    assert found["max.connection.creation.rate"].value == "2147483647"
    assert not found["max.connections"].read_only

    for name, value in (
        ("max.connections", "90"),
        ("max.connections.per.ip", "9"),
        ("max.connection.creation.rate", "8"),
    ):
        assert change(harness, BROKER_RESOURCE, "", (name, SET, value)).error_code == ErrorCode.none
    assert ConnectionLimits.resolve(harness.services.broker_configs(), limits) == (90, 9, 8)
    found = shown(harness)
    assert [(s.value, s.source) for s in found["max.connections"].synonyms] == [("90", 3), ("10000", STATIC)]

    change(harness, BROKER_RESOURCE, "1", ("max.connections", SET, "5000"))
    assert ConnectionLimits.resolve(harness.services.broker_configs(), limits).total == 400, (
        "what is possible"
    )
    change(harness, BROKER_RESOURCE, "1", ("max.connections", DELETE, None))
    assert change(harness, BROKER_RESOURCE, "1", ("max.connections", SET, "0")).error_code == (
        ErrorCode.invalid_config
    )


async def is_served(stack: contextlib.AsyncExitStack, port: int) -> bool:
    """Whether one more connection is taken, which stays open."""
    reader, writer = await asyncio.open_connection(HOST, port)
    stack.callback(writer.close)
    with contextlib.suppress(ConnectionError):
        writer.write(encode_request(ApiKey.API_VERSIONS, 0, 1, "test", {}))
        return await reader.read(4) != b""
    return False


async def test_a_limit_holds_for_the_next_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "is_of_this_machine", lambda *_: False)
    async with live(tmp_path) as node, contextlib.AsyncExitStack() as stack:
        listener, port = node.node.parts.listener, node.node.kafka_port

        async def is_taken() -> bool:
            return await is_served(stack, port)

        assert await is_taken()
        await node.set_broker_config("max.connections.per.ip", "1")
        assert not await is_taken(), "the second of this address"
        assert listener.stats.refused["per_ip"] == 1
        await node.set_broker_config("max.connections.per.ip", "2")
        assert await is_taken()
        await node.set_broker_config("max.connections", "2")
        assert not await is_taken()
        assert listener.stats.refused["max"] == 1


@pytest.mark.parametrize("is_far", [False, True])
async def test_a_limit_that_is_too_low_keeps_out_clients_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_far: bool
) -> None:
    """Else nobody could set it right: neither the nodes nor who sits at their machine."""
    if is_far:
        monkeypatch.setattr(listener_module, "is_of_this_machine", lambda *_: False)
    protocols = {"listener_security_protocol_map": "KAFKA:SASL_PLAINTEXT,CLIENTS:SASL_PLAINTEXT"}
    async with (
        closed(tmp_path, cluster_secret="of the nodes", **protocols) as node,
        contextlib.AsyncExitStack() as stack,
    ):
        of_nodes, of_clients = (address(node, name).port for name in ("KAFKA", "CLIENTS"))
        for name in LIMIT_SETTINGS:
            await node.set_broker_config(name, "1")
        for _ in range(3):
            assert await is_served(stack, of_nodes)
        assert await is_served(stack, of_clients) is not is_far


def test_its_own_address_is_of_this_machine() -> None:
    assert is_of_this_machine("192.0.2.1", "192.0.2.1")
    assert is_of_this_machine("127.0.0.2", "127.0.0.1")
    assert not is_of_this_machine("192.0.2.2", "192.0.2.1")


def test_hours_of_jitter() -> None:
    harness = Harness()
    harness.topic("orders")
    result = change(harness, BROKER_RESOURCE, "", ("log.roll.jitter.hours", SET, "2"))
    assert result.error_code == ErrorCode.none
    assert harness.services.topic_config("orders").segment_jitter_ms == 7_200_000
    (config,) = describe(harness, TOPIC_RESOURCE, "orders", keys=["segment.jitter.ms"]).configs
    assert config.value == "7200000"
