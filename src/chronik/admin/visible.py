"""Which topics a caller may see, and which operations it may do."""

from __future__ import annotations

from chronik.admin.endpoint import HttpCall
from chronik.security.acls import OPERATIONS, Operation, ResourceType

__all__ = ["allowed_anywhere", "allowed_on", "readable_topics", "visible_topics"]


def visible_topics(call: HttpCall) -> list[str]:
    """The topics that the caller may DESCRIBE."""
    return _topics(call, Operation.DESCRIBE)


def readable_topics(call: HttpCall) -> list[str]:
    """The topics whose records the caller may READ."""
    return _topics(call, Operation.READ)


def _topics(call: HttpCall, operation: Operation) -> list[str]:
    access = call.access
    return [
        name
        for name in sorted(call.context.state.topics)
        if access.allows(operation, ResourceType.TOPIC, name)
    ]


def allowed_on(call: HttpCall, kind: ResourceType, name: str) -> tuple[str, ...]:
    """The operations that the caller may do on a resource: what a page need not offer is left out."""
    return tuple(one.name for one in OPERATIONS[kind] if call.access.allows(one, kind, name))


def allowed_anywhere(call: HttpCall, kind: ResourceType) -> tuple[str, ...]:
    """The operations that the caller may do on some resource of this type."""
    return tuple(one.name for one in OPERATIONS[kind] if call.access.allows_any(one, kind))
