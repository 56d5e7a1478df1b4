"""The topics that a caller may know of."""

from __future__ import annotations

from chronik.admin.endpoint import HttpCall
from chronik.security.acls import Operation, ResourceType

__all__ = ["readable_topics", "visible_topics"]


def visible_topics(call: HttpCall) -> list[str]:
    """Those that the caller may DESCRIBE."""
    return _topics(call, Operation.DESCRIBE)


def readable_topics(call: HttpCall) -> list[str]:
    """Those whose records the caller may READ."""
    return _topics(call, Operation.READ)


def _topics(call: HttpCall, operation: Operation) -> list[str]:
    access = call.access
    return [
        name
        for name in sorted(call.context.state.topics)
        if access.allows(operation, ResourceType.TOPIC, name)
    ]
