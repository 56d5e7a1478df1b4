"""Checks each request against the ACLs, between dispatcher and handler.

Every handler declares its `needs` beside its versions:

- `NOTHING`: anyone may call it (ApiVersions, the login itself);
- `on_cluster(operation)`, `on_group(operation)`, `on_transaction(operation)`: without the right the whole
  request is refused;
- `each(...)`: each item of a list in the request needs the right. The handler gets the allowed items; its
  `on_error` makes the answer for the others;
- `shown(...)`: items of a list in the answer are left out unless the principal has the right;
- `BY_SECRET`: anyone may call it, and the handler checks the secret in the request (delegation tokens);
- `asks(...)`: the handler itself asks `ctx.access`, since the resource depends on what the request says.
  tests/unit/server/test_gate.py checks that each of these handlers does;
- `all_of(...)`: several of these, in this order.

Without an authorizer the dispatcher calls handlers directly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar, cast

from chronik.metadata.commands import GROUP_RESOURCE, TOPIC_RESOURCE
from chronik.model import ErrorCode, RequestError
from chronik.security.acls import CLUSTER_NAME, Operation, ResourceType
from chronik.server.access import Access, refusal

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from chronik.server.dispatch import RequestContext

__all__ = [
    "BY_SECRET",
    "NOTHING",
    "Asker",
    "Needs",
    "Refused",
    "RequestT",
    "all_of",
    "asks",
    "each",
    "each_config",
    "each_topic",
    "on_cluster",
    "on_group",
    "on_named",
    "on_transaction",
    "pass_gate",
    "shown",
]

_Reply: TypeAlias = Mapping[str, Any]


class Asker(Protocol):
    """What the gate must know about the sender of a request."""

    @property
    def access(self) -> Access: ...


RequestT = TypeVar("RequestT")
"""A request that was read: one of kio's classes, or a call over HTTP. These are dataclasses."""
GatedT = TypeVar("GatedT", contravariant=True)
AskerT = TypeVar("AskerT", bound=Asker)
Refused: TypeAlias = list[tuple[RequestT, ErrorCode]]
"""The refused parts of a request, each as a request of its own, with the error code for the client."""


class Needs(Protocol):
    """The rights that an API needs. `demands` lists them, for the documentation and tests."""

    @property
    def demands(self) -> tuple[tuple[Operation, ResourceType], ...]: ...

    def admit(self, request: RequestT, ctx: Asker, refused: Refused[RequestT]) -> RequestT | None:
        """The allowed part of the request; None if all its items are refused.

        Refused items are added to `refused`. RequestError refuses the request as a whole.
        """
        ...

    def show(self, fields: _Reply, access: Access) -> _Reply:
        """The answer without items that this principal may not see."""
        ...


@dataclass(frozen=True, slots=True)
class _Nothing:
    demands: tuple[tuple[Operation, ResourceType], ...] = ()
    """For handlers that ask `ctx.access` themselves: the rights that they ask for."""

    def admit(self, request: RequestT, ctx: Asker, refused: Refused[RequestT]) -> RequestT | None:
        return request

    def show(self, fields: _Reply, access: Access) -> _Reply:
        return fields


NOTHING: Final[Needs] = _Nothing()
BY_SECRET: Final[Needs] = _Nothing()
"""Needs no right: the handler checks the secret that the request carries."""


def asks(*demands: tuple[Operation, ResourceType]) -> Needs:
    return _Nothing(demands)


@dataclass(frozen=True, slots=True)
class _Whole:
    operation: Operation
    kind: ResourceType
    name: Callable[[Any], str | None]
    """The resource's name; None if this request names none, so that no right is needed."""

    @property
    def demands(self) -> tuple[tuple[Operation, ResourceType], ...]:
        return ((self.operation, self.kind),)

    def admit(self, request: RequestT, ctx: Asker, refused: Refused[RequestT]) -> RequestT | None:
        name = self.name(request)
        if name is not None:
            ctx.access.require(self.operation, self.kind, name)
        return request

    def show(self, fields: _Reply, access: Access) -> _Reply:
        return fields


@dataclass(frozen=True, slots=True)
class _OnCluster(_Nothing):
    """One of these operations on the cluster."""

    def admit(self, request: RequestT, ctx: Asker, refused: Refused[RequestT]) -> RequestT | None:
        if not any(ctx.access.on_cluster(operation) for operation, _ in self.demands):
            raise RequestError(refusal(ResourceType.CLUSTER))
        return request


def on_cluster(*any_of: Operation) -> Needs:
    return _OnCluster(tuple((operation, ResourceType.CLUSTER) for operation in any_of))


def on_named(operation: Operation, kind: ResourceType, name: Callable[[Any], str | None]) -> Needs:
    """On the resource that a request names; HTTP calls do so in their path."""
    return _Whole(operation, kind, name)


def on_group(operation: Operation, field: str = "group_id") -> Needs:
    return _Whole(operation, ResourceType.GROUP, lambda request: getattr(request, field, None))


def on_transaction(operation: Operation) -> Needs:
    return _Whole(
        operation, ResourceType.TRANSACTIONAL_ID, lambda request: getattr(request, "transactional_id", None)
    )


@dataclass(frozen=True, slots=True)
class _Each:
    field: str
    resource: Callable[[Any, Any], tuple[ResourceType, str] | None]
    """The resource that an item names; None if it names none. Then the handler refuses the item itself."""
    operation: Operation
    kinds: tuple[ResourceType, ...]
    unless_on_cluster: Operation | None

    @property
    def demands(self) -> tuple[tuple[Operation, ResourceType], ...]:
        return tuple((self.operation, kind) for kind in self.kinds)

    def admit(self, request: RequestT, ctx: Asker, refused: Refused[RequestT]) -> RequestT | None:
        items, access = getattr(request, self.field, None), ctx.access
        if not items or (self.unless_on_cluster is not None and access.on_cluster(self.unless_on_cluster)):
            return request
        allowed: list[Any] = []
        others: dict[ResourceType, list[Any]] = {}
        for item in items:
            named = self.resource(item, ctx)
            if named is None or access.permits(self.operation, *named):
                allowed.append(item)
            else:
                others.setdefault(named[0], []).append(item)
        if not others:
            return request
        for kind, refused_items in others.items():
            refused.append((_with_items(request, self.field, refused_items), refusal(kind)))
        return _with_items(request, self.field, allowed) if allowed else None

    def show(self, fields: _Reply, access: Access) -> _Reply:
        return fields


def _with_items(request: RequestT, field: str, items: Iterable[object]) -> RequestT:
    """A copy of the request that has only these items."""
    copy = dataclasses.replace(cast("DataclassInstance", request), **{field: tuple(items)})
    return cast("RequestT", copy)


def each(
    field: str,
    name: str | None,
    operation: Operation,
    kind: ResourceType,
    *,
    unless_on_cluster: Operation | None = None,
) -> Needs:
    """`name` is the attribute of an item that names the resource; None if the item is the name itself."""

    def resource(item: object, _ctx: Asker) -> tuple[ResourceType, str] | None:
        found: Any = item if name is None else getattr(item, name)
        return None if found is None else (kind, found)

    return _Each(field, resource, operation, (kind,), unless_on_cluster)


def each_topic(operation: Operation, field: str = "topics", *, missing_is_told: bool = False) -> Needs:
    """Topics by name, or by id where the API's newer versions have that.

    `missing_is_told`: the handler answers that a topic does not exist, if the principal may see topics of
    that name; else the request is refused for want of the right.
    """

    def resource(item: object, ctx: RequestContext) -> tuple[ResourceType, str] | None:
        name = item if isinstance(item, str) else getattr(item, "name", None)
        if name is None and (topic_id := getattr(item, "topic_id", None)) is not None:
            name = ctx.services.state.topic_names.get(topic_id)
        if missing_is_told and name is not None and name not in ctx.services.state.topics:
            name = None if ctx.access.allows(Operation.DESCRIBE, ResourceType.TOPIC, name) else name
        return None if name is None else (ResourceType.TOPIC, name)

    return _Each(field, resource, operation, (ResourceType.TOPIC,), None)


class _Config(Protocol):
    """An item of a request about configs."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...


def each_config(operation: Operation) -> Needs:
    """Resources that have configs: those of brokers and of client metrics belong to the cluster."""

    def resource(item: _Config, _ctx: Asker) -> tuple[ResourceType, str] | None:
        if item.resource_type == TOPIC_RESOURCE:
            return ResourceType.TOPIC, item.resource_name
        if item.resource_type == GROUP_RESOURCE:
            return ResourceType.GROUP, item.resource_name
        return ResourceType.CLUSTER, CLUSTER_NAME

    kinds = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER)
    return _Each("resources", resource, operation, kinds, None)


@dataclass(frozen=True, slots=True)
class _Shown:
    field: str
    name: str
    operation: Operation
    kind: ResourceType
    unless_on_cluster: Operation | None

    @property
    def demands(self) -> tuple[tuple[Operation, ResourceType], ...]:
        return ((self.operation, self.kind),)

    def admit(self, request: RequestT, ctx: Asker, refused: Refused[RequestT]) -> RequestT | None:
        return request

    def show(self, fields: _Reply, access: Access) -> _Reply:
        if self.unless_on_cluster is not None and access.on_cluster(self.unless_on_cluster):
            return fields
        items: Iterable[Mapping[str, Any]] = fields.get(self.field, ())
        seen = [item for item in items if access.allows(self.operation, self.kind, item[self.name])]
        return {**fields, self.field: seen}


def shown(
    field: str,
    name: str,
    operation: Operation,
    kind: ResourceType,
    *,
    unless_on_cluster: Operation | None = None,
) -> Needs:
    return _Shown(field, name, operation, kind, unless_on_cluster)


@dataclass(frozen=True, slots=True)
class _AllOf:
    parts: tuple[Needs, ...]

    @property
    def demands(self) -> tuple[tuple[Operation, ResourceType], ...]:
        return tuple(demand for part in self.parts for demand in part.demands)

    def admit(self, request: RequestT, ctx: Asker, refused: Refused[RequestT]) -> RequestT | None:
        left: RequestT | None = request
        for part in self.parts:
            if left is None:
                return None
            left = part.admit(left, ctx, refused)
        return left

    def show(self, fields: _Reply, access: Access) -> _Reply:
        for part in self.parts:
            fields = part.show(fields, access)
        return fields


def all_of(*parts: Needs) -> Needs:
    return _AllOf(parts)


class _Gated(Protocol[GatedT]):
    """The part of a Handler that the gate uses."""

    @property
    def needs(self) -> Needs: ...
    @property
    def on_error(self) -> Callable[[GatedT, ErrorCode, str | None], _Reply] | None: ...


async def pass_gate(
    handler: _Gated[RequestT],
    function: Callable[[RequestT, AskerT], Awaitable[_Reply | None]],
    request: RequestT,
    ctx: AskerT,
) -> _Reply | None:
    """Run a handler's function on the allowed part of the request, and add answers for the refused parts."""
    refused: Refused[RequestT] = []
    left = handler.needs.admit(request, ctx, refused)
    fields: _Reply | None = {} if left is None else await function(left, ctx)
    if fields is None:
        return None
    if left is not None:
        fields = handler.needs.show(fields, ctx.access)
    for part, code in refused:
        if handler.on_error is None:
            raise RequestError(code)
        more = dict(handler.on_error(part, code, None))
        more.pop("error_code", None)  # of the whole request; the refused items have codes of their own
        fields = _together(fields, more)
    return fields


def _together(fields: _Reply, more: _Reply) -> _Reply:
    """Join two answers: lists are appended, other fields are taken from the first."""
    merged = {**more, **fields}
    for name, value in more.items():
        if name in fields and isinstance(value, list | tuple):
            merged[name] = [*fields[name], *value]
    return merged
