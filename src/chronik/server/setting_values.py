"""The values of a node's settings under Kafka's names for them, as DescribeConfigs shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from chronik.config import Settings
from chronik.metadata.config_def import INT_MAX
from chronik.model import Limits
from chronik.server.coordinators import MIN_INSYNC_REPLICAS, REPLICATION_FACTOR
from chronik.server.dispatch import Connection
from chronik.server.internal_topics import CONFIGS
from chronik.server.listeners import ListenerSpec, inter_broker_listener, listener_specs
from chronik.server.services import Services
from chronik.server.tls import PROTOCOLS as TLS_PROTOCOLS

__all__ = ["values_of_settings"]


def values_of_settings(services: Services, connection: Connection) -> dict[str, str]:
    """Values by the names of the configs; what is not set has no entry. `connection` is the one that asks."""
    settings = services.settings
    found = {
        **_topics(settings),
        **_logins(settings),
        **_tls(settings),
        **_limits(services.limits, settings),
        **_listeners(services, connection),
        "broker.id": str(settings.node_id),
        "group.consumer.migration.policy": "disabled",
        "log.dir": str(settings.data_dir.absolute()),
        "log.dirs": str(settings.data_dir.absolute()),
        "node.id": str(settings.node_id),
    }
    if settings.rack is not None:
        found["broker.rack"] = settings.rack
    broker = services.state.brokers.get(settings.node_id)
    if broker is not None and "http" in broker.endpoints:
        http = broker.endpoints["http"]
        found["chronik.http.address"] = f"{settings.http_scheme}://{http.host}:{http.port}"
    return found


def _topics(settings: Settings) -> dict[str, str]:
    return {
        "auto.create.topics.enable": str(settings.auto_create_topics).lower(),
        "default.replication.factor": str(settings.default_replication_factor),
        "num.partitions": str(settings.default_partitions),
        "offsets.topic.num.partitions": str(settings.offsets_topic_partitions),
        "offsets.topic.replication.factor": str(REPLICATION_FACTOR),
        "offsets.topic.segment.bytes": CONFIGS["segment.bytes"],
        "replica.lag.time.max.ms": str(settings.replica_lag_time_max_ms),
        "transaction.state.log.min.isr": str(MIN_INSYNC_REPLICAS),
        "transaction.state.log.num.partitions": str(settings.transactions_topic_partitions),
        "transaction.state.log.replication.factor": str(REPLICATION_FACTOR),
        "transaction.state.log.segment.bytes": CONFIGS["segment.bytes"],
    }


def _logins(settings: Settings) -> dict[str, str]:
    known = {
        "authorizer.class.name": "chronik" if settings.authorizer else "",
        "connections.max.reauth.ms": str(settings.connections_max_reauth_ms),
        "delegation.token.expiry.time.ms": str(settings.delegation_token_expiry_time_ms),
        "delegation.token.max.lifetime.ms": str(settings.delegation_token_max_lifetime_ms),
        "delegation.token.secret.key": settings.delegation_token_secret_key,
        "sasl.enabled.mechanisms": settings.sasl_enabled_mechanisms,
        "sasl.oauthbearer.clock.skew.seconds": str(settings.sasl_oauthbearer_clock_skew_seconds),
        "sasl.oauthbearer.expected.audience": settings.sasl_oauthbearer_expected_audience,
        "sasl.oauthbearer.expected.issuer": settings.sasl_oauthbearer_expected_issuer,
        "sasl.oauthbearer.jwks.endpoint.url": settings.sasl_oauthbearer_jwks,
        "sasl.oauthbearer.sub.claim.name": settings.sasl_oauthbearer_sub_claim_name,
    }
    return {name: value for name, value in known.items() if value is not None}


def _tls(settings: Settings) -> dict[str, str]:
    found = {
        "ssl.client.auth": settings.kafka_tls_client_auth,
        "ssl.enabled.protocols": ",".join(TLS_PROTOCOLS),
        "ssl.keystore.type": "PEM",
        "ssl.principal.mapping.rules": settings.ssl_principal_mapping_rules or "DEFAULT",
        "ssl.truststore.type": "PEM",
    }
    if settings.kafka_tls_cert is not None:
        found["ssl.keystore.location"] = str(settings.kafka_tls_cert)
    if settings.kafka_tls_ca is not None:
        found["ssl.truststore.location"] = str(settings.kafka_tls_ca)
    return found


def _limits(limits: Limits, settings: Settings) -> dict[str, str]:
    return {
        "max.connection.creation.rate": str(limits.connections_per_second_max or INT_MAX),
        "max.connections": str(limits.connections_max),
        "max.connections.per.ip": str(limits.connections_per_ip_max),
        "socket.request.max.bytes": str(settings.frame_bytes_max),
    }


def _listeners(services: Services, connection: Connection) -> dict[str, str]:
    settings = services.settings
    specs = listener_specs(settings)
    own = inter_broker_listener(settings, specs)
    broker = services.state.brokers.get(settings.node_id)
    told = {} if broker is None else broker.endpoints

    def address(host: str, port: int) -> str:
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def bound(spec: ListenerSpec) -> str | None:
        if spec.endpoint == connection.endpoint:
            return address(spec.host, connection.listener_port)
        if spec.port:
            return address(spec.host, spec.port)
        return None  # the system chose the port; it is known only to connections on it

    def advertised(spec: ListenerSpec) -> str | None:
        at = told.get(spec.endpoint)
        return None if at is None else address(at.host, at.port)

    return {
        "advertised.listeners": _named(specs, advertised),
        "inter.broker.listener.name": own.name,
        "listener.security.protocol.map": ",".join(f"{spec.name}:{spec.protocol}" for spec in specs),
        "listeners": _named(specs, bound),
        "security.inter.broker.protocol": own.protocol,
    }


def _named(specs: Iterable[ListenerSpec], at: Callable[[ListenerSpec], str | None]) -> str:
    return ",".join(f"{spec.name}://{where}" for spec in specs if (where := at(spec)) is not None)
