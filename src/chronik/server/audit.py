"""The audit log's memory: who did what from where, allowed or denied, until the writer takes it.

Entries that are alike are one with a count, so that a client that keeps asking for what it may not have does
not fill the log. There is room for `ENTRIES_MAX`; what finds none is dropped and counted. Nothing here waits:
a request is never held up by what is written about it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from chronik.model import NodeId

__all__ = ["AuditEntry", "AuditTrail"]

ENTRIES_MAX: Final = 10_000


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
        """Whether allowed changes are noted too, not only refusals."""
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
