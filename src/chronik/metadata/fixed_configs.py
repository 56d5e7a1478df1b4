"""Broker configs that a node has from its settings: DescribeConfigs shows them, AlterConfigs refuses them.

Some of them a running Apache Kafka does change, `sasl.enabled.mechanisms` among them. Who changes one must
not believe that it holds now: the refusal names the setting.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple

from chronik.metadata.config_def import ConfigDef, ConfigKind

__all__ = ["FIXED", "SETTING_OF"]


class _Fixed(NamedTuple):
    name: str
    kind: ConfigKind
    doc: str
    setting: str | None = None
    """Where the value comes from; None if nothing sets it."""


_BOOLEAN, _STRING, _INT, _SHORT = ConfigKind.BOOLEAN, ConfigKind.STRING, ConfigKind.INT, ConfigKind.SHORT
_LONG, _LIST, _PASSWORD = ConfigKind.LONG, ConfigKind.LIST, ConfigKind.PASSWORD

_TABLE: Final = (
    _Fixed("advertised.listeners", _STRING, "Where clients are told to connect to.", "advertised_listeners"),
    _Fixed(
        "authorizer.class.name", _STRING, "chronik where ACLs decide; empty where they do not.", "authorizer"
    ),
    _Fixed(
        "auto.create.topics.enable",
        _BOOLEAN,
        "Whether a topic is created when it is first named.",
        "auto_create_topics",
    ),
    _Fixed("broker.id", _INT, "The id of this broker.", "node_id"),
    _Fixed("broker.rack", _STRING, "Where this broker stands.", "rack"),
    _Fixed("chronik.http.address", _STRING, "Where this broker serves HTTP.", "http_port"),
    _Fixed(
        "connections.max.reauth.ms",
        _LONG,
        "Longest time after a login before clients must log in again.",
        "connections_max_reauth_ms",
    ),
    _Fixed(
        "default.replication.factor",
        _INT,
        "Replicas of a topic that does not say how many.",
        "default_replication_factor",
    ),
    _Fixed(
        "delegation.token.expiry.time.ms",
        _LONG,
        "How long a delegation token lives without renewal.",
        "delegation_token_expiry_time_ms",
    ),
    _Fixed(
        "delegation.token.max.lifetime.ms",
        _LONG,
        "Longest life of a delegation token.",
        "delegation_token_max_lifetime_ms",
    ),
    _Fixed(
        "delegation.token.secret.key", _PASSWORD, "Key of delegation tokens.", "delegation_token_secret_key"
    ),
    _Fixed(
        "group.consumer.migration.policy",
        _STRING,
        "Always disabled: a group changes between the classic and the consumer protocol while it is empty.",
    ),
    _Fixed(
        "inter.broker.listener.name",
        _STRING,
        "Listener by which the nodes' own clients reach the nodes.",
        "inter_broker_listener_name",
    ),
    _Fixed(
        "listener.security.protocol.map",
        _STRING,
        "What each listener asks for.",
        "listener_security_protocol_map",
    ),
    _Fixed("listeners", _STRING, "Where this broker listens.", "listeners"),
    _Fixed("log.dir", _STRING, "Directory of this broker's data.", "data_dir"),
    _Fixed("log.dirs", _STRING, "Directory of this broker's data.", "data_dir"),
    _Fixed("node.id", _INT, "The id of this node.", "node_id"),
    _Fixed("num.partitions", _INT, "Partitions of a topic that does not say how many.", "default_partitions"),
    _Fixed(
        "offsets.topic.num.partitions",
        _INT,
        "Partitions of __consumer_offsets when created.",
        "offsets_topic_partitions",
    ),
    _Fixed(
        "offsets.topic.replication.factor",
        _SHORT,
        "Replicas of __consumer_offsets when it is created; fewer where there are fewer brokers.",
    ),
    _Fixed("offsets.topic.segment.bytes", _INT, "Segment size of __consumer_offsets when created."),
    _Fixed(
        "replica.lag.time.max.ms",
        _LONG,
        "A follower that has not caught up within this time leaves the in-sync replicas.",
        "replica_lag_time_max_ms",
    ),
    _Fixed("sasl.enabled.mechanisms", _LIST, "How clients may log in.", "sasl_enabled_mechanisms"),
    _Fixed(
        "sasl.oauthbearer.clock.skew.seconds",
        _INT,
        "How far the clock of a token's issuer may be off.",
        "sasl_oauthbearer_clock_skew_seconds",
    ),
    _Fixed(
        "sasl.oauthbearer.expected.audience",
        _LIST,
        "Audiences of which tokens must name one.",
        "sasl_oauthbearer_expected_audience",
    ),
    _Fixed(
        "sasl.oauthbearer.expected.issuer",
        _STRING,
        "Issuer that tokens must name.",
        "sasl_oauthbearer_expected_issuer",
    ),
    _Fixed(
        "sasl.oauthbearer.jwks.endpoint.url",
        _STRING,
        "Where the keys of tokens are read.",
        "sasl_oauthbearer_jwks",
    ),
    _Fixed(
        "sasl.oauthbearer.sub.claim.name",
        _STRING,
        "Claim of a token that names its user.",
        "sasl_oauthbearer_sub_claim_name",
    ),
    _Fixed(
        "security.inter.broker.protocol",
        _STRING,
        "What the listener of inter.broker.listener.name asks for.",
        "inter_broker_listener_name",
    ),
    _Fixed("socket.request.max.bytes", _INT, "Longest request that is read.", "frame_bytes_max"),
    _Fixed("ssl.client.auth", _STRING, "Whether clients show certificates.", "kafka_tls_client_auth"),
    _Fixed(
        "ssl.enabled.protocols", _LIST, "Versions of TLS that a listener speaks; no setting changes them."
    ),
    _Fixed("ssl.keystore.location", _STRING, "Certificate chain of the listeners.", "kafka_tls_cert"),
    _Fixed("ssl.keystore.type", _STRING, "Always PEM."),
    _Fixed(
        "ssl.principal.mapping.rules",
        _STRING,
        "How a certificate's name becomes a principal.",
        "ssl_principal_mapping_rules",
    ),
    _Fixed(
        "ssl.truststore.location",
        _STRING,
        "Authorities whose client certificates are believed.",
        "kafka_tls_ca",
    ),
    _Fixed("ssl.truststore.type", _STRING, "Always PEM."),
    _Fixed("transaction.state.log.min.isr", _INT, "min.insync.replicas of __transaction_state when created."),
    _Fixed(
        "transaction.state.log.num.partitions",
        _INT,
        "Partitions of __transaction_state when created.",
        "transactions_topic_partitions",
    ),
    _Fixed(
        "transaction.state.log.replication.factor",
        _SHORT,
        "Replicas of __transaction_state when it is created; fewer where there are fewer brokers.",
    ),
    _Fixed("transaction.state.log.segment.bytes", _INT, "Segment size of __transaction_state when created."),
)


def _definition(row: _Fixed) -> ConfigDef:
    doc = row.doc if row.setting is None else f"{row.doc} The setting `{row.setting}`."
    return ConfigDef(name=row.name, kind=row.kind, default=None, doc=doc)


FIXED: Final = tuple(map(_definition, _TABLE))

SETTING_OF: Final = MappingProxyType({row.name: row.setting for row in _TABLE if row.setting is not None})
"""The setting that a config is, by the config's name."""
