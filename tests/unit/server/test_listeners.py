"""Several listeners: what each asks for, where it says it is, and which one is the nodes' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chronik.client.apis import DESCRIBE_CLUSTER, FIND_COORDINATOR, METADATA
from chronik.client.options import BrokerAddress
from chronik.config import ConfigError, Settings
from chronik.server.listeners import inter_broker_listener, listener_specs, listeners_of_nodes
from chronik.server.tls import client_context
from chronik.testing import free_ports
from tests.tls import make_certificate
from tests.unit.server.test_login import address, closed, login, opened


def own(**settings: object) -> str:
    given = Settings(
        listeners="INNER://10.0.0.1:9094",
        listener_security_protocol_map="INNER:SASL_SSL",
        kafka_tls_cert=Path("cert.pem"),
        cluster_secret="secret",
        **settings,  # type: ignore[arg-type]
    )
    found = inter_broker_listener(given, listener_specs(given))
    return f"{found.endpoint} at {found.reachable_here}"


def test_it_is_that_of_kafka_port_unless_another_is_named() -> None:
    assert own(bind="0.0.0.0") == "kafka at 127.0.0.1"
    assert own(inter_broker_listener_name="INNER") == "kafka.INNER at 10.0.0.1"


def test_one_that_is_not_there_is_told() -> None:
    with pytest.raises(ConfigError, match="there is no listener OUTER, only KAFKA, INNER"):
        own(inter_broker_listener_name="OUTER")


def of_nodes(**settings: object) -> set[str]:
    given = Settings(
        listeners="INNER://10.0.0.1:9094,OUTER://10.0.0.1:9095",
        kafka_tls_cert=Path("cert.pem"),
        cluster_secret="secret",
        **{"listener_security_protocol_map": "INNER:SASL_SSL,OUTER:SASL_SSL", **settings},  # type: ignore[arg-type]
    )
    return set(listeners_of_nodes(given, listener_specs(given)))


def test_nodes_log_in_as_such_on_their_own_listener_only() -> None:
    assert of_nodes(inter_broker_listener_name="INNER") == {"INNER"}
    assert of_nodes(authorizer=True) == {"KAFKA"}
    moving = {"inter_broker_listener_name": "INNER", "inter_broker_listeners_accepted": "KAFKA"}
    assert of_nodes(**moving) == {"INNER", "KAFKA"}
    with pytest.raises(ConfigError, match="there is no listener NOWHERE"):
        of_nodes(authorizer=True, inter_broker_listeners_accepted="NOWHERE")


def test_while_their_own_listener_is_open_nodes_that_moved_on_come_by_any() -> None:
    assert of_nodes() == {"KAFKA", "INNER", "OUTER"}


async def test_each_protocol_at_once_and_each_says_its_own_address(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    protocols = {"OPEN": "PLAINTEXT", "SEALED": "SSL", "NAMED": "SASL_PLAINTEXT", "CLIENTS": "SASL_SSL"}
    told = {
        name: BrokerAddress(f"{name.lower()}.example", 1000 + len(name)) for name in (*protocols, "KAFKA")
    }
    ports = dict(zip(protocols, free_ports(4), strict=True))
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "listener_security_protocol_map": ",".join(f"{name}:{what}" for name, what in protocols.items()),
        "advertised_listeners": ",".join(f"{name}://{where}" for name, where in told.items()),
        "kafka_tls_cert": cert,
        "kafka_tls_key": key,
    }
    async with closed(tmp_path, **settings) as node:
        await node.find("g")
        for name, protocol in {"KAFKA": "PLAINTEXT", **protocols}.items():
            given: dict[str, Any] = {}
            if protocol.endswith("SSL"):
                given["tls"] = client_context(cert)
            if protocol.startswith("SASL"):
                given["login"] = login()
            connection = await opened(address(node, name), **given)
            cluster = await connection.request(DESCRIBE_CLUSTER, {})
            metadata = await connection.request(METADATA, {"topics": None})
            wanted = {"key": "g", "key_type": 0, "coordinator_keys": ["g"]}
            found = await connection.request(FIND_COORDINATOR, wanted)
            coordinators = getattr(found, "coordinators", None) or [found]
            seen = {
                BrokerAddress(one.host, one.port)
                for one in (*cluster.brokers, *metadata.brokers, *coordinators)
            }
            assert seen == {told[name]}, name
            connection.close()
