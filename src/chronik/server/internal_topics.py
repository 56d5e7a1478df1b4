"""Topics that belong to the nodes: what clients may not do to them, and how they must be configured.

Coordinators keep committed offsets and transactions there. With `cleanup.policy=delete` these would expire;
with more partitions a group's state would be looked for in the wrong one. Only coordinators create them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Final

from chronik.metadata.commands import TOPIC_RESOURCE, SetConfigs
from chronik.metadata.topic_config import TOPIC_CONFIGS, TopicConfig
from chronik.metadata.values import Topic
from chronik.model import AUDIT_TOPIC, ErrorCode, RequestError, is_internal_topic
from chronik.registry.topic import CLEANUP_POLICY, is_foreign
from chronik.server.access import Access
from chronik.server.audit_topic import check_audit_configs, mended_audit_configs
from chronik.server.services import Services

__all__ = [
    "CONFIGS",
    "check_internal_configs",
    "mend_internal_topic",
    "mend_internal_topics",
    "refuse_internal",
]

log = logging.getLogger(__name__)

CONFIGS: Final[Mapping[str, str]] = {CLEANUP_POLICY: "compact", "segment.bytes": str(100 * 1024 * 1024)}


def refuse_internal(name: str, code: ErrorCode, what: str) -> None:
    """RequestError if the topic is internal; `what` is what a client wanted to do."""
    if is_internal_topic(name):
        raise RequestError(code, f"Topic {name} is internal: clients cannot {what} it.")


BOUNDS: Final[tuple[tuple[str, float, float, str], ...]] = (
    ("max.message.bytes", 1_048_588, math.inf, "or what coordinators write would be refused"),
    ("segment.bytes", 4096, math.inf, "or it would be a great many files"),
    ("segment.ms", 60_000, math.inf, "or it would be a great many files"),
    ("segment.index.bytes", 1024, math.inf, "or it would be a great many files"),
    ("min.cleanable.dirty.ratio", 0, 0.9, "or it would be hardly ever compacted and grow"),
    ("min.compaction.lag.ms", 0, 24 * 3_600_000, "or it would not be compacted and grow"),
)
"""Configs with which an internal topic serves its coordinators: lowest and highest value, and why."""


def check_internal_configs(
    topic: Topic, configs: Mapping[str, str], broker_configs: Sequence[Mapping[str, str]], access: Access
) -> None:
    """RequestError if an internal topic with these configs of its own would lose what it must keep, or could
    not be written to."""
    if topic.name == AUDIT_TOPIC:
        check_audit_configs(topic, configs, access)
    if not _holds_state(topic.name):
        return
    if not _is_compacted(configs):
        raise _invalid(topic, f"{CLEANUP_POLICY} must be compact, or committed state would expire.")
    config = TopicConfig.resolve(configs, *broker_configs)
    for name, low, high, why in BOUNDS:
        value = getattr(config, name.replace(".", "_"))
        if name in configs and not low <= value <= high:
            bound = f"at least {low:g}" if value < low else f"at most {high:g}"
            raise _invalid(topic, f"{name} must be {bound}, {why}.")


def _invalid(topic: Topic, why: str) -> RequestError:
    return RequestError(ErrorCode.invalid_config, f"Topic {topic.name} is internal: {why}")


async def mend_internal_topics(services: Services) -> None:
    """Check all internal topics when the node starts."""
    for topic in list(services.state.topics.values()):
        if _holds_state(topic.name):
            await mend_internal_topic(services, topic)
        elif topic.name == AUDIT_TOPIC:
            await _mend_audit_topic(services, topic)


async def _mend_audit_topic(services: Services, topic: Topic) -> None:
    """Give the audit log of an older node the bounds that a new one has."""
    values: dict[str, str | None] = {**mended_audit_configs(topic)}
    if not values:
        return
    named = ", ".join(f"{name}={value}" for name, value in values.items())
    try:
        await services.metadata.submit(
            SetConfigs(resource_type=TOPIC_RESOURCE, name=topic.name, values=values)
        )
    except Exception as error:
        log.error("the configs of %s could not be set to %s: %s", topic.name, named, error)
        return
    log.warning("%s lacked limits that the audit log needs; they are set now: %s", topic.name, named)


async def mend_internal_topic(services: Services, topic: Topic) -> None:
    """Correct the configs of an internal topic that was not created by a coordinator."""
    if is_foreign(topic):
        log.error(
            "%s is not a schema registry's topic: it is left as it is, nobody can write it, and there is no "
            "schema registry until it is deleted",
            topic.name,
        )
        return
    if _is_compacted(topic.configs):
        return
    found = topic.configs.get(CLEANUP_POLICY, "the default")
    values: dict[str, str | None] = {name: topic.configs.get(name, value) for name, value in CONFIGS.items()}
    values[CLEANUP_POLICY] = CONFIGS[CLEANUP_POLICY]
    try:
        await services.metadata.submit(
            SetConfigs(resource_type=TOPIC_RESOURCE, name=topic.name, values=values)
        )
    except Exception as error:
        log.error("%s has cleanup.policy %s, which could not be changed: %s", topic.name, found, error)
        return
    log.warning(
        "%s had cleanup.policy %s: what coordinators keep there would have expired; it is compacted now",
        topic.name,
        found,
    )


def _holds_state(name: str) -> bool:
    """Whether coordinators keep there what must not expire; the audit log may."""
    return is_internal_topic(name) and name != AUDIT_TOPIC


def _is_compacted(configs: Mapping[str, str]) -> bool:
    try:
        return bool(TOPIC_CONFIGS[CLEANUP_POLICY].parse(configs.get(CLEANUP_POLICY, "")) == ("compact",))
    except ValueError:
        return False
