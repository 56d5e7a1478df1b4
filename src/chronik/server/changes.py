"""Which Kafka requests change something besides records and offsets, and what they changed, by their answers.

A change counts where the answer reports no error, and where it leaves open what happened: a request that ran
out of time may still be carried out, and one whose connection to the leader broke may have been. An entry too
many does no harm. What was refused, by an ACL or for another reason, counts as no change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from chronik.model import ErrorCode, RequestError, violated
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.create_acls.v3.request import CreateAclsRequest
    from kio.schema.offset_delete.v0.request import OffsetDeleteRequest

__all__ = ["CHANGES", "NAME_CHARS_MAX", "changed_by", "joined", "may_have_changed", "names_in"]

NAMES_MAX: Final = 20
NAME_CHARS_MAX: Final = 249

CHANGES: Final = frozenset(
    {
        *(ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_RECORDS),
        *(ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_PARTITION_REASSIGNMENTS),
        *(ApiKey.ELECT_LEADERS, ApiKey.DELETE_GROUPS, ApiKey.OFFSET_DELETE, ApiKey.UPDATE_FEATURES),
        *(ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS, ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.UNREGISTER_BROKER),
        *(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ApiKey.CREATE_DELEGATION_TOKEN),
        *(ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN, ApiKey.WRITE_TXN_MARKERS),
        *(ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER),
    }
)
"""APIs whose changes the audit log notes. Transaction markers are noted only of users, who end a transaction
by force; nodes write them for every transaction."""

_LISTS: Final = (
    *(
        "topics",
        "topic_names",
        "resources",
        "groups_names",
        "creations",
        "filters",
        "deletions",
        "upsertions",
    ),
    *("feature_updates", "topic_partitions"),
)
_NAMES: Final = ("name", "topic", "resource_name", "resource_name_filter", "group_id", "user", "feature")
_UNDECIDED: Final = frozenset(
    {
        *(ErrorCode.request_timed_out, ErrorCode.unknown_server_error, ErrorCode.kafka_storage_error),
        *(ErrorCode.not_controller, ErrorCode.coordinator_not_available),
    }
)
"""Errors after which a change may be made all the same. Handlers answer the last two for Unavailable."""

_Fields: TypeAlias = Mapping[str, Any]
_Part: TypeAlias = tuple[str, Iterable[int]]
"""A name, and the error codes of what was asked for it."""
_Parts: TypeAlias = Callable[[object, _Fields], Iterator[_Part]]


def changed_by(api_key: ApiKey, request: object, fields: _Fields) -> str | None:
    """What a request changed, by name, going by its answer; None if nothing."""
    if getattr(request, "validate_only", False) or _failed(fields.get("error_code", ErrorCode.none)):
        return None
    parts = _PARTS.get(api_key)
    if parts is None:
        return names_in(request)
    names = [name for name, codes in parts(request, fields) if not all(map(_failed, codes))]
    if not names:
        return None
    if api_key is ApiKey.OFFSET_DELETE:
        names.insert(0, cast("OffsetDeleteRequest", request).group_id)
    return joined(names)


def may_have_changed(error: BaseException) -> bool:
    """Whether a handler that ended so may have changed something."""
    return not isinstance(error, RequestError) or error.code in _UNDECIDED


def names_in(request: object) -> str:
    """What a request is about, by its resources' names; never anything else that it carries."""
    found: list[str] = []
    if not dataclasses.is_dataclass(request):
        violated("a request that changes something is a dataclass")
    for field in dataclasses.fields(request):
        value = getattr(request, field.name)
        if field.name in _LISTS and isinstance(value, tuple):
            found += [name for item in value if (name := _name_of(item)) is not None]
        elif field.name in _NAMES and isinstance(value, str):
            found.append(value)
        elif field.name == "broker_id":
            found.append(f"node {value}")
    return joined(found)


def joined(found: Iterable[str]) -> str:
    """Names in one line, as many of them and as much of each as is worth keeping."""
    named = [name[:NAME_CHARS_MAX] for name in dict.fromkeys(found)]
    more = f" and {len(named) - NAMES_MAX} more" if len(named) > NAMES_MAX else ""
    return ", ".join(named[:NAMES_MAX]) + more


def _name_of(item: object) -> str | None:
    if isinstance(item, str):
        return item
    name = next((value for part in _NAMES if (value := getattr(item, part, None)) is not None), None)
    return name if isinstance(name, str) else None


def _failed(code: int) -> bool:
    return code != ErrorCode.none and code not in _UNDECIDED


def _each(field: str, name: str) -> _Parts:
    """Answers that list what was asked for, each with an error code."""

    def parts(_request: object, fields: _Fields) -> Iterator[_Part]:
        for item in fields[field]:
            yield item[name] or "", (item["error_code"],)

    return parts


def _partitions(field: str, name: str, inner: str) -> _Parts:
    """Answers that list topics, whose partitions have the error codes."""

    def parts(_request: object, fields: _Fields) -> Iterator[_Part]:
        for item in fields[field]:
            yield item[name], [one["error_code"] for one in item[inner]]

    return parts


def _acls_made(request: object, fields: _Fields) -> Iterator[_Part]:
    creations = cast("CreateAclsRequest", request).creations
    for creation, result in zip(creations, fields["results"], strict=True):
        yield creation.resource_name, (result["error_code"],)


def _acls_gone(_request: object, fields: _Fields) -> Iterator[_Part]:
    for result in fields["filter_results"]:
        for acl in result["matching_acls"]:
            yield acl["resource_name"], (acl["error_code"],)


def _quotas(_request: object, fields: _Fields) -> Iterator[_Part]:
    for entry in fields["entries"]:
        names = (f"{one['entity_type']} {one['entity_name'] or '<default>'}" for one in entry["entity"])
        yield " ".join(names), (entry["error_code"],)


def _markers(_request: object, fields: _Fields) -> Iterator[_Part]:
    for marker in fields["markers"]:
        for topic in marker["topics"]:
            yield topic["name"], [one["error_code"] for one in topic["partitions"]]


_PARTS: Final[Mapping[ApiKey, _Parts]] = {
    ApiKey.CREATE_TOPICS: _each("topics", "name"),
    ApiKey.DELETE_TOPICS: _each("responses", "name"),
    ApiKey.CREATE_PARTITIONS: _each("results", "name"),
    ApiKey.DELETE_RECORDS: _partitions("topics", "name", "partitions"),
    ApiKey.ALTER_CONFIGS: _each("responses", "resource_name"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _each("responses", "resource_name"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _partitions("responses", "name", "partitions"),
    ApiKey.ELECT_LEADERS: _partitions("replica_election_results", "topic", "partition_result"),
    ApiKey.DELETE_GROUPS: _each("results", "group_id"),
    ApiKey.OFFSET_DELETE: _partitions("topics", "name", "partitions"),
    ApiKey.CREATE_ACLS: _acls_made,
    ApiKey.DELETE_ACLS: _acls_gone,
    ApiKey.ALTER_CLIENT_QUOTAS: _quotas,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _each("results", "user"),
    ApiKey.WRITE_TXN_MARKERS: _markers,
}
"""How to read answers that report each part of a request. All other answers have one error code."""
