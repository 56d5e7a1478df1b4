"""Remembers failed logins, by Kafka and by HTTP alike: each further failure makes its sender wait longer.

Failures of an address are halved each minute. A successful login cancels only its own user's failures from
there. Otherwise somebody with an account could reset the wait and guess other users' passwords for ever.

Many share an address. A client there that fails again and again must not keep out the others: logins of users
who succeeded from there lately are still checked, as long as few of them fail.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

from chronik.log_lines import RepeatingLine
from chronik.security.exchange import AuthenticationFailed

__all__ = ["Crowded", "LoginFailures"]

log = logging.getLogger(__name__)
_failed: Final = RepeatingLine(log, logging.WARNING, "a login failed: %s")

DELAY_SECONDS: Final = 0.1
"""A failed login is answered after this; twice as late with every further one from the same address."""
DELAY_SECONDS_MAX: Final = 5.0
HALF_LIFE_SECONDS: Final = 60.0
FAILURES_KEPT: Final = 10_000
"""Addresses, and users at addresses, whose failures are remembered."""
_NAME_MAX: Final = 100
WAITING_PER_HOST_MAX: Final = 10
"""Failed logins of one address that wait for their answer; further ones are refused unchecked."""
WAITING_PER_USER_MAX: Final = 3
"""The same for a user that logged in from there lately, wherever its address has too many."""
LATELY_SECONDS: Final = 3600.0
LATELY_KEPT: Final = 10_000
"""Users at addresses whose last login is remembered."""
UNSEEN_SECONDS: Final = 1.0
"""Delay of the answer to a login that was refused unchecked, so that trying again at once gains nothing."""


class Crowded(AuthenticationFailed):
    """A login was refused unchecked, since too many are under way. Its password may have been right."""


class LoginFailures:
    def __init__(
        self,
        on_failure: Callable[[str, str], None] | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_failure` hears the address and the reason of each."""
        self._on_failure = on_failure
        self._rooms = _Counts(now)
        self._users = _Counts(now)
        self._now = now
        self._waiting: Counter[Hashable] = Counter()
        """Logins whose answers are delayed now, by address and by user at an address."""
        self._lately: OrderedDict[tuple[str, str], float] = OrderedDict()
        """When users last logged in, by address and name; the oldest first."""
        self.total = 0
        """Logins that failed since the start."""

    def is_crowded(self, host: str) -> bool:
        """Whether this address has too many failed logins waiting for their delay to try again now."""
        return self._waiting[host] >= WAITING_PER_HOST_MAX

    def has_room(self, host: str, user: str | None = None) -> bool:
        """Whether this address may try again now; as this user, if it is known."""
        if not self.is_crowded(host):
            return True
        if user is None:
            return False
        key = (host, user[:_NAME_MAX])
        at = self._lately.get(key)
        is_known = at is not None and self._now() - at < LATELY_SECONDS
        return is_known and self._waiting[key] < WAITING_PER_USER_MAX

    def require_room(self, host: str, user: str | None = None) -> None:
        """Crowded if this address may not try again now."""
        if not self.has_room(host, user):
            self.total += 1
            raise Crowded("too many failed logins from this address, try again later")

    async def punish(self, host: str, why: str, *, user: str | None = None, room: str | None = None) -> None:
        """Delay the answer to a failed login, longer for every further failure from there.

        `user` is the claimed user. `room` replaces the address as the key where failures of one kind of login
        must not delay another kind.
        """
        self.total += 1
        room = host if room is None else room
        count = self._rooms.add(room, 1.0)
        waiting: list[Hashable] = [room]
        if user is not None:
            waiting.append((room, user[:_NAME_MAX]))
            self._users.add(waiting[1], 1.0)
        if self._on_failure is not None:
            self._on_failure(host, why)
        _failed("logins", f"{why} (from {host})")
        self._waiting.update(waiting)
        try:
            await asyncio.sleep(min(DELAY_SECONDS * 2 ** min(count - 1, 10), DELAY_SECONDS_MAX))
        finally:
            for one in waiting:
                self._waiting[one] -= 1
                if not self._waiting[one]:
                    del self._waiting[one]

    def forgive(self, room: str, user: str) -> None:
        """A login as this user succeeded: forget its failures from there."""
        key = (room, user[:_NAME_MAX])
        self._lately[key] = self._now()
        self._lately.move_to_end(key)
        if len(self._lately) > LATELY_KEPT:
            self._lately.popitem(last=False)
        slips = self._users.pop(key)
        if slips:
            self._rooms.add(room, -slips)


class _Counts:
    """Counts of failures that decay with time; the one that changed longest ago is dropped first."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._counts: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        """For each key the count, and the time at which it had that value."""

    def pop(self, key: Hashable) -> float:
        count, at = self._counts.pop(key, (0.0, 0.0))
        return count * math.pow(0.5, (self._now() - at) / HALF_LIFE_SECONDS)

    def add(self, key: Hashable, more: float) -> float:
        count = max(self.pop(key) + more, 0.0)
        if count:
            self._counts[key] = (count, self._now())
            if len(self._counts) > FAILURES_KEPT:
                self._counts.popitem(last=False)
        return count
