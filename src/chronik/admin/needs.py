"""What endpoints need: resources that a call names in its path. The gate decides, as for Kafka's APIs.

What nodes ask of each other is for nodes alone: they sign their calls, and no ACL gives that to a user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from chronik.admin.endpoint import HttpCall
from chronik.model import RequestError
from chronik.security.acls import Operation, ResourceType
from chronik.server.access import Access, refusal
from chronik.server.gate import Asker, Needs, Refused, RequestT, on_cluster, on_named

__all__ = ["BY_NODE", "BY_NODE_ALONE", "is_by_node", "on_cluster_or_by_node", "on_group", "on_topic"]


@dataclass(frozen=True, slots=True)
class _ByNode:
    """A call that a node signed. Nodes without a secret cannot sign: then, unless `alone`, who may do
    everything may do this too."""

    others: Needs | None = None
    """What somebody else needs for the same."""
    alone: bool = False

    @property
    def demands(self) -> tuple[tuple[Operation, ResourceType], ...]:
        return () if self.others is None else self.others.demands

    def admit(self, request: RequestT, ctx: Asker, refused: Refused[RequestT]) -> RequestT | None:
        call = cast("HttpCall", ctx)
        if call.caller.signed is not None:
            return request
        can_sign = call.context.security.node_signature is not None
        if call.access.is_open and not (self.alone and can_sign):
            return request
        if self.others is None:
            raise RequestError(refusal(ResourceType.CLUSTER))
        return self.others.admit(request, ctx, refused)

    def show(self, fields: Mapping[str, Any], access: Access) -> Mapping[str, Any]:
        return fields


BY_NODE: Final[Needs] = _ByNode()
BY_NODE_ALONE: Final[Needs] = _ByNode(alone=True)


def on_cluster_or_by_node(operation: Operation) -> Needs:
    return _ByNode(on_cluster(operation))


def is_by_node(needs: Needs) -> bool:
    return isinstance(needs, _ByNode)


def on_topic(operation: Operation) -> Needs:
    return on_named(operation, ResourceType.TOPIC, _in_path("name"))


def on_group(operation: Operation) -> Needs:
    return on_named(operation, ResourceType.GROUP, _in_path("group_id"))


def _in_path(part: str) -> Any:
    def name(call: HttpCall) -> str:
        return call.path[part]

    return name
