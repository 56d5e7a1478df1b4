"""Remembers failed logins, by Kafka and by HTTP alike: each further failure makes its sender wait longer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from chronik.log_lines import RepeatingLine
from chronik.security.exchange import AuthenticationFailed

__all__ = ["Crowded", "LoginFailures"]

log = logging.getLogger(__name__)
_failed: Final = RepeatingLine(log, logging.WARNING, "a login failed: %s")

DELAY_SECONDS: Final = 0.1
"""A failed login is answered after this; twice as late with every further one from the same address."""
DELAY_SECONDS_MAX: Final = 5.0
FAILURES_KEPT: Final = 10_000
WAITING_PER_HOST_MAX: Final = 10
"""Failed logins of one address that wait for their answer; its further ones are not even looked at."""
UNSEEN_SECONDS: Final = 1.0
"""A login that was not looked at is answered after this, so that trying again at once is no use."""


class Crowded(AuthenticationFailed):
    """A login was not looked at, since too many are under way. It may have been right."""


class LoginFailures:
    def __init__(self, on_failure: Callable[[str, str], None] | None = None) -> None:
        """`on_failure` hears the address and the reason of each."""
        self._on_failure = on_failure
        self._counts: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self.total = 0
        """Logins that failed since the start."""

    def is_crowded(self, host: str) -> bool:
        """Whether this address has too many failed logins waiting for their delay to try again now."""
        return self._waiting.get(host, 0) >= WAITING_PER_HOST_MAX

    def require_room(self, host: str) -> None:
        """Crowded if this address may not try again now."""
        if self.is_crowded(host):
            self.total += 1
            raise Crowded("too many failed logins from this address, try again later")

    async def punish(self, host: str, why: str) -> None:
        """Let somebody who failed wait; every further failure from there takes longer."""
        self.total += 1
        count = self._counts.pop(host, 0) + 1
        self._counts[host] = count
        if len(self._counts) > FAILURES_KEPT:
            del self._counts[next(iter(self._counts))]
        if self._on_failure is not None:
            self._on_failure(host, why)
        _failed("logins", f"{why} (from {host})")
        self._waiting[host] = self._waiting.get(host, 0) + 1
        try:
            await asyncio.sleep(min(DELAY_SECONDS * 2 ** min(count - 1, 10), DELAY_SECONDS_MAX))
        finally:
            self._waiting[host] -= 1
            if not self._waiting[host]:
                del self._waiting[host]

    def forgive(self, host: str) -> None:
        self._counts.pop(host, None)
