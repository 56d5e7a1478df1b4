"""Which listener is the nodes' own."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronik.config import ConfigError, Settings
from chronik.server.listeners import inter_broker_listener, listener_specs, listeners_of_nodes


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
