"""Failures of a request, and the one loop that tries again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from chronik.client.options import ClientOptions
from chronik.model import ErrorCode, RequestError, Unavailable

T = TypeVar("T")

# Kafka's own table calls these final; for a client that can look up the cluster again they are not.
_RETRIABLE_HERE = frozenset(
    {ErrorCode.broker_not_available, ErrorCode.fenced_leader_epoch, ErrorCode.concurrent_transactions}
)


_MAY_BE_DONE = frozenset(
    {
        ErrorCode.request_timed_out,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.not_leader_or_follower,
        ErrorCode.kafka_storage_error,
    }
)
"""Answers of a node that gave up waiting for others, or lost its lead meanwhile: perhaps it is done."""


class Unreachable(Unavailable):
    """No connection could be made: the request certainly had no effect."""

    def __init__(self, addresses: str, reason: str) -> None:
        super().__init__(f"no node answers at {addresses} ({reason})")
        self.addresses = addresses
        self.reason = reason


class Unanswered(Unavailable):
    """The request was sent and no answer came: it may or may not have taken effect."""


def is_retriable(error: Exception) -> bool:
    if isinstance(error, RequestError):
        return error.code.retriable or error.code in _RETRIABLE_HERE
    return isinstance(error, Unavailable)


class Retry:
    """Deadline and backoff of one operation."""

    def __init__(self, options: ClientOptions, deadline: float | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._backoff_ms = options.retry_backoff_ms
        self._backoff_ms_max = options.retry_backoff_ms_max
        self.deadline = self._loop.time() + options.deadline_ms / 1000 if deadline is None else deadline
        self._unanswered: Unanswered | None = None

    async def pause(self, error: Exception) -> None:
        """Wait before the next attempt, or raise `error` when there is no time for one.

        The operation as a whole may have been carried out once any attempt got no answer or may have
        succeeded, even if the last one failed.
        """
        if isinstance(error, Unanswered):
            self._unanswered = error
        elif isinstance(error, RequestError) and error.code in _MAY_BE_DONE:
            self._unanswered = Unanswered(str(error))
        if not is_retriable(error) or self._loop.time() + self._backoff_ms / 1000 >= self.deadline:
            if self._unanswered is not None and isinstance(error, Unavailable):
                raise self._unanswered
            raise error
        backoff_ms, self._backoff_ms = self._backoff_ms, min(self._backoff_ms * 2, self._backoff_ms_max)
        await asyncio.sleep(backoff_ms / 1000)

    async def run(self, attempt: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                async with asyncio.timeout_at(self.deadline):
                    return await attempt()
            except TimeoutError as error:
                raise self._unanswered or Unanswered("the deadline passed before an answer came") from error
            except (RequestError, Unavailable) as error:
                await self.pause(error)
