"""How the audit log's topic must be configured, and who may change that.

Configs decide how long entries are kept and whether they can be written at all. Somebody with ALTER_CONFIGS
on every topic could erase what is held against them, so only super users change these, within bounds. The
topic has each of them for itself: what the brokers' defaults become does not reach it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from chronik.metadata.topic_config import TOPIC_CONFIGS
from chronik.metadata.values import Topic
from chronik.model import ErrorCode, RequestError
from chronik.security.acls import Operation, ResourceType
from chronik.server.access import Access, refusal

__all__ = ["audit_topic_configs", "check_audit_configs", "mended_audit_configs"]

CLEANUP_POLICY: Final = "cleanup.policy"
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
RETENTION: Final = frozenset({"retention.ms", "retention.bytes"})
DAY_MS: Final = 24 * 3_600_000
MIB: Final = 1024 * 1024
_CONFIGS: Final[Mapping[str, str]] = {
    CLEANUP_POLICY: "delete",
    "max.message.bytes": "1048588",
    "retention.bytes": str(1024 * MIB),
    "retention.ms": str(90 * DAY_MS),
    "segment.bytes": str(64 * MIB),
    "segment.ms": str(7 * DAY_MS),
}
_LOWEST: Final[Mapping[str, int]] = {
    "max.message.bytes": 1_048_588,
    "retention.bytes": 64 * MIB,
    "retention.ms": DAY_MS,
    "segment.bytes": MIB,
    "segment.ms": 60_000,
}
UNLIMITED: Final = -1
"""Value of retention.ms and retention.bytes: nothing is removed."""


def audit_topic_configs(replicas: int) -> dict[str, str]:
    """The configs that the topic is created with. One replica may be away without stopping the log."""
    return {**_CONFIGS, MIN_INSYNC_REPLICAS: str(max(1, min(2, replicas - 1)))}


def check_audit_configs(topic: Topic, configs: Mapping[str, str], access: Access) -> None:
    """RequestError if this principal may not give the audit log's topic these configs of its own."""
    if not access.is_super:
        access.note_refusal(Operation.ALTER_CONFIGS, ResourceType.TOPIC, topic.name)
        raise RequestError(
            refusal(ResourceType.TOPIC), f"Only super users change the configs of {topic.name}."
        )
    for name in audit_topic_configs(_replicas(topic)):
        if (why := _wrong(name, configs.get(name), _replicas(topic))) is not None:
            raise RequestError(ErrorCode.invalid_config, f"{topic.name} is the audit log: {name} must {why}.")


def mended_audit_configs(topic: Topic) -> dict[str, str]:
    """New values for configs that the topic lacks, or has out of bounds: it was made by an older node."""
    replicas = _replicas(topic)
    return {
        name: value
        for name, value in audit_topic_configs(replicas).items()
        if _wrong(name, topic.configs.get(name), replicas) is not None
    }


def _wrong(name: str, text: str | None, replicas: int) -> str | None:
    """What the config must be, if it is not; None if it is."""
    if text is None:
        return "be set for this topic"
    try:
        value = TOPIC_CONFIGS[name].parse(text)
    except ValueError:
        return "be valid"
    if name == CLEANUP_POLICY:
        return None if value == ("delete",) else "be delete"
    if name in RETENTION and value == UNLIMITED:
        return None
    low, high = (1, replicas) if name == MIN_INSYNC_REPLICAS else (_LOWEST[name], math.inf)
    if value < low:
        return f"be at least {low}"
    return None if value <= high else f"be at most {high}, the number of its replicas"


def _replicas(topic: Topic) -> int:
    return len(topic.partitions[0].replicas)
