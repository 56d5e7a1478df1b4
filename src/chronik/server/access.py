"""What one connection's principal may do, decided by the cluster's ACLs and remembered until they change.

`Authorizer` is the node's: it holds the ACLs as an index and counts their changes in `generation`. `Access`
is a connection's: principal, host and the decisions so far, dropped when the generation moves. So a right
that is revoked ends with the next question, however it is asked: remembered produce requests, fetch sessions
and long polls ask `Access` too, and none of them keeps a decision of its own.

Without an authorizer every connection has `EVERYTHING`, which decides nothing and costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chronik.metadata.events import Event, Resync, SecurityChanged
from chronik.metadata.store import MetadataStore
from chronik.model import ErrorCode, RequestError
from chronik.security.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    AclIndex,
    Decision,
    Operation,
    ResourceType,
)
from chronik.security.principals import ANONYMOUS, USER_PREFIX
from chronik.server.audit import AuditTrail

__all__ = [
    "EVERYTHING",
    "HTTP",
    "NODE_PREFIX",
    "QUERY",
    "Access",
    "Authorizer",
    "Everything",
    "Granted",
    "Looking",
    "may_create",
    "refusal",
]

NODE_PREFIX: Final = "Node:"
"""Principals of the cluster's own nodes: they may do everything. No user can be called so."""
QUERY: Final = "Query:"
"""Principals of the processes that search and run SQL, by node: they may read topics."""
HTTP: Final = "Http:"
"""Principals of the nodes' HTTP ports as Kafka clients: what a caller may do was decided before."""
_OWN_RIGHTS: Final = {
    QUERY: frozenset(
        (operation, ResourceType.TOPIC)
        for operation in (Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
    ),
    HTTP: frozenset(
        {
            *((operation, ResourceType.TOPIC) for operation in (Operation.READ, Operation.DESCRIBE)),
            (Operation.WRITE, ResourceType.TOPIC),
            *((operation, ResourceType.GROUP) for operation in (Operation.READ, Operation.DESCRIBE)),
            (Operation.DELETE, ResourceType.GROUP),
            (Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
            (Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
            (Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER),
        }
    ),
}
"""What the nodes' own clients may do, on every resource of the type, and no more."""

DECISIONS_MAX: Final = 10_000
"""Decisions that one connection remembers."""

_REFUSALS: Final = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
    ResourceType.DELEGATION_TOKEN: ErrorCode.delegation_token_authorization_failed,
    ResourceType.USER: ErrorCode.delegation_token_authorization_failed,
}


def may_create(access: Access, topic: str) -> bool:
    """Whether this principal may create the topic, by CreateTopics or by first use."""
    return (
        access.is_open
        or access.on_cluster(Operation.CREATE)
        or access.permits(Operation.CREATE, ResourceType.TOPIC, topic)
    )


def refusal(kind: ResourceType) -> ErrorCode:
    """The error code for a client that may not use a resource of this type."""
    return _REFUSALS[kind]


def _kind(principal: str) -> str:
    return principal[: principal.find(":") + 1]


class Authorizer:
    """The ACLs in force on this node."""

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        super_users: Iterable[str] = (),
        allow_if_no_acl: bool = False,
        audit: AuditTrail | None = None,
    ) -> None:
        self._metadata = metadata
        self.audit = audit
        self._super_users = frozenset(super_users)
        self._allow_if_no_acl = allow_if_no_acl
        self._index: AclIndex | None = None
        self.generation = 0
        """Goes up with every change of the ACLs."""
        self.denied = 0
        """Decisions against a principal; repeated ones that were remembered do not count again."""
        metadata.bus.listen(self._on_event)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Resync) or (isinstance(event, SecurityChanged) and event.what == "acls"):
            self._index = None
            self.generation += 1

    @property
    def index(self) -> AclIndex:
        if self._index is None:
            acls = self._metadata.state.security.acls
            self._index = AclIndex(acls, super_users=self._super_users, allow_if_no_acl=self._allow_if_no_acl)
        return self._index

    def decide(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> Decision:
        if principal.startswith(NODE_PREFIX):
            return Decision(True, None, "a node of the cluster")
        own = None if principal.startswith(USER_PREFIX) else _OWN_RIGHTS.get(_kind(principal))
        if own is not None:
            return Decision((operation, kind) in own, None, "an own client of the nodes")
        decision = self.index.decide(principal, host, operation, kind, name)
        self.denied += not decision.allowed
        return decision

    def is_super(self, principal: str) -> bool:
        return principal in self._super_users

    def access(self, principal: str, host: str, *, is_audited: bool = True) -> Access:
        """`is_audited=False` if the caller writes refusals to the audit log itself."""
        return Access(self, principal, host, self.audit if is_audited else None)


class Access:
    """The decisions about one principal at one host."""

    __slots__ = ("_audit", "_authorizer", "_decided", "_generation", "_visible", "host", "principal")

    is_open: bool = False
    """True if everything is allowed, so that callers need not ask."""
    looks_only: bool = False
    """True for callers that may only look. ACLs alone do not stop them: moving offsets needs only READ."""

    def __init__(
        self, authorizer: Authorizer, principal: str, host: str, audit: AuditTrail | None = None
    ) -> None:
        self._audit = audit
        self._authorizer = authorizer
        self._generation = authorizer.generation
        self._decided: dict[tuple[int, str], bool] = {}
        self._visible: tuple[int, frozenset[str], frozenset[str]] | None = None
        self.principal = principal
        self.host = host

    def allows(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        authorizer, decided = self._authorizer, self._decided
        if self._generation != authorizer.generation or len(decided) > DECISIONS_MAX:
            self._generation = authorizer.generation
            decided.clear()
        asked = (operation * 16 + kind, name)  # plain numbers: an Enum's hash is a call of its own
        found = decided.get(asked)
        if found is None:
            found = authorizer.decide(self.principal, self.host, operation, kind, name).allowed
            decided[asked] = found
        return found

    def visible(self, topics: frozenset[str]) -> frozenset[str]:
        """The topics that may be described: the same object for the same topics, until the ACLs change.
        Members of groups ask with each heartbeat."""
        generation, found = self._authorizer.generation, self._visible
        if found is None or found[0] != generation or found[1] is not topics:
            seen = frozenset(
                name for name in topics if self.allows(Operation.DESCRIBE, ResourceType.TOPIC, name)
            )
            self._visible = found = generation, topics, seen
        return found[2]

    def allows_any(self, operation: Operation, kind: ResourceType) -> bool:
        """Whether the operation is allowed on some resource of this type."""
        if self.principal.startswith(NODE_PREFIX):
            return True
        return self._authorizer.index.allows_any(self.principal, self.host, operation, kind)

    @property
    def is_super(self) -> bool:
        """Whether this principal may do everything, whatever the ACLs say."""
        return self._authorizer.is_super(self.principal)

    def on_cluster(self, operation: Operation) -> bool:
        return self.allows(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def permits(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Like `allows`, and writes a refusal to the audit log."""
        allowed = self.allows(operation, kind, name)
        if not allowed:
            self.note_refusal(operation, kind, name)
        return allowed

    def note_refusal(self, operation: Operation, kind: ResourceType, name: str) -> None:
        if self._audit is not None:
            resource = f"{kind.name.lower()} {name}"
            self._audit.denied(self.principal, self.host, "kafka", operation.name, resource)

    def require(self, operation: Operation, kind: ResourceType, name: str) -> None:
        if not self.permits(operation, kind, name):
            raise RequestError(refusal(kind))

    def operations(self, kind: ResourceType, name: str) -> int:
        """The operations that are allowed on a resource, as the bits of KIP-430."""
        return sum(1 << operation for operation in OPERATIONS[kind] if self.allows(operation, kind, name))


class Everything(Access):
    """The access of everybody where there is no authorizer, and of API keys that may do everything."""

    __slots__ = ()
    is_open = True
    is_super = True

    def __init__(self, principal: str = ANONYMOUS, host: str = "") -> None:
        self.principal, self.host, self._audit = principal, host, None

    def allows(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        return True

    def allows_any(self, operation: Operation, kind: ResourceType) -> bool:
        return True


class Granted(Access):
    """The access of somebody whose rights are not ACLs but these operations, on every resource of these
    types."""

    __slots__ = ("_kinds", "_operations")
    is_super = False

    def __init__(
        self,
        principal: str,
        host: str,
        operations: Iterable[Operation],
        kinds: Iterable[ResourceType] = tuple(ResourceType),
    ) -> None:
        self.principal, self.host, self._audit = principal, host, None
        self._operations, self._kinds = frozenset(operations), frozenset(kinds)

    def allows(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        return operation in self._operations and kind in self._kinds

    def allows_any(self, operation: Operation, kind: ResourceType) -> bool:
        return operation in self._operations and kind in self._kinds


class Looking(Granted):
    """The access of an API key that is for looking."""

    __slots__ = ()
    looks_only = True


EVERYTHING: Final = Everything()
