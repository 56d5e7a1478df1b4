"""Topics that are created because a client produces to them (`auto_create_topics`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from chronik.model import is_internal_topic
from chronik.server.access import may_create
from chronik.server.dispatch import Call
from chronik.server.throttling import may_create_on_first_use
from chronik.server.topics import ensure_topic
from chronik.wire.produce import ProduceRequest

__all__ = ["create_missing_topics", "missing_topics"]

log = logging.getLogger(__name__)


def missing_topics(call: Call[ProduceRequest]) -> Sequence[str]:
    services = call.context.services
    topics = services.state.topics
    missing = []
    for (topic, _), _ in call.request.head.targets:
        if (
            topic not in topics
            and topic
            and not is_internal_topic(topic)
            and may_create(call.context.access, topic)
        ):
            missing.append(topic)
    return missing if missing and services.settings.auto_create_topics else ()


async def create_missing_topics(call: Call[ProduceRequest]) -> None:
    for topic in dict.fromkeys(missing_topics(call)):
        if not may_create_on_first_use(call.context):
            return
        try:
            await ensure_topic(call.context.services, topic)
        except Exception as error:
            # The append answers unknown_topic_or_partition, which clients answer with a retry.
            log.warning("topic %s could not be created on first use: %s", topic, error)
