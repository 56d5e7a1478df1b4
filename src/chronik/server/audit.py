"""The audit log's memory: who did what from where, allowed or denied, until the writer takes it.

Entries that are alike are one with a count, so that a client that keeps asking for what it may not have does
not fill the log. There is room for `ENTRIES_MAX`; what finds none is dropped and counted. Nothing here waits:
a request is never held up by what is written about it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from chronik.model import NodeId
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from chronik.server.gate import Request

__all__ = ["CHANGES", "AuditEntry", "AuditTrail", "names_in"]

ENTRIES_MAX: Final = 10_000
NAMES_MAX: Final = 20
NAME_CHARS_MAX: Final = 249

CHANGES: Final = frozenset(
    {
        *(ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_RECORDS),
        *(ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_PARTITION_REASSIGNMENTS),
        *(ApiKey.ELECT_LEADERS, ApiKey.DELETE_GROUPS, ApiKey.OFFSET_DELETE, ApiKey.UPDATE_FEATURES),
        *(ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS, ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.UNREGISTER_BROKER),
        *(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ApiKey.CREATE_DELEGATION_TOKEN),
        *(ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN),
        *(ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER),
    }
)
"""APIs that are noted when they are allowed: those that change something besides records and offsets."""
_LISTS: Final = ("topics", "resources", "groups_names", "creations", "filters", "deletions", "upsertions")
_NAMES: Final = ("name", "topic", "resource_name", "resource_name_filter", "group_id", "user")


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One record of the audit log, in JSON."""

    time_ms: int
    """When the first of these happened."""
    node_id: NodeId
    principal: str
    host: str
    door: str
    """kafka or http"""
    action: str
    """An API, an operation, a call's method and path, or login."""
    resource: str
    allowed: bool
    count: int = 1


class AuditTrail:
    def __init__(
        self, *, node_id: NodeId, now_ms: Callable[[], int], is_on: bool, with_changes: bool
    ) -> None:
        self._node_id = node_id
        self._now_ms = now_ms
        self.is_on = is_on
        self.with_changes = is_on and with_changes
        """Whether what was allowed is noted, too."""
        self._waiting: dict[tuple[str, str, str, str, str, bool], tuple[int, int]] = {}
        self.dropped = 0
        self.on_entry: Callable[[], None] = _nobody
        """Called when there is something to write, by an entry that finds the memory empty."""

    def __len__(self) -> int:
        return len(self._waiting)

    def denied(self, principal: str, host: str, door: str, action: str, resource: str) -> None:
        self._note((principal, host, door, action, resource, False))

    def changed(self, principal: str, host: str, door: str, action: str, resource: str) -> None:
        if self.with_changes:
            self._note((principal, host, door, action, resource, True))

    def login_failed(self, host: str, why: str) -> None:
        self._note(("", host, "http" if why.startswith("HTTP") else "kafka", "login", why, False))

    def _note(self, what: tuple[str, str, str, str, str, bool]) -> None:
        if not self.is_on:
            return
        held = self._waiting.get(what)
        if held is not None:
            self._waiting[what] = (held[0], held[1] + 1)
        elif len(self._waiting) >= ENTRIES_MAX:
            self.dropped += 1
        else:
            self._waiting[what] = (self._now_ms(), 1)
            if len(self._waiting) == 1:
                self.on_entry()

    def take(self, most: int) -> list[AuditEntry]:
        """The oldest entries, which are the caller's from now on."""
        taken = []
        for what in list(self._waiting)[:most]:
            time_ms, count = self._waiting.pop(what)
            principal, host, door, action, resource, allowed = what
            taken.append(
                AuditEntry(
                    time_ms=time_ms,
                    node_id=self._node_id,
                    principal=principal,
                    host=host,
                    door=door,
                    action=action,
                    resource=resource,
                    allowed=allowed,
                    count=count,
                )
            )
        return taken


def _nobody() -> None:
    """Nothing is written yet."""


def names_in(request: Request) -> str:
    """What a Kafka request is about, by its resources' names; never anything else that it carries."""
    found: list[str] = []
    for field in dataclasses.fields(request):
        value = getattr(request, field.name)
        if field.name in _LISTS and isinstance(value, tuple):
            found += _names_of(value)
        elif field.name in _NAMES and isinstance(value, str):
            found.append(value)
    named = [name[:NAME_CHARS_MAX] for name in dict.fromkeys(found)]
    more = f" and {len(named) - NAMES_MAX} more" if len(named) > NAMES_MAX else ""
    return ", ".join(named[:NAMES_MAX]) + more


def _names_of(items: Iterable[Any]) -> list[str]:
    out = []
    for item in items:
        if isinstance(item, str):
            out.append(item)
            continue
        name = next((value for part in _NAMES if (value := getattr(item, part, None)) is not None), None)
        if isinstance(name, str):
            out.append(name)
    return out
