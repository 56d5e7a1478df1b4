"""ACLs: what they say, and who may do what by them. Pure.

Rules, as in Kafka's StandardAuthorizer:
- a super user may do everything;
- an ACL counts if its resource, principal and host match. A resource matches literally, by prefix, or as the
  wildcard `*`; principal and host literally or as wildcard;
- a DENY of the operation (or of ALL) refuses, whatever else allows it;
- an ALLOW allows its operation; besides, READ, WRITE, DELETE and ALTER allow DESCRIBE, and ALTER_CONFIGS
  allows DESCRIBE_CONFIGS. A DENY implies nothing;
- otherwise it is refused, unless no ACL at all names the resource and `allow.everyone.if.no.acl.found` is
  set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from chronik.model import check_name_bytes

__all__ = [
    "CLUSTER_NAME",
    "OPERATIONS",
    "WILDCARD",
    "AclBinding",
    "AclFilter",
    "AclIndex",
    "Decision",
    "Operation",
    "PatternType",
    "Permission",
    "ResourceType",
    "check_binding",
]


class ResourceType(IntEnum):
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    ANY = 1
    """In filters only: every pattern."""
    MATCH = 2
    """In filters only: every pattern that covers the name."""
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    ANY = 1
    DENY = 2
    ALLOW = 3


WILDCARD: Final = "*"
CLUSTER_NAME: Final = "kafka-cluster"
_EVERYBODY: Final = "User:*"
_HOSTS: Final = "*"

_O: Final = Operation
OPERATIONS: Final[dict[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        _O.READ,
        _O.WRITE,
        _O.CREATE,
        _O.DELETE,
        _O.ALTER,
        _O.DESCRIBE,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (_O.READ, _O.DELETE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    ResourceType.CLUSTER: (
        _O.CREATE,
        _O.ALTER,
        _O.DESCRIBE,
        _O.CLUSTER_ACTION,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
        _O.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (_O.WRITE, _O.DESCRIBE, _O.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (_O.DESCRIBE,),
    ResourceType.USER: (_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS),
}
"""Operations that make sense on a resource of each type (Kafka's AclEntry)."""

_GRANTED_BY: Final[dict[Operation, frozenset[Operation]]] = {
    operation: frozenset({operation, Operation.ALL}) for operation in Operation
} | {
    _O.DESCRIBE: frozenset({_O.ALL, _O.DESCRIBE, _O.READ, _O.WRITE, _O.DELETE, _O.ALTER}),
    _O.DESCRIBE_CONFIGS: frozenset({_O.ALL, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS}),
}


class AclBinding(msgspec.Struct, frozen=True, order=True, kw_only=True):
    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType = PatternType.LITERAL
    principal: str
    host: str = _HOSTS
    operation: Operation
    permission: Permission = Permission.ALLOW

    def __str__(self) -> str:
        pattern = "prefixed " if self.pattern_type is PatternType.PREFIXED else ""
        host = "" if self.host == _HOSTS else f" from {self.host}"
        resource = f"{pattern}{self.resource_type.name} {self.resource_name}"
        return f"{self.permission.name} {self.principal}{host} {self.operation.name} on {resource}"


def check_binding(binding: AclBinding) -> None:
    """ValueError if no such ACL may be made."""
    if binding.resource_type is ResourceType.ANY or binding.operation is Operation.ANY:
        raise ValueError("an ACL names one resource type and one operation")
    if binding.permission is Permission.ANY or binding.pattern_type not in (
        PatternType.LITERAL,
        PatternType.PREFIXED,
    ):
        raise ValueError("an ACL is ALLOW or DENY, and LITERAL or PREFIXED")
    if binding.operation is not Operation.ALL and binding.operation not in OPERATIONS[binding.resource_type]:
        kind = binding.resource_type.name
        raise ValueError(f"{binding.operation.name} cannot be granted on a resource of type {kind}")
    if not binding.resource_name or not binding.host:
        raise ValueError("an ACL needs a resource name and a host")
    check_name_bytes("the resource name of an ACL", binding.resource_name)
    check_name_bytes("the host of an ACL", binding.host)
    check_name_bytes("the principal of an ACL", binding.principal)
    if binding.resource_type is ResourceType.CLUSTER and binding.resource_name not in (
        CLUSTER_NAME,
        WILDCARD,
    ):
        raise ValueError(f"the only cluster resource is {CLUSTER_NAME}")
    kind, _, name = binding.principal.partition(":")
    if not kind or not name:
        raise ValueError(f"{binding.principal!r} is no principal: write User:name")


class AclFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which bindings to list or delete; what is None or ANY does not matter."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, binding: AclBinding) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, binding.resource_type)
            and self._matches_pattern(binding)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (Operation.ANY, binding.operation)
            and self.permission in (Permission.ANY, binding.permission)
        )

    def _matches_pattern(self, binding: AclBinding) -> bool:
        name, held = self.resource_name, binding.resource_name
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, binding.pattern_type):
            return False
        if name is None:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return name == held
        if binding.pattern_type is PatternType.PREFIXED:
            return name.startswith(held)
        return held in (name, WILDCARD)


class Decision(NamedTuple):
    allowed: bool
    binding: AclBinding | None
    """The ACL that decides; None where none does."""
    why: str


class _Names:
    """Bindings of one resource type, by how they name resources."""

    def __init__(self) -> None:
        self.literal: dict[str, list[AclBinding]] = {}
        self.prefixed: dict[str, list[AclBinding]] = {}
        self.prefix_lengths: tuple[int, ...] = ()

    def add(self, binding: AclBinding) -> None:
        table = self.prefixed if binding.pattern_type is PatternType.PREFIXED else self.literal
        table.setdefault(binding.resource_name, []).append(binding)

    def finish(self) -> None:
        self.prefix_lengths = tuple(sorted({len(prefix) for prefix in self.prefixed}))

    def covering(self, name: str) -> Iterator[AclBinding]:
        """Every binding whose resource is this name: one look per length of prefix in use."""
        yield from self.literal.get(name, ())
        if name != WILDCARD:
            yield from self.literal.get(WILDCARD, ())
        length_max = len(name)
        for length in self.prefix_lengths:
            if length > length_max:
                return
            yield from self.prefixed.get(name[:length], ())


class AclIndex:
    """All ACLs of a cluster, arranged for decisions. Built again when they change."""

    def __init__(
        self,
        bindings: Iterable[AclBinding] = (),
        *,
        super_users: Iterable[str] = (),
        allow_if_no_acl: bool = False,
    ) -> None:
        self.super_users = frozenset(super_users)
        self._allow_if_no_acl = allow_if_no_acl
        self._by_type = {kind: _Names() for kind in ResourceType}
        for binding in sorted(bindings):
            self._by_type[binding.resource_type].add(binding)
        for names in self._by_type.values():
            names.finish()

    def allows(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        return self.decide(principal, host, operation, kind, name).allowed

    def decide(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> Decision:
        if principal in self.super_users:
            return Decision(True, None, f"{principal} is a super user")
        granted_by = _GRANTED_BY[operation]
        granting: AclBinding | None = None
        named = False
        for binding in self._by_type[kind].covering(name):
            named = True
            if not _concerns(binding, principal, host):
                continue
            if binding.permission is Permission.DENY:
                if binding.operation in (operation, Operation.ALL):
                    return Decision(False, binding, "denied by an ACL")
            elif granting is None and binding.operation in granted_by:
                granting = binding
        if granting is not None:
            return Decision(True, granting, "allowed by an ACL")
        if named:
            return Decision(False, None, "ACLs name the resource, none allows this")
        if self._allow_if_no_acl:
            return Decision(True, None, "no ACL names the resource, and then everybody may")
        return Decision(False, None, "no ACL allows this")

    def allows_any(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Whether there can be a resource of this type on which the operation is allowed.

        An idempotent producer asks so before it names a topic (KIP-679).
        """
        if self.allows(principal, host, operation, kind, "hardcode"):
            return True
        names = self._by_type[kind]
        held = [*_flat(names.literal), *_flat(names.prefixed)]
        own = [
            one
            for one in held
            if _concerns(one, principal, host) and one.operation in (operation, Operation.ALL)
        ]
        denied = [one for one in own if one.permission is Permission.DENY]
        if any(_is_wildcard(one) for one in denied):
            return False
        return any(
            one.permission is Permission.ALLOW and not any(_swallows(deny, one) for deny in denied)
            for one in own
        )


def _flat(table: dict[str, list[AclBinding]]) -> Iterator[AclBinding]:
    for bindings in table.values():
        yield from bindings


def _concerns(binding: AclBinding, principal: str, host: str) -> bool:
    return binding.principal in (principal, _EVERYBODY) and binding.host in (host, _HOSTS)


def _is_wildcard(binding: AclBinding) -> bool:
    return binding.pattern_type is PatternType.LITERAL and binding.resource_name == WILDCARD


def _swallows(deny: AclBinding, allow: AclBinding) -> bool:
    """Whether nothing is left of what `allow` covers once `deny` has been heard."""
    if _is_wildcard(allow):
        return False
    if deny.pattern_type is PatternType.PREFIXED:
        return allow.resource_name.startswith(deny.resource_name)
    return allow.pattern_type is PatternType.LITERAL and allow.resource_name == deny.resource_name
