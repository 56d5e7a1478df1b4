"""Callers of HTTP have the quotas that they have as Kafka clients: bytes written, bytes read, topics changed,
and processor time for calls of the schema registry.

A caller over its quota is refused with 429 and told when to come back. A connection cannot be muted instead,
since a proxy may send the calls of many on one. What a call took is charged when it is known, so one call may
run up a debt, as one Kafka request may. A caller with a quota has at most `UNDER_WAY_MAX` calls under way:
each of a hundred at once would find nothing owed. A caller has the client id `http`.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from chronik.admin.errors import HttpError
from chronik.security.quotas import CONSUMER_RATE, MUTATION_RATE, PRODUCER_RATE, REQUEST_SHARE, Quotas
from chronik.server.throttling import PERCENT, quota_user

__all__ = ["HTTP_CLIENT_ID", "HttpQuotas"]

HTTP_CLIENT_ID: Final = "http"
UNDER_WAY_MAX: Final = 4


class HttpQuotas:
    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._under_way: Counter[tuple[str, str]] = Counter()
        """Calls of principals that have the quota, by principal and quota."""

    @contextmanager
    def one_call(self, principal: str, key: str | None) -> Iterator[None]:
        """Held while a call is under way. HttpError(429) if the caller is over the quota or has too many
        calls under way."""
        if key is None or not self._has_limit(principal, key):
            yield
            return
        self.check(principal, key)
        called = principal, key
        if self._under_way[called] >= UNDER_WAY_MAX:
            self._refuse(1.0)
        self._under_way[called] += 1
        try:
            yield
        finally:
            self._under_way[called] -= 1
            if not self._under_way[called]:
                del self._under_way[called]

    def _has_limit(self, principal: str, key: str) -> bool:
        user = quota_user(principal)
        if user is None or self._quotas.is_empty:
            return False
        return self._quotas.limit(key, user, HTTP_CLIENT_ID) is not None

    def check(self, principal: str, key: str) -> None:
        """HttpError(429) while the caller is over a quota."""
        self._refuse(self._take(principal, key, 0))

    def charge(self, principal: str, key: str, *, received: int, sent: int) -> None:
        """For a call that was answered, by the bytes of its body and of its answer."""
        if key == PRODUCER_RATE:
            self._take(principal, key, received)
        elif key == CONSUMER_RATE:
            self._take(principal, key, sent)

    def charge_work(self, principal: str, seconds: float) -> None:
        """Processor time that a call took, whether it was answered or failed."""
        self._take(principal, REQUEST_SHARE, seconds * PERCENT)

    def charge_mutation(self, principal: str, partitions: int) -> None:
        """Before they are created or deleted; HttpError(429) if the caller has to wait first."""
        self.check(principal, MUTATION_RATE)
        self._take(principal, MUTATION_RATE, partitions)

    def _take(self, principal: str, key: str, amount: float) -> float:
        user = quota_user(principal)
        if user is None or self._quotas.is_empty:
            return 0.0
        return self._quotas.take(key, user, HTTP_CLIENT_ID, amount, asyncio.get_running_loop().time())

    def _refuse(self, wait_s: float) -> None:
        if wait_s > 0:
            raise HttpError(
                429,
                "throttling_quota_exceeded",
                f"The throttling quota has been exceeded: {wait_s:.1f} s.",
                {"retry-after": str(math.ceil(wait_s))},
            )
