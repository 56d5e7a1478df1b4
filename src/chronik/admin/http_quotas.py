"""Callers of HTTP have the quotas that they have as Kafka clients: bytes written, bytes read, topics changed.

A caller over its quota is refused with 429 and told when to come back. A connection cannot be muted instead,
since a proxy may send the calls of many on one. What a call took is charged when it is known, so one call may
run up a debt, as one Kafka request may. A caller has the client id `http`.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final

from chronik.admin.errors import HttpError
from chronik.security.quotas import CONSUMER_RATE, MUTATION_RATE, PRODUCER_RATE, Quotas
from chronik.server.throttling import quota_user

__all__ = ["HTTP_CLIENT_ID", "HttpQuotas"]

HTTP_CLIENT_ID: Final = "http"


class HttpQuotas:
    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    def check(self, principal: str, key: str) -> None:
        """HttpError(429) while the caller is over a quota."""
        self._refuse(self._take(principal, key, 0))

    def charge(self, principal: str, key: str, *, received: int, sent: int) -> None:
        """For a call that was answered, by the bytes of its body and of its answer."""
        if key == PRODUCER_RATE:
            self._take(principal, key, received)
        elif key == CONSUMER_RATE:
            self._take(principal, key, sent)

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
