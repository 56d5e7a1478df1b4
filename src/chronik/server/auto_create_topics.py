"""Topics that are created because a client produces to them (`auto_create_topics`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from chronik.log_lines import RepeatingLine
from chronik.model import RequestError, is_internal_topic
from chronik.server.access import may_create
from chronik.server.dispatch import Call
from chronik.server.throttling import may_create_on_first_use
from chronik.server.topics import check_first_use, ensure_topic
from chronik.wire.produce import ProduceRequest

__all__ = ["create_missing_topics", "missing_topics"]

log = logging.getLogger(__name__)
_not_created: Final = RepeatingLine(log, logging.WARNING, "topic %s could not be created on first use: %s")
_too_many: Final = RepeatingLine(
    log, logging.WARNING, "%d topics of one request were not created on first use: %s"
)


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
    missing = dict.fromkeys(missing_topics(call))
    try:
        check_first_use(call.context.services, missing)
    except RequestError as error:
        _too_many(call.context.access.principal, len(missing), error)
        return
    for topic in missing:
        if not may_create_on_first_use(call.context):
            return
        try:
            await ensure_topic(call.context.services, topic)
        except Exception as error:
            # The append answers unknown_topic_or_partition, which clients answer with a retry.
            _not_created(topic, topic, error)
