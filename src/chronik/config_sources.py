"""Where settings come from: flags, the environment, a file. The only reader of the environment.

A flag wins over the environment, the environment over the file, the file over the default. Whatever is
wrong is reported in one sentence: where it stands, what is wrong, what was probably meant.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from chronik.config import ENV_PREFIX, LOG_LEVELS, Setting, Settings, table
from chronik.config_file import CLUSTER, ConfigError, ConfigFile, Peer, nearest, parse_peers, shown
from chronik.memory import FULL_BYTES_MIN, budgets

BOOTSTRAP_VARIABLE: Final = "CHRONIK_BOOTSTRAP"
"""Where the client commands look for a cluster. Not about a node, so not in the table."""
CLIENT_CONFIG_VARIABLE: Final = "CHRONIK_CLIENT_CONFIG"
"""Names the client.properties of client commands."""
BOOTSTRAP_DEFAULT: Final = "127.0.0.1:9092"


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


def load_settings(flags: Mapping[str, object], env: Mapping[str, str], file: Path | None) -> Resolved:
    """Put the settings together; `flags` by setting name, None where a flag was not given."""
    return _resolve(flags, env, None if file is None else ConfigFile.read(file))


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
    if settings.log is not None:
        parse_log_levels(settings.log, origins["log"])
    return Resolved(settings=settings, origins=origins, warnings=doubts_about(settings, env))


def doubts_about(settings: Settings, env: Mapping[str, str]) -> tuple[str, ...]:
    """What a start with these settings warns of."""
    return (*_strange_variables(env), *_doubts(settings))


def fit_memory(resolved: Resolved, group_limit: int | None) -> Resolved:
    """Budgets that nobody set, fitted into the memory that the node may take."""
    settings, origins = resolved.settings, dict(resolved.origins)
    limit = settings.memory_bytes_max
    if limit is None and group_limit is not None:
        limit = max(group_limit, table()["memory_bytes_max"].rule.minimum or 0)
        origins["memory_bytes_max"] = "the container's or unit's limit"
    if limit is None:
        return resolved
    parts = budgets(limit)
    values: dict[str, int] = {"memory_bytes_max": limit}
    for name, value in (
        ("client_state_bytes_max", parts.client_state_bytes),
        ("remote_cache_bytes", parts.remote_cache_bytes),
        ("search_memory_bytes_max", parts.search_bytes),
        ("sql_memory_bytes_max", parts.sql_bytes),
    ):
        if origins[name] == "default" and value < getattr(settings, name):
            values[name] = value
            origins[name] = "part of memory_bytes_max"
    doubts: tuple[str, ...] = ()
    if limit < FULL_BYTES_MIN:
        doubts = (
            f"memory_bytes_max: {limit >> 20} MiB are enough for a broker, but not for busy search and SQL "
            f"too: give it {FULL_BYTES_MIN >> 20} MiB, or the system may end their processes",
        )
    return Resolved(
        settings=replace(settings, **values),  # type: ignore[arg-type]
        origins=origins,
        warnings=(*resolved.warnings, *doubts),
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
    if peer.rack is not None and "rack" not in values:
        values["rack"], origins["rack"] = peer.rack, origin
    if "advertise" not in values:
        values["advertise"], origins["advertise"] = peer.kafka, origin


def _check_ports(settings: Settings) -> None:
    seen: dict[int, str] = {}
    for name in ("kafka_port", "http_port", "wal_port", "raft_port"):
        port = getattr(settings, name)
        if port and port in seen:
            raise ConfigError(f"{seen[port]} and {name} are both {port}; each needs a port of its own")
        seen[port] = name


def parse_log_levels(text: str, where: str) -> dict[str, str]:
    """`chronik.raft=debug,chronik.metadata=debug` by module; `where` says who asked for it."""
    levels: dict[str, str] = {}
    modules = logger_names()
    for part in filter(None, map(str.strip, text.split(","))):
        module, equals, level = (word.strip() for word in part.partition("="))
        if not equals:
            raise ConfigError(f"{where}: {shown(part)} is no MODULE=LEVEL")
        if module not in modules:
            raise ConfigError(f"{where}: there is no module {shown(module)}{nearest(module, modules)}")
        if level.lower() not in LOG_LEVELS:
            raise ConfigError(
                f"{where}: {shown(level)} is none of {' / '.join(LOG_LEVELS)}{nearest(level, LOG_LEVELS)}"
            )
        levels[module] = level.lower()
    return levels


@cache
def logger_names() -> frozenset[str]:
    """The names of our loggers. Others are refused, since Python never forgets a logger."""
    root = Path(__file__).parent
    paths = (path.relative_to(root.parent).with_suffix("") for path in root.rglob("*.py"))
    return frozenset(".".join(path.parts).removesuffix(".__init__") for path in paths)


def _strange_variables(env: Mapping[str, str]) -> Iterable[str]:
    """A warning only: container platforms put variables of this form into the environment by themselves."""
    known = [BOOTSTRAP_VARIABLE, CLIENT_CONFIG_VARIABLE, *(setting.env for setting in table().values())]
    for variable in sorted(env):
        if variable.startswith(ENV_PREFIX) and variable not in known:
            yield f"environment: {variable} is not a setting and does nothing{nearest(variable, known)}"


def _doubts(settings: Settings) -> Iterable[str]:
    if settings.is_everywhere and settings.advertise is None:
        host = settings.advertised(kafka_port=settings.kafka_port).host
        yield (
            f"bind is {settings.bind} and nothing is advertised: clients are told to connect to {host}; "
            "set --advertise to a name that they can reach"
        )
    if settings.peers and settings.cluster_secret is None:
        yield (
            "there are peers but no cluster_secret: a stranger on this machine who says that he is node "
            f"{settings.peers[-1].id} is welcomed; set CHRONIK_CLUSTER_SECRET, the same on all nodes"
        )
    if not settings.is_local and settings.insecure and settings.admin_api_key is None:
        yield (
            "insecure: everybody who can reach the HTTP port may read every record; "
            "CHRONIK_ADMIN_API_KEY keeps strangers out"
        )
    if settings.min_insync_replicas > settings.default_replication_factor:
        yield (
            f"min_insync_replicas {settings.min_insync_replicas} is more than the "
            f"{settings.default_replication_factor} replicas of a new topic: acks=all needs all of them there"
        )


def environment() -> Mapping[str, str]:
    """The variables of this process."""
    return os.environ


def bootstrap(flag: str | None, env: Mapping[str, str]) -> str:
    """The addresses that a client command asks first: flag, environment, this machine."""
    return flag or env.get(BOOTSTRAP_VARIABLE) or BOOTSTRAP_DEFAULT


def client_config(env: Mapping[str, str]) -> Path | None:
    """The client.properties that a client command uses if no other is named."""
    return Path(given) if (given := env.get(CLIENT_CONFIG_VARIABLE)) else None


def use_client_config(path: Path) -> None:
    """Have the client commands of this process use it."""
    os.environ[CLIENT_CONFIG_VARIABLE] = str(path)


def api_key(env: Mapping[str, str]) -> str | None:
    """The key that a client command sends along."""
    return env.get(table()["admin_api_key"].env) or None


def http_tls_ca(env: Mapping[str, str]) -> Path | None:
    """The certificates that a client command believes besides the system's."""
    return Path(given) if (given := env.get(table()["http_tls_ca"].env)) else None
