"""ACLs as the fields of Kafka's requests and responses, for the broker and for its client. Pure.

Readers raise ValueError where a number stands for nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

from chronik.security.acls import AclBinding, AclFilter, Operation, PatternType, Permission, ResourceType

__all__ = ["acl_fields", "filter_fields", "read_binding", "read_filter", "resource_fields"]


class ResourceFields(Protocol):
    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...


class AclFields(Protocol):
    @property
    def principal(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def operation(self) -> int: ...
    @property
    def permission_type(self) -> int: ...


class FilterFields(Protocol):
    @property
    def resource_type_filter(self) -> int: ...
    @property
    def resource_name_filter(self) -> str | None: ...
    @property
    def pattern_type_filter(self) -> int: ...
    @property
    def principal_filter(self) -> str | None: ...
    @property
    def host_filter(self) -> str | None: ...
    @property
    def operation(self) -> int: ...
    @property
    def permission_type(self) -> int: ...


def read_binding(resource: ResourceFields, pattern_type: int, acl: AclFields) -> AclBinding:
    """`pattern_type` comes by itself: requests and responses have different names for it."""
    return AclBinding(
        resource_type=ResourceType(resource.resource_type),
        resource_name=resource.resource_name,
        pattern_type=PatternType(pattern_type),
        principal=acl.principal,
        host=acl.host,
        operation=Operation(acl.operation),
        permission=Permission(acl.permission_type),
    )


def resource_fields(binding: AclBinding) -> dict[str, Any]:
    return {
        "resource_type": binding.resource_type,
        "resource_name": binding.resource_name,
        "pattern_type": binding.pattern_type,
    }


def acl_fields(binding: AclBinding) -> dict[str, Any]:
    return {
        "principal": binding.principal,
        "host": binding.host,
        "operation": binding.operation,
        "permission_type": binding.permission,
    }


def read_filter(fields: FilterFields) -> AclFilter:
    return AclFilter(
        resource_type=ResourceType(fields.resource_type_filter),
        resource_name=fields.resource_name_filter,
        pattern_type=PatternType(fields.pattern_type_filter),
        principal=fields.principal_filter,
        host=fields.host_filter,
        operation=Operation(fields.operation),
        permission=Permission(fields.permission_type),
    )


def filter_fields(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.resource_name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }
