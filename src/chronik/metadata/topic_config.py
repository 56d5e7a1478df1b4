"""Topic configs: what there is, what is valid, where a value comes from.

A topic's value is its own override, else the brokers' default under the server's name for it (set for all
brokers or in the configuration file), else the default here. Names and defaults are Kafka's, so tools and
habits carry over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from chronik.metadata.config_def import INT_MAX, LONG_MAX, ConfigDef, ConfigKind, check_values, parse_int
from chronik.metadata.durability import FLUSH_CONFIGS, SYNCED, DurabilityPromise
from chronik.metadata.kafka_configs import without_effect
from chronik.model import WITHOUT_EFFECT, ErrorCode, RequestError

__all__ = [
    "LOCAL_IS_TOTAL",
    "TOPIC_CONFIGS",
    "TopicConfig",
    "check_topic_configs",
    "check_topic_conflicts",
    "scaled",
]


def _int(
    name: str, default: int, server: str | None, doc: str, low: int = 0, high: int = INT_MAX
) -> ConfigDef:
    names = ((server, 1),) if server else ()
    return ConfigDef(
        name=name, kind=ConfigKind.INT, default=str(default), server_names=names, doc=doc, low=low, high=high
    )


def _long(name: str, default: int, server: str | None, doc: str, low: int = 0) -> ConfigDef:
    names = ((server, 1),) if server else ()
    return ConfigDef(
        name=name,
        kind=ConfigKind.LONG,
        default=str(default),
        server_names=names,
        doc=doc,
        low=low,
        high=LONG_MAX,
    )


def _bool(name: str, default: bool, server: str | None, doc: str) -> ConfigDef:
    names = ((server, 1),) if server else ()
    return ConfigDef(
        name=name, kind=ConfigKind.BOOLEAN, default=str(default).lower(), server_names=names, doc=doc
    )


_HOUR_MS: Final = 3_600_000
LOCAL_IS_TOTAL: Final = -2
"""Value of local.retention.*: as long as the whole log."""
TIERING_CONFIGS: Final = (
    "local.retention.bytes",
    "local.retention.ms",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
)
"""About the object store of one cluster: a topic that goes to another one may have to do without."""
_DEFINITIONS: Final = (
    ConfigDef(
        name="cleanup.policy",
        kind=ConfigKind.LIST,
        default="delete",
        server_names=(("log.cleanup.policy", 1),),
        choices=("delete", "compact"),
        doc="What happens to old records: delete by age and size, or compact to the last record of each key.",
    ),
    ConfigDef(
        name="compression.type",
        kind=ConfigKind.STRING,
        default="producer",
        server_names=(("compression.type", 1),),
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        doc="Compression of stored batches; producer keeps what the producer chose.",
    ),
    _long(
        "delete.retention.ms",
        24 * _HOUR_MS,
        "log.cleaner.delete.retention.ms",
        "How long a compacted topic keeps tombstones, so that readers have time to see them.",
    ),
    _long(
        "file.delete.delay.ms",
        60_000,
        "log.segment.delete.delay.ms",
        "How long a segment file stays on disk after it left the log.",
    ),
    _long(
        "flush.messages",
        LONG_MAX,
        "log.flush.interval.messages",
        "Set on the topic itself to a number above 1, it relaxes durability: a write is acknowledged from "
        "the page cache, and synced before this many records of a partition are not, or after a minute. "
        "Other values, and defaults of brokers, relax nothing: writes are synced before that.",
        low=1,
    ),
    _long(
        "flush.ms",
        LONG_MAX,
        "log.flush.interval.ms",
        "Set on the topic itself to a number above 0, it relaxes durability: a write is acknowledged from "
        "the page cache, and synced within this time, or a minute if that is less. "
        "Other values, and defaults of brokers, relax nothing: writes are synced before that.",
    ),
    _int(
        "index.interval.bytes",
        4096,
        "log.index.interval.bytes",
        "Bytes of log between two entries of a segment's offset index.",
    ),
    _long(
        "local.retention.bytes",
        LOCAL_IS_TOTAL,
        "log.local.retention.bytes",
        "With remote.storage.enable: size of what is in the object store too and stays on this disk; -2: "
        "retention.bytes.",
        low=LOCAL_IS_TOTAL,
    ),
    _long(
        "local.retention.ms",
        LOCAL_IS_TOTAL,
        "log.local.retention.ms",
        "With remote.storage.enable: age up to which what is in the object store too stays on this disk; -2: "
        "retention.ms.",
        low=LOCAL_IS_TOTAL,
    ),
    _long(
        "max.compaction.lag.ms",
        LONG_MAX,
        "log.cleaner.max.compaction.lag.ms",
        "A record is compacted at the latest when it is this old.",
        low=1,
    ),
    _int(
        "max.message.bytes",
        1_048_588,
        "message.max.bytes",
        "Largest record batch that is accepted, as it arrives (compressed).",
    ),
    _long(
        "message.timestamp.after.max.ms",
        _HOUR_MS,
        "log.message.timestamp.after.max.ms",
        "How far a record's timestamp may lie in the future; with CreateTime only.",
    ),
    _long(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        "log.message.timestamp.before.max.ms",
        "How far a record's timestamp may lie in the past; with CreateTime only.",
    ),
    ConfigDef(
        name="message.timestamp.type",
        kind=ConfigKind.STRING,
        default="CreateTime",
        server_names=(("log.message.timestamp.type", 1),),
        choices=("CreateTime", "LogAppendTime"),
        doc="Whose clock stamps records: the producer's or the broker's.",
    ),
    ConfigDef(
        name="min.cleanable.dirty.ratio",
        kind=ConfigKind.DOUBLE,
        default="0.5",
        server_names=(("log.cleaner.min.cleanable.ratio", 1),),
        low=0,
        high=1,
        doc="Share of a log that must be uncompacted before compaction is worth it.",
    ),
    _long(
        "min.compaction.lag.ms",
        0,
        "log.cleaner.min.compaction.lag.ms",
        "A record is left alone by compaction until it is this old.",
    ),
    _int(
        "min.insync.replicas",
        1,
        "min.insync.replicas",
        "In-sync replicas without which a produce with acks=all is refused.",
        low=1,
    ),
    _bool(
        "preallocate",
        False,
        "log.preallocate",
        f"{WITHOUT_EFFECT}: appends wait for the write-ahead log alone, which is preallocated anyway.",
    ),
    _bool(
        "remote.log.copy.disable",
        False,
        None,
        "Put no more segments into the object store; those that are there stay and are read.",
    ),
    _bool(
        "remote.log.delete.on.disable",
        False,
        None,
        "Whether remote.storage.enable may be switched off, which removes what is in the object store.",
    ),
    _bool(
        "remote.storage.enable",
        False,
        None,
        "Put sealed segments into the object store and read them from there (KIP-405).",
    ),
    _long(
        "retention.bytes",
        -1,
        "log.retention.bytes",
        "Size of a partition beyond which old segments go.",
        low=-1,
    ),
    ConfigDef(
        name="retention.ms",
        kind=ConfigKind.LONG,
        default=str(7 * 24 * _HOUR_MS),
        server_names=(
            ("log.retention.ms", 1),
            ("log.retention.minutes", 60_000),
            ("log.retention.hours", _HOUR_MS),
        ),
        low=-1,
        high=LONG_MAX,
        doc="Age beyond which old segments go; -1 keeps them for ever.",
    ),
    _int("segment.bytes", 2**30, "log.segment.bytes", "Size at which a new segment file is begun.", low=14),
    _int(
        "segment.index.bytes",
        10 * 2**20,
        "log.index.size.max.bytes",
        "Largest offset index of a segment.",
        low=4,
    ),
    ConfigDef(
        name="segment.jitter.ms",
        kind=ConfigKind.LONG,
        default="0",
        server_names=(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR_MS)),
        low=0,
        high=LONG_MAX,
        doc="Random part that is taken off segment.ms.",
    ),
    ConfigDef(
        name="segment.ms",
        kind=ConfigKind.LONG,
        default=str(7 * 24 * _HOUR_MS),
        server_names=(("log.roll.ms", 1), ("log.roll.hours", _HOUR_MS)),
        low=1,
        high=LONG_MAX,
        doc="Age at which a new segment file is begun even if the old one is not full.",
    ),
    _bool(
        "unclean.leader.election.enable",
        False,
        None,  # no default for all topics: who gives up acknowledged records says so topic by topic
        "Let a replica lead that is not in sync when no other is left; acknowledged records may be lost.",
    ),
    _bool("searchable", False, None, "Index the topic's records for full-text search as they arrive."),
)

_VIEWED: Final[Mapping[str, ConfigDef]] = MappingProxyType({one.name: one for one in _DEFINITIONS})
TOPIC_CONFIGS: Final[Mapping[str, ConfigDef]] = MappingProxyType(
    dict(sorted({**without_effect("topic"), **_VIEWED}.items()))
)
"""All that a topic may have; `TopicConfig` has those that were defined here."""


def check_topic_configs(values: Mapping[str, str | None]) -> None:
    """RequestError that names the first key that is unknown or has no valid value."""
    check_values("topic", TOPIC_CONFIGS, values)


def check_topic_conflicts(overrides: Mapping[str, str], *broker_defaults: Mapping[str, str]) -> None:
    """RequestError if values that are valid by themselves contradict each other."""
    config = TopicConfig.resolve(overrides, *broker_defaults)
    low, high = config.min_compaction_lag_ms, config.max_compaction_lag_ms
    if low > high:
        raise RequestError(
            ErrorCode.invalid_config,
            f"Conflict: min.compaction.lag.ms ({low}) is greater than max.compaction.lag.ms ({high}).",
        )
    if config.remote_storage_enable:
        _check_tiered(config)


def _check_tiered(config: TopicConfig) -> None:
    """What Kafka asks of a topic with remote.storage.enable."""
    if config.is_compacted:
        raise RequestError(
            ErrorCode.invalid_config, "Remote log storage is unsupported for the compacted topics"
        )
    for what, local, total in (
        ("ms", config.local_retention_ms, config.retention_ms),
        ("bytes", config.local_retention_bytes, config.retention_bytes),
    ):
        if local != LOCAL_IS_TOTAL and total >= 0 and not 0 <= local <= total:
            raise RequestError(
                ErrorCode.invalid_config,
                f"Invalid value {local} for configuration local.retention.{what}: Value must not be more "
                f"than retention.{what} property value: {total}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The values in force for one topic; attributes are the config names with underscores."""

    cleanup_policy: tuple[str, ...]
    compression_type: str
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    index_interval_bytes: int
    local_retention_bytes: int
    local_retention_ms: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    preallocate: bool
    remote_log_copy_disable: bool
    remote_log_delete_on_disable: bool
    remote_storage_enable: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool
    searchable: bool
    durability: DurabilityPromise = field(init=False, default=SYNCED)
    """Derived from the topic's own flush.ms and flush.messages alone: the defaults of brokers relax nothing.
    """
    is_compacted: bool = field(init=False)
    stamps_append_time: bool = field(init=False)

    def __post_init__(self) -> None:
        """What every produce asks is worked out once."""
        object.__setattr__(self, "is_compacted", "compact" in self.cleanup_policy)
        object.__setattr__(self, "stamps_append_time", self.message_timestamp_type == "LogAppendTime")

    @property
    def deletes_old_segments(self) -> bool:
        return "delete" in self.cleanup_policy

    @staticmethod
    def resolve(overrides: Mapping[str, str], *broker_defaults: Mapping[str, str]) -> TopicConfig:
        """The topic's own values over the brokers' (strongest mapping first) over the built-in ones.

        A value that cannot be read (written by another version) falls back to the next source.
        """
        if not overrides and not any(broker_defaults):
            return _built_in()
        values = {}
        for name, definition in _VIEWED.items():
            values[_attribute(name)] = _first_valid(definition, overrides, broker_defaults)
        config = TopicConfig(**values)
        flush_ms, flush_messages = (_first_valid(_VIEWED[name], overrides, ()) for name in FLUSH_CONFIGS)
        durability = DurabilityPromise.of(flush_ms=flush_ms, flush_messages=flush_messages)
        object.__setattr__(config, "durability", durability)
        return config


def _first_valid(
    definition: ConfigDef, overrides: Mapping[str, str], broker_defaults: tuple[Mapping[str, str], ...]
) -> Any:
    candidates: list[tuple[str, int]] = []
    if definition.name in overrides:
        candidates.append((overrides[definition.name], 1))
    for defaults in broker_defaults:
        candidates += [
            (defaults[name], factor) for name, factor in definition.server_names if name in defaults
        ]
    for text, factor in candidates:
        try:
            value = definition.parse(text if factor == 1 else str(scaled(text, factor)))
        except ValueError:
            continue
        return value
    return definition.parse(definition.default or "")


def scaled(text: str, factor: int) -> int:
    """A value in hours or minutes as milliseconds; -1 means no limit in any unit."""
    number = parse_int(text.strip())
    return number if number < 0 else number * factor


def _attribute(name: str) -> str:
    return name.replace(".", "_")


@cache
def _built_in() -> TopicConfig:
    return TopicConfig(**{_attribute(one.name): one.parse(one.default or "") for one in _DEFINITIONS})
