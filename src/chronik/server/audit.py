"""The audit log's memory: who did what from where, allowed or denied, until the writer takes it.

Entries that are alike are one with a count. There is room for `ENTRIES_MAX`, of which refusals take
`DENIALS_MAX` at most: whoever is refused a lot hides no change. Nor does one caller take all the room of
refusals: after `CALLER_DENIALS_MAX` within a minute its further ones are told as a sum. A sum also stands for
what finds no room, so that nothing is left out without a word. Nothing here waits: a request is never held up
by what is written about it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from chronik.model import NodeId

__all__ = ["MORE", "AuditEntry", "AuditTrail"]

ENTRIES_MAX: Final = 10_000
DENIALS_MAX: Final = 8_000
CALLER_DENIALS_MAX: Final = 200
"""Different refusals of one principal at one host that are told one by one, in a minute."""
CALLERS_MAX: Final = 1_000
"""Callers, and sums, that are told apart; the others are one, without name and host."""
DENIED_CHARS_MAX: Final = 512
"""Characters kept of the name of a resource in a refused request: such names can be very long."""
WINDOW_MS: Final = 60_000
MORE: Final = "more"
"""The action of an entry that is a sum."""


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
    """An API, an operation, a call's method and path, login, or more for a sum of different ones."""
    resource: str
    allowed: bool
    count: int = 1


class _What(NamedTuple):
    principal: str
    host: str
    door: str
    action: str
    resource: str
    allowed: bool


class _Noted(NamedTuple):
    time_ms: int
    """When the first of these happened."""
    times: int


class AuditTrail:
    def __init__(
        self, *, node_id: NodeId, now_ms: Callable[[], int], is_on: bool, with_changes: bool
    ) -> None:
        self._node_id = node_id
        self._now_ms = now_ms
        self.is_on = is_on
        self.with_changes = is_on and with_changes
        """Whether allowed changes are noted too, not only refusals."""
        self._waiting: dict[_What, _Noted] = {}
        self._denials = 0
        """Refusals among these."""
        self._sums: dict[_What, _Noted] = {}
        self._window = 0
        self._by_caller: Counter[tuple[str, str]] = Counter()
        """Refusals told one by one in this window, by principal and host."""
        self.dropped = 0
        """What is told only as a part of a sum."""
        self.due = asyncio.Event()
        """Set while there are entries to write; the writer clears it before it takes them."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sums)

    @property
    def has_sums(self) -> bool:
        """Whether there are sums, which are due when their window is over."""
        return bool(self._sums)

    def denied(self, principal: str, host: str, door: str, action: str, resource: str) -> None:
        if self.is_on:
            resource = resource[:DENIED_CHARS_MAX]
            self._note_denial(_What(principal, host, door, action, resource, allowed=False))

    def changed(self, principal: str, host: str, door: str, action: str, resource: str) -> None:
        if self.with_changes:
            what = _What(principal, host, door, action, resource, allowed=True)
            if not self._merged(what) and not self._noted(what, len(self._waiting) < ENTRIES_MAX):
                self._add_to_sum(what)

    def login_failed(self, host: str, why: str) -> None:
        self.denied("", host, "http" if why.startswith("HTTP") else "kafka", "login", why)

    def _note_denial(self, what: _What) -> None:
        if self._merged(what):
            return
        window = self._now_ms() // WINDOW_MS
        if window != self._window:
            self._window = window
            self._by_caller.clear()
        caller = what.principal, what.host
        if caller not in self._by_caller and len(self._by_caller) >= CALLERS_MAX:
            caller = "", ""
        has_room = self._denials < DENIALS_MAX and self._by_caller[caller] < CALLER_DENIALS_MAX
        if self._noted(what, has_room and len(self._waiting) < ENTRIES_MAX):
            self._by_caller[caller] += 1
            self._denials += 1
        else:
            self._add_to_sum(what)

    def _merged(self, what: _What) -> bool:
        held = self._waiting.get(what)
        if held is not None:
            self._waiting[what] = held._replace(times=held.times + 1)
        return held is not None

    def _noted(self, what: _What, has_room: bool) -> bool:
        if has_room:
            self._waiting[what] = _Noted(self._now_ms(), 1)
            self.due.set()
        return has_room

    def _add_to_sum(self, what: _What) -> None:
        what = what._replace(action=MORE, resource="")
        if what not in self._sums and len(self._sums) >= CALLERS_MAX:
            what = what._replace(principal="", host="")
        held = self._sums.get(what) or _Noted(self._now_ms(), 0)
        self._sums[what] = held._replace(times=held.times + 1)
        self.dropped += 1
        self.due.set()

    def take(self, most: int, *, with_all_sums: bool = False) -> list[AuditEntry]:
        """The oldest entries, which are the caller's from now on, and sums whose window is over."""
        taken = []
        for what in list(self._waiting)[:most]:
            taken.append(self._entry(what, self._waiting.pop(what)))
            self._denials -= not what.allowed
        window = self._now_ms() // WINDOW_MS
        over = [
            what
            for what, noted in self._sums.items()
            if with_all_sums or noted.time_ms // WINDOW_MS != window
        ]
        for what in over[: max(0, most - len(taken))]:
            noted = self._sums.pop(what)
            taken.append(self._entry(what._replace(resource=f"and {noted.times} more"), noted))
        return taken

    def _entry(self, what: _What, noted: _Noted) -> AuditEntry:
        return AuditEntry(time_ms=noted.time_ms, node_id=self._node_id, count=noted.times, **what._asdict())
