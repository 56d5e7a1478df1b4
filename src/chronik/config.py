"""Settings: the only reader of configuration files and of the environment.

The fields of `Settings` are the one table of what can be set. A field's name is its key in the file; the
environment variable (`CHRONIK_KAFKA_PORT`) and the flag (`--kafka-port`) follow from it; type, default, range
and description stand beside it. The command line, `chronik config show` and docs/CONFIGURATION.md are made
from this table, so none of them can know a setting that the others do not.

A flag wins over the environment, the environment over the file, the file over the default. Whatever is
wrong is told in one sentence: where it stands, what is wrong, what was probably meant.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Final, get_args, get_type_hints

from chronik.config_file import (
    CLUSTER,
    Address,
    ConfigError,
    ConfigFile,
    Peer,
    convert,
    nearest,
    parse_peers,
    shown,
)
from chronik.model import Limits

__all__ = [
    "Address",
    "ConfigError",
    "Peer",
    "Resolved",
    "Setting",
    "Settings",
    "api_key",
    "bootstrap",
    "environment",
    "table",
]

ENV_PREFIX: Final = "CHRONIK_"
BOOTSTRAP_VARIABLE: Final = "CHRONIK_BOOTSTRAP"
"""Where the client commands look for a cluster. Not about a node, so not in the table."""
BOOTSTRAP_DEFAULT: Final = "127.0.0.1:9092"

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
class _Rule:
    doc: str
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    alias: str | None = None
    secret: bool = False


def _setting(default: object, doc: str, **rule: Any) -> Any:
    return dataclasses.field(default=default, metadata={"rule": _Rule(doc=doc, **rule)})


def _port(default: int, doc: str) -> Any:
    return _setting(default, f"{doc}; 0 takes a free one", minimum=0, maximum=_PORT_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set about a node. Complete and checked once built by `load`."""

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
    log_level: str = _setting(
        "info", "least severe level logged", choices=("debug", "info", "warning", "error")
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
    connections_max: int = _setting(
        _LIMITS.connections_max, "connections of Kafka clients at once", minimum=1, maximum=_INT32_MAX
    )

    replica_lag_time_max_ms: int = _setting(
        10_000, "how long a follower may lag before it leaves the ISR", minimum=100, maximum=_INT32_MAX
    )
    join: bool = _setting(
        False, "join a running cluster as a new node; by default the peers found one together"
    )

    disable_realtime_index: bool = _setting(False, "do not index searchable topics as records arrive")
    published_index_dir: Path | None = _setting(
        None, "where `chronik pipeline index` publishes; searches also find what only lies there"
    )
    archive_dir: Path | None = _setting(
        None, "where `chronik pipeline archive` writes Parquet; SQL reads what is archived from there"
    )
    sql_rows_max: int = _setting(10_000, "rows of one SQL result", minimum=1, maximum=1_000_000)
    sql_timeout_ms: int = _setting(30_000, "longest run of one SQL query", minimum=100, maximum=3_600_000)
    sql_memory_bytes_max: int = _setting(
        1024 * _MIB, "memory of SQL queries together", minimum=64 * _MIB, maximum=_INT64_MAX
    )

    cluster_id: str | None = _setting(None, "the cluster's id; by default made up once and kept")
    cluster_secret: str | None = _setting(None, "what nodes of one cluster prove to each other", secret=True)

    admin_api_key: str | None = _setting(
        None,
        "key that HTTP calls need which change something or show records; without one, "
        "changes are possible only while the node listens on loopback",
        secret=True,
    )

    http_tls_cert: Path | None = _setting(
        None, "certificate chain (PEM) of the HTTP port, which then speaks TLS only"
    )
    http_tls_key: Path | None = _setting(None, "its private key (PEM); by default in the certificate's file")
    http_tls_ca: Path | None = _setting(
        None,
        "certificates (PEM) that nodes and commands believe besides the system's when they ask a node; "
        "nodes also believe their own",
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
    def reachable_here(self) -> str:
        """The host under which this machine reaches the node's own ports."""
        return "127.0.0.1" if self.bind in _WILDCARDS else self.bind

    @staticmethod
    def load(flags: Mapping[str, object], env: Mapping[str, str], file: Path | None) -> Resolved:
        """Put the settings together; `flags` by setting name, None where a flag was not given."""
        return _resolve(flags, env, None if file is None else ConfigFile.read(file))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A row of the table."""

    name: str
    kind: type
    optional: bool
    default: object
    rule: _Rule

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
        if rule.choices and parsed not in rule.choices:
            raise ConfigError(
                f"{where}: {given} is none of {self.type_name}{nearest(str(parsed), rule.choices)}"
            )
        if self.kind is int and isinstance(parsed, int):
            low, high = rule.minimum, rule.maximum
            if (low is not None and parsed < low) or (high is not None and parsed > high):
                raise ConfigError(f"{where}: {parsed} is outside {low} to {high}")
        return parsed

    def _hint(self) -> str:
        return f", {self.rule.minimum} to {self.rule.maximum}" if self.kind is int else ""


def environment() -> Mapping[str, str]:
    """The variables of this process."""
    return os.environ


def bootstrap(flag: str | None, env: Mapping[str, str]) -> str:
    """The addresses that a client command asks first: flag, environment, this machine."""
    return flag or env.get(BOOTSTRAP_VARIABLE) or BOOTSTRAP_DEFAULT


def api_key(env: Mapping[str, str]) -> str | None:
    """The key that a client command sends along."""
    return env.get(table()["admin_api_key"].env) or None


def http_tls_ca(env: Mapping[str, str]) -> Path | None:
    """The certificates that a client command believes besides the system's."""
    return Path(given) if (given := env.get(table()["http_tls_ca"].env)) else None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    settings: Settings
    origins: Mapping[str, str]
    """Where each setting's value came from, for a person."""
    warnings: tuple[str, ...] = ()

    def rows(self) -> Iterable[tuple[Setting, object, str]]:
        """Setting, value, origin; secrets are hidden."""
        for setting in table().values():
            value = getattr(self.settings, setting.name)
            if setting.rule.secret and value is not None:
                value = "(hidden)"
            yield setting, value, self.origins[setting.name]


def _resolve(flags: Mapping[str, object], env: Mapping[str, str], file: ConfigFile | None) -> Resolved:
    values: dict[str, object] = {}
    origins = dict.fromkeys((*table(), CLUSTER), "default")
    if file is not None:
        _take_file(file, values, origins)
    for setting in table().values():
        if text := env.get(setting.env):
            values[setting.name] = setting.parse(text, f"environment: {setting.env}")
            origins[setting.name] = f"environment {setting.env}"
        if setting.flag and (given := flags.get(setting.name)) is not None:
            values[setting.name] = setting.parse(given, setting.flag)
            origins[setting.name] = f"flag {setting.flag}"
    if file is not None:
        _take_own_peer(file, values, origins)
    settings = Settings(**values)  # type: ignore[arg-type]
    _check_ports(settings)
    return Resolved(
        settings=settings, origins=origins, warnings=(*_strange_variables(env), *_doubts(settings))
    )


def _take_file(file: ConfigFile, values: dict[str, object], origins: dict[str, str]) -> None:
    names = {setting.rule.alias: name for name, setting in table().items() if setting.rule.alias}
    known = [*table(), *names, CLUSTER]
    for key, value in file.values.items():
        where = file.where(key)
        if key == CLUSTER:
            values[CLUSTER], origins[CLUSTER] = parse_peers(file, value), str(file.path)
            continue
        name = names.get(key, key)
        if name not in table():
            raise ConfigError(f"{where} is not a setting{nearest(key, known)}")
        if name in values:
            raise ConfigError(f"{where} sets {name} a second time")
        values[name] = table()[name].parse(value, where, text=False)
        origins[name] = where.rsplit(":", 1)[0]


def _take_own_peer(file: ConfigFile, values: dict[str, object], origins: dict[str, str]) -> None:
    """One file can serve a whole cluster: a node takes its own addresses from its entry among the peers."""
    peers: tuple[Peer, ...] = values.get(CLUSTER, ())  # type: ignore[assignment]
    if not peers:
        return
    node_id = values.get("node_id", table()["node_id"].default)
    own = [index for index, peer in enumerate(peers) if peer.id == node_id]
    if not own:
        listed = ", ".join(str(peer.id) for peer in peers)
        raise ConfigError(f"{file.where(CLUSTER)} lists nodes {listed}, but not this node's id {node_id}")
    peer, origin = peers[own[0]], file.where_peer(own[0])
    entries = {"kafka_port": peer.kafka, "wal_port": peer.wal, "raft_port": peer.raft, "http_port": peer.http}
    for name, address in entries.items():
        if address is not None and name not in values:
            values[name], origins[name] = address.port, origin
    if "advertise" not in values:
        values["advertise"], origins["advertise"] = peer.kafka, origin


def _check_ports(settings: Settings) -> None:
    seen: dict[int, str] = {}
    for name in ("kafka_port", "http_port", "wal_port", "raft_port"):
        port = getattr(settings, name)
        if port and port in seen:
            raise ConfigError(f"{seen[port]} and {name} are both {port}; each needs a port of its own")
        seen[port] = name


def _strange_variables(env: Mapping[str, str]) -> Iterable[str]:
    """A warning only: container platforms put variables of this form into the environment by themselves."""
    known = [BOOTSTRAP_VARIABLE, *(setting.env for setting in table().values())]
    for variable in sorted(env):
        if variable.startswith(ENV_PREFIX) and variable not in known:
            yield f"environment: {variable} is not a setting and does nothing{nearest(variable, known)}"


def _doubts(settings: Settings) -> Iterable[str]:
    if settings.bind in _WILDCARDS and settings.advertise is None:
        host = settings.advertised(kafka_port=settings.kafka_port).host
        yield (
            f"bind is {settings.bind} and nothing is advertised: clients are told to connect to {host}; "
            "set --advertise to a name that they can reach"
        )
    if settings.min_insync_replicas > settings.default_replication_factor:
        yield (
            f"min_insync_replicas {settings.min_insync_replicas} is more than the "
            f"{settings.default_replication_factor} replicas of a new topic: acks=all will be refused"
        )
