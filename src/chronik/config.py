"""The table of settings.

The fields of `Settings` are the one table of what can be set. A field's name is its key in the file; the
environment variable (`CHRONIK_KAFKA_PORT`) and the flag (`--kafka-port`) follow from it; type, default, range
and description stand beside it. The command line, `chronik config show` and docs/CONFIGURATION.md are made
from this table, so none of them can know a setting that the others do not.
`config_sources` reads the values.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Final, get_args, get_type_hints

from chronik.client_state import BYTES_MAX
from chronik.config_file import Address, ConfigError, Peer, convert, nearest, shown
from chronik.model import METADATA_BYTES_MAX, REMOTE_CACHE_BYTES, Limits

__all__ = ["Address", "ConfigError", "Peer", "Setting", "Settings", "is_loopback", "table"]

ENV_PREFIX: Final = "CHRONIK_"
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})
_PORT_MAX: Final = 65_535
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_MIB: Final = 1024 * 1024
_LIMITS: Final = Limits()
_TYPE_NAMES: Final[Mapping[type, str]] = {
    bool: "true or false",
    int: "whole number",
    str: "text",
    Path: "path",
    Address: "host[:port]",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _SettingRule:
    doc: str
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    alias: str | None = None
    secret: bool = False


def _setting(default: object, doc: str, **rule: Any) -> Any:
    found = _SettingRule(doc=doc, **rule)
    # A secret is not even part of what a traceback or a log line would show of the settings.
    return dataclasses.field(default=default, metadata={"rule": found}, repr=not found.secret)


def _port(default: int, doc: str) -> Any:
    return _setting(default, f"{doc}; 0 takes a free one", minimum=0, maximum=_PORT_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set about a node. Complete and checked once built by `load_settings`."""

    data_dir: Path = _setting(Path("chronik-data"), "directory of everything the node keeps")
    node_id: int = _setting(1, "this node's id, unique in its cluster", minimum=0, maximum=_INT32_MAX)
    bind: str = _setting("127.0.0.1", "address to listen on; 0.0.0.0 listens on every interface")
    advertise: Address | None = _setting(
        None, "host[:port] that clients are told to connect to; by default the address of `bind`"
    )
    kafka_port: int = _port(9092, "port for Kafka clients")
    http_port: int = _port(6092, "port for HTTP")
    wal_port: int = _port(9291, "port for replication between nodes")
    raft_port: int = _port(5001, "port for consensus between nodes")
    rack: str | None = _setting(None, "where the node stands; replicas are spread over racks")
    shards: str | None = _setting(
        None,
        "number of nodes to run on this machine under one supervisor, each with a core; auto: one a core",
    )
    log_level: str = _setting("info", "least severe level logged", choices=LOG_LEVELS)

    log: str | None = _setting(
        None, "levels of single modules, separated by commas: chronik.raft=debug,chronik.metadata=debug"
    )

    wal_profile: str = _setting(
        "high",
        "how long appends may gather before one sync, from lowest latency to fewest syncs",
        choices=("ultra", "high", "medium", "low"),
    )
    wal_queue_depth: int = _setting(
        10_000,
        "appends that may wait for the disk before sockets are no longer read",
        minimum=1,
        maximum=_INT32_MAX,
    )
    fsync_batch_timeout_ms: int | None = _setting(
        None, "longest gathering time; overrides the profile's", minimum=0, maximum=60_000
    )
    wal_file_bytes: int = _setting(
        64 * _MIB, "size of one write-ahead log file, preallocated", minimum=_MIB, maximum=_INT32_MAX
    )
    disable_metadata_wal: bool = _setting(
        False, "carry metadata by Raft messages on ticks instead of the replication streams"
    )

    auto_create_topics: bool = _setting(True, "create a topic when a client first names it")
    default_partitions: int = _setting(1, "partitions of a new topic", minimum=1, maximum=100_000)
    default_replication_factor: int = _setting(
        1, "replicas of a new topic's partitions", minimum=1, maximum=32_767, alias="replication_factor"
    )
    min_insync_replicas: int = _setting(1, "in-sync replicas that acks=all needs", minimum=1, maximum=32_767)
    segment_bytes: int = _setting(
        1024 * _MIB, "size at which a partition starts a new segment file", minimum=1024, maximum=_INT32_MAX
    )
    retention_ms: int = _setting(
        7 * 24 * 3600 * 1000,
        "age at which records may be deleted; -1 keeps them",
        minimum=-1,
        maximum=_INT64_MAX,
    )
    retention_check_interval_ms: int = _setting(
        300_000,
        "how often logs are looked at for segments past their retention",
        minimum=1,
        maximum=_INT64_MAX,
    )
    cleaner_backoff_ms: int = _setting(
        15_000, "how often compacted topics are looked at", minimum=1, maximum=_INT64_MAX
    )
    cleaner_bytes_per_second: int = _setting(
        32 * _MIB, "bytes that compaction reads and writes per second at most", minimum=1, maximum=_INT64_MAX
    )

    offsets_topic_partitions: int = _setting(
        50, "partitions of __consumer_offsets when it is created", minimum=1, maximum=10_000
    )
    transactions_topic_partitions: int = _setting(
        50, "partitions of __transaction_state when it is created", minimum=1, maximum=10_000
    )
    group_initial_rebalance_delay_ms: int = _setting(
        500,
        "how long the first rebalance of an empty group waits for more members, again while they come",
        minimum=0,
        maximum=300_000,
    )

    frame_bytes_max: int = _setting(
        _LIMITS.frame_bytes_max,
        "longest request; a longer one closes its connection",
        minimum=1024,
        maximum=_INT32_MAX,
    )
    decompressed_bytes_max: int = _setting(
        _LIMITS.decompressed_bytes_max,
        "largest content of one compressed batch; one that is itself larger than an eighth of this may hold "
        "eight times its size. For the node, search and SQL; the command line and Spark keep to the default",
        minimum=1024 * 1024,
        maximum=_INT32_MAX,
    )
    connections_max: int = _setting(
        _LIMITS.connections_max,
        "connections of Kafka clients at once; never more than half of the file descriptors that the system "
        "allows",
        minimum=1,
        maximum=_INT32_MAX,
    )
    connections_per_second_max: int | None = _setting(
        None,
        "new connections per second that each Kafka listener takes; those beyond are held back for a moment, "
        "then refused",
        minimum=1,
        maximum=_INT32_MAX,
    )
    connections_per_ip_max: int | None = _setting(
        None,
        "connections of Kafka clients at one address; by default half of all",
        minimum=1,
        maximum=_INT32_MAX,
    )
    memory_bytes_max: int | None = _setting(
        None,
        "memory for the node, search and SQL together: budgets that are not set are fitted into it; by "
        "default the limit of the container or the systemd unit, if it has one",
        minimum=256 * _MIB,
        maximum=_INT64_MAX,
    )
    client_state_bytes_max: int = _setting(
        BYTES_MAX,
        "memory for what clients make the node remember: members of groups, committed offsets, fetch "
        "sessions, producer ids, transactional ids and pushed metrics, each with a fixed part of it",
        minimum=_MIB,
        maximum=_INT64_MAX,
    )
    schema_registry_bytes_max: int = _setting(
        64 * _MIB,
        "memory for what the schema registry holds, on the node that leads it; with less left than a new "
        "schema takes, it is refused",
        minimum=_MIB,
        maximum=_INT64_MAX,
    )
    metadata_bytes_max: int = _setting(
        METADATA_BYTES_MAX,
        "what clients may make the cluster's metadata grow to: topics, partitions, configs, users, ACLs, "
        "quotas, delegation tokens. Set the same on every node: one that fell behind gets it in one message",
        minimum=_MIB,
        maximum=60 * _MIB,
    )
    open_segments_max: int | None = _setting(
        None,
        "segment files that are open at a time; by default an eighth of the file descriptors that the system "
        "allows, and never more",
        minimum=1,
        maximum=_INT32_MAX,
    )

    replica_lag_time_max_ms: int = _setting(
        10_000, "how long a follower may lag before it leaves the ISR", minimum=100, maximum=_INT32_MAX
    )
    replica_window_bytes: int = _setting(
        8 * _MIB, "unacknowledged bytes per partition and follower", minimum=1024, maximum=_INT32_MAX
    )
    join: bool = _setting(
        False, "join a running cluster as a new node; by default the peers found one together"
    )
    voters: int = _setting(
        3,
        "nodes that vote on metadata, at most all of them; the others observe it",
        choices=("1", "3", "5"),
    )
    voter_replace_ms: int = _setting(
        600_000,
        "a voter that is away longer than this is taken to be gone for good: an observer votes in its place",
        minimum=1_000,
        maximum=_INT32_MAX,
    )
    load_balance: str = _setting(
        "leaders",
        "what moves off nodes that carry much more than others: nothing (off), leaders (to replicas in sync, "
        "which copies no data), or replicas too",
        choices=("off", "leaders", "replicas"),
    )
    load_balance_interval_ms: int = _setting(
        10_000, "how often the controller compares loads", minimum=100, maximum=_INT32_MAX
    )
    load_balance_min_bytes: int = _setting(
        1_000_000, "bytes a second by which a node must be above the mean", minimum=1, maximum=_INT64_MAX
    )

    object_store: str | None = _setting(
        None,
        "where tiered storage keeps segments: file:///folder (one that every node of the cluster mounts) or "
        "s3://bucket/prefix; set the same on every node",
    )
    object_store_endpoint: str | None = _setting(
        None, "URL of a server that speaks S3; by default that of AWS for object_store_region"
    )
    object_store_region: str = _setting("us-east-1", "region of the bucket")
    object_store_access_key_id: str | None = _setting(
        None,
        "key id for the bucket; without one the environment's AWS_ variables or the machine's role count",
        secret=True,
    )
    object_store_secret_access_key: str | None = _setting(None, "its secret", secret=True)
    object_store_timeout_ms: int = _setting(
        30_000,
        "how long one call of the object store may take before it is tried again",
        minimum=100,
        maximum=600_000,
    )
    remote_cache_bytes: int = _setting(
        REMOTE_CACHE_BYTES,
        "memory for what was read from the object store; consumers of old records are served from there. Not "
        "in it: indexes of segments, and reads under way",
        minimum=8 * _MIB,
        maximum=_INT64_MAX,
    )
    remote_fetch_max_wait_ms: int = _setting(
        500,
        "how long a fetch waits for the object store before it is answered without; it goes on reading for "
        "the next fetch",
        minimum=1,
        maximum=300_000,
    )
    tiering_interval_ms: int = _setting(
        30_000,
        "how often partitions with remote.storage.enable are looked at for segments to put into the object "
        "store",
        minimum=100,
        maximum=_INT32_MAX,
    )

    disable_realtime_index: bool = _setting(False, "do not index searchable topics as records arrive")
    published_index_dir: Path | None = _setting(
        None, "where `chronik pipeline index` publishes; searches also find what only lies there"
    )
    archive_dir: Path | None = _setting(
        None, "where `chronik pipeline archive` writes Parquet; SQL reads what is archived from there"
    )
    search_memory_bytes_max: int = _setting(
        1024 * _MIB,
        "memory of the search process: index writers, and records that are not indexed yet; beyond it the "
        "process is started again",
        minimum=512 * _MIB,
        maximum=_INT64_MAX,
    )
    sql_rows_max: int = _setting(10_000, "rows of one SQL result", minimum=1, maximum=1_000_000)
    sql_result_bytes_max: int = _setting(
        64 * _MIB, "bytes of one SQL result; it is cut where it is larger", minimum=1024, maximum=_INT64_MAX
    )
    sql_timeout_ms: int = _setting(30_000, "longest run of one SQL query", minimum=100, maximum=3_600_000)
    sql_memory_bytes_max: int = _setting(
        1024 * _MIB,
        "memory of SQL queries together; the process may take 448 MiB more for itself",
        minimum=64 * _MIB,
        maximum=_INT64_MAX,
    )
    sql_columns_bytes_max: int = _setting(
        32 * 1024 * _MIB,
        "room on disk for what SQL keeps of topics for the next query; those longest unused go first",
        minimum=64 * _MIB,
        maximum=_INT64_MAX,
    )

    cluster_id: str | None = _setting(None, "the cluster's id; by default made up once and kept")
    cluster_secret: str | None = _setting(None, "what nodes of one cluster prove to each other", secret=True)
    cluster_secret_accepted: str | None = _setting(
        None,
        "a second secret that is believed while one replaces the other; `none` lets nodes in without any",
        secret=True,
    )

    node_tls_cert: Path | None = _setting(
        None,
        "certificate chain (PEM) for the WAL and Raft ports, bound to cluster and node "
        "(chronik://CLUSTER_ID/node/NODE_ID); read again when it changes",
    )
    node_tls_key: Path | None = _setting(None, "its private key (PEM); by default in the certificate's file")
    node_tls_ca: Path | None = _setting(
        None, "authorities (PEM) whose node certificates are believed; more than one while one is replaced"
    )
    node_tls: str = _setting(
        "required",
        "with node_tls_cert: whether peers without TLS are spoken to as well (requested) or not",
        choices=("requested", "required"),
    )

    admin_api_key: str | None = _setting(
        None,
        "key that HTTP calls need which change something or show records, and beyond loopback all but "
        "/health, /ready and the console's own files",
        secret=True,
    )
    insecure: bool = _setting(
        False, "listen beyond loopback without an API key: everybody who can reach HTTP may read all records"
    )
    http_hosts: str | None = _setting(
        None,
        "further names, separated by commas, under which HTTP may be asked, besides loopback's and those of "
        "`bind` and `advertise`",
    )
    metrics_need_key: bool = _setting(
        False, "whether /metrics needs a login; without one it names no topic and no group"
    )
    http_session_ms: int = _setting(
        12 * 3600 * 1000, "how long a login of the console lasts", minimum=1000, maximum=_INT64_MAX
    )
    health_needs_key: bool = _setting(False, "whether /health and /ready need a login")

    http_tls_cert: Path | None = _setting(
        None, "certificate chain (PEM) of the HTTP port, which then speaks TLS only"
    )
    http_tls_key: Path | None = _setting(None, "its private key (PEM); by default in the certificate's file")
    http_tls_ca: Path | None = _setting(
        None,
        "certificates (PEM) that nodes and commands believe besides the system's when they ask a node; "
        "nodes also believe their own",
    )

    http_tls_client_ca: Path | None = _setting(
        None,
        "authorities (PEM) whose client certificates are believed on the HTTP port; who shows one is the "
        "principal that ssl_principal_mapping_rules make of its name",
    )

    listeners: str | None = _setting(
        None,
        "more ports for Kafka clients besides kafka_port, whose listener is named KAFKA: "
        "NAME://host:port,NAME://host:port",
    )
    advertised_listeners: str | None = _setting(None, "where clients find listeners: NAME://host:port,...")
    listener_security_protocol_map: str | None = _setting(
        None,
        "what each listener asks for: NAME:PROTOCOL,... with PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; "
        "KAFKA is PLAINTEXT unless it is named here",
    )
    inter_broker_listener_name: str | None = _setting(
        None, "listener by which nodes' own clients reach the nodes; by default KAFKA"
    )
    inter_broker_listeners_accepted: str | None = _setting(
        None,
        "further listeners (NAME,NAME) on which nodes may log in as such, while inter_broker_listener_name "
        "moves from one to another",
    )
    kafka_tls_cert: Path | None = _setting(
        None, "certificate chain (PEM) of the Kafka listeners with TLS; read again when it changes"
    )
    kafka_tls_key: Path | None = _setting(None, "its private key (PEM); by default in the certificate's file")
    kafka_tls_ca: Path | None = _setting(
        None, "authorities (PEM) whose client certificates are believed; nodes believe them too"
    )
    kafka_tls_client_auth: str = _setting(
        "none", "whether clients show certificates", choices=("none", "requested", "required")
    )
    ssl_principal_mapping_rules: str | None = _setting(
        None,
        "how a certificate's name becomes a principal: RULE:pattern/replacement/[LU],...,DEFAULT; "
        "patterns are RE2's",
    )
    sasl_enabled_mechanisms: str = _setting(
        "SCRAM-SHA-256,SCRAM-SHA-512",
        "how clients may log in: SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, OAUTHBEARER",
    )
    sasl_oauthbearer_jwks: str | None = _setting(
        None, "file or https address of the keys (JWKS) of tokens; http is for loopback only"
    )
    sasl_oauthbearer_algorithms: str = _setting(
        "RS256,RS384,RS512,PS256,PS384,PS512,ES256,ES384,ES512,EdDSA",
        "signatures of tokens that are believed, of these; none with a shared key is ever",
    )
    sasl_oauthbearer_expected_issuer: str | None = _setting(None, "issuer that tokens must name")
    sasl_oauthbearer_expected_audience: str | None = _setting(
        None, "audiences of which tokens must name one, separated by commas"
    )
    sasl_oauthbearer_clock_skew_seconds: int = _setting(
        30, "how far the clock of a token's issuer may be off", minimum=0, maximum=3_600
    )
    sasl_oauthbearer_sub_claim_name: str = _setting("sub", "claim of a token that names its user")
    connections_max_reauth_ms: int = _setting(
        0,
        "longest time after a login before clients must log in again; 0: never",
        minimum=0,
        maximum=_INT64_MAX,
    )
    audit_log: str = _setting(
        "changes",
        "what is written to the topic __chronik_audit where clients log in or ACLs decide: nothing, refusals "
        "and failed logins, or also what was changed",
        choices=("off", "denials", "changes"),
    )
    authorizer: bool = _setting(False, "let ACLs decide what clients may do; super_users may do everything")
    super_users: str | None = _setting(None, "principals that may do everything: User:admin;User:operator")
    allow_everyone_if_no_acl_found: bool = _setting(False, "let everybody use what no ACL names")
    delegation_token_secret_key: str | None = _setting(
        None, "key of delegation tokens, the same on all nodes; without one there are none", secret=True
    )
    delegation_token_max_lifetime_ms: int = _setting(
        7 * 24 * 3600 * 1000, "longest life of a delegation token", minimum=1, maximum=_INT64_MAX
    )
    delegation_token_expiry_time_ms: int = _setting(
        24 * 3600 * 1000, "how long a delegation token lives without renewal", minimum=1, maximum=_INT64_MAX
    )

    peers: tuple[Peer, ...] = ()

    @property
    def http_scheme(self) -> str:
        return "http" if self.http_tls_cert is None else "https"

    def advertised(self, *, kafka_port: int) -> Address:
        """Where clients are sent; `kafka_port` is the port really bound, which the setting may leave open."""
        if self.advertise is not None:
            return Address(self.advertise.host, self.advertise.port or kafka_port)
        return Address(socket.gethostname() if self.bind in _WILDCARDS else self.bind, kafka_port)

    @property
    def is_local(self) -> bool:
        """Only this machine can reach the node."""
        return is_loopback(self.bind)

    @property
    def is_everywhere(self) -> bool:
        """The node listens on every address of this machine."""
        return self.bind in _WILDCARDS

    @property
    def reachable_here(self) -> str:
        """The host under which this machine reaches the node's own ports."""
        return "127.0.0.1" if self.bind in _WILDCARDS else self.bind


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A row of the table."""

    name: str
    kind: type
    optional: bool
    default: object
    rule: _SettingRule

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def flag(self) -> str | None:
        """None for a secret: everybody on the machine can read a command line."""
        return None if self.rule.secret else "--" + self.name.replace("_", "-")

    @property
    def doc(self) -> str:
        return self.rule.doc

    @property
    def type_name(self) -> str:
        return " / ".join(self.rule.choices) or _TYPE_NAMES[self.kind]

    def parse(self, value: object, where: str, *, text: bool = True) -> object:
        """A value from a flag, a variable or a file, as the type of this setting."""
        rule = self.rule
        parsed = convert(self.kind, value, text=text)
        given = "the value" if rule.secret else shown(value)
        if parsed is None:
            raise ConfigError(f"{where}: {given} is no {self.type_name}{self._hint()}")
        if rule.choices and str(parsed) not in rule.choices:
            raise ConfigError(
                f"{where}: {given} is none of {self.type_name}{nearest(str(parsed), rule.choices)}"
            )
        if self.kind is int and isinstance(parsed, int):
            low, high = rule.minimum, rule.maximum
            if (low is not None and parsed < low) or (high is not None and parsed > high):
                raise ConfigError(f"{where}: {parsed} is outside {low} to {high}")
        return parsed

    def _hint(self) -> str:
        return "" if self.rule.minimum is None else f", {self.rule.minimum} to {self.rule.maximum}"


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@cache
def table() -> Mapping[str, Setting]:
    """Every setting by name, in the order in which people should read them."""
    hints = get_type_hints(Settings)
    rows = {}
    for field in dataclasses.fields(Settings):
        if (rule := field.metadata.get("rule")) is None:
            continue
        kinds = get_args(hints[field.name]) or (hints[field.name],)
        rows[field.name] = Setting(
            name=field.name,
            kind=next(kind for kind in kinds if kind is not NoneType),
            optional=NoneType in kinds,
            default=field.default,
            rule=rule,
        )
    return rows
