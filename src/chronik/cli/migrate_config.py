"""What MirrorMaker 2 is told: its `mirror.properties`, from where the two clusters are and how to log in.

Values only, no I/O. The two sides are called `old` and `new`; `OLD` is part of the names of the topics in
which MirrorMaker keeps its state on the new side, so that a migration that was interrupted goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chronik.model import SCHEMAS_TOPIC

OLD: Final = "old"
NEW: Final = "new"
MAIN_CLASS: Final = "org.apache.kafka.connect.mirror.MirrorMaker"
OFFSETS_TOPIC: Final = f"mm2-offsets.{OLD}.internal"
STATUS_TOPIC: Final = f"mm2-status.{OLD}.internal"
OWN_TOPICS: Final = (
    OFFSETS_TOPIC,
    STATUS_TOPIC,
    f"mm2-configs.{OLD}.internal",
    f"mm2-offset-syncs.{OLD}.internal",
    f"{OLD}.checkpoints.internal",
)
"""MirrorMaker's topics on the new side; nobody needs them when the migration is over."""

TOPICS_EXCLUDED: Final = (
    *(r"mm2.*\.internal", r".*\.checkpoints\.internal", r".*\.replica", "__.*", SCHEMAS_TOPIC),
)
GROUPS_EXCLUDED: Final = ("console-consumer-.*", "connect-.*", "__.*")

_REQUEST_BYTES_MAX: Final = 32 << 20
_BATCH_BYTES: Final = 256 << 10
_SYNC_SECONDS: Final = 2
_TASKS_MAX: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A cluster as MirrorMaker reaches it."""

    bootstrap: str
    properties: Mapping[str, str] = field(default_factory=dict)
    """Protocol, certificates and login, as in a client.properties."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Regular expressions for the names that are moved: one of them has to match the whole name."""

    patterns: tuple[str, ...]
    excluded: tuple[str, ...]

    def takes(self, name: str) -> bool:
        return _matches(name, self.patterns) and not _matches(name, self.excluded)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def choice(text: str, excluded: tuple[str, ...]) -> Choice:
    """A comma-separated list of names and expressions; re.error for one that cannot be read."""
    patterns = tuple(part.strip() for part in text.split(",") if part.strip())
    for pattern in patterns:
        re.compile(pattern)
    return Choice(patterns=patterns, excluded=excluded)


def mirror_properties(
    old: Side, new: Side, *, topics: Choice, groups: Choice, replication_factor: int, partitions: int
) -> dict[str, str]:
    """All settings; `partitions` is how many there are to copy."""
    found = {"clusters": f"{OLD}, {NEW}"}
    for alias, side in ((OLD, old), (NEW, new)):
        found |= {f"{alias}.{name}": value for name, value in side.properties.items()}
        found[f"{alias}.bootstrap.servers"] = side.bootstrap
    way = f"{OLD}->{NEW}"
    found |= {
        f"{way}.enabled": "true",
        f"{NEW}->{OLD}.enabled": "false",
        f"{way}.topics": ",".join(topics.patterns),
        f"{way}.topics.exclude": ",".join(topics.excluded),
        f"{way}.groups": ",".join(groups.patterns),
        f"{way}.groups.exclude": ",".join(groups.excluded),
        # By default MirrorMaker would call the copy of orders old.orders.
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        "emit.heartbeats.enabled": "false",
        f"{NEW}->{OLD}.emit.heartbeats.enabled": "false",
        # Without these two, records of aborted transactions are copied, and a restart copies some twice.
        f"{way}.consumer.isolation.level": "read_committed",
        f"{NEW}.exactly.once.source.support": "enabled",
        # The old cluster is only read: MirrorMaker would keep this topic there.
        "offset-syncs.topic.location": "target",
        "offset.lag.max": "0",
        f"{way}.sync.group.offsets.enabled": "true",
        f"{way}.sync.group.offsets.interval.seconds": str(_SYNC_SECONDS),
        f"{way}.emit.checkpoints.interval.seconds": str(_SYNC_SECONDS),
        f"{way}.refresh.topics.interval.seconds": str(_SYNC_SECONDS),
        f"{way}.refresh.groups.interval.seconds": str(_SYNC_SECONDS),
        # `chronik migrate` makes the topics with all of their configs.
        "sync.topic.configs.enabled": "false",
        "sync.topic.acls.enabled": "false",
        "tasks.max": str(max(1, min(_TASKS_MAX, partitions))),
        # A record may be larger than its topic's max.message.bytes before it is compressed.
        f"{NEW}.producer.max.request.size": str(_REQUEST_BYTES_MAX),
        f"{NEW}.producer.buffer.memory": str(2 * _REQUEST_BYTES_MAX),
        f"{NEW}.producer.compression.type": "zstd",
        f"{NEW}.producer.batch.size": str(_BATCH_BYTES),
    }
    internal = ("", "offset-syncs.topic.", "checkpoints.topic.")
    stored = ("offset.storage.", "config.storage.", "status.storage.")
    found |= {f"{prefix}replication.factor": str(replication_factor) for prefix in (*internal, *stored)}
    return found


def as_text(properties: Mapping[str, str]) -> str:
    """The properties file; a backslash in a value is an escape there."""
    escaped = {name: value.replace("\\", "\\\\").replace("\n", "\\n") for name, value in properties.items()}
    return "".join(f"{name} = {value}\n" for name, value in escaped.items())


def command(java: str, kafka: Path, config: Path, heap_mib: int) -> list[str] | None:
    """How MirrorMaker is started out of an Apache Kafka distribution, or a folder of its jars; None if there
    are none."""
    folder = next(
        (one for one in (kafka / "libs", kafka) if any(one.glob("connect-mirror-[0-9]*.jar"))), None
    )
    if folder is None:
        return None
    logging = []
    for name, option in (
        ("connect-log4j2.yaml", "-Dlog4j2.configurationFile="),
        ("connect-log4j.properties", "-Dlog4j.configuration=file:"),
    ):
        if (file := kafka / "config" / name).exists():
            logging.append(f"{option}{file.absolute()}")
    options = [f"-Xmx{heap_mib}m", *logging, f"-Dkafka.logs.dir={config.parent}"]
    return [java, *options, "-cp", f"{folder}/*", MAIN_CLASS, str(config)]
