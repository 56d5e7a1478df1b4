"""What a caller is told who tried more than once."""

from __future__ import annotations

import asyncio

import pytest

from chronik.client import ClientOptions, Unanswered, Unreachable
from chronik.client.retry import Retry
from chronik.model import ErrorCode, RequestError

NOBODY = Unreachable("there:1", "refused")


def fails_with(*failures: Exception) -> type[Exception]:
    """What an operation raises whose attempts fail like this, the last of them again and again."""
    left = list(failures)

    async def attempt() -> None:
        raise left.pop(0) if len(left) > 1 else left[0]

    async def run() -> type[Exception]:
        options = ClientOptions(deadline_ms=30, retry_backoff_ms=1, retry_backoff_ms_max=5)
        try:
            await Retry(options).run(attempt)
        except Exception as error:
            return type(error)
        raise AssertionError("it did not fail")

    return asyncio.run(run())


def test_nobody_there_from_first_to_last_means_that_nothing_was_done() -> None:
    assert fails_with(NOBODY) is Unreachable
    assert fails_with(RequestError(ErrorCode.leader_not_available), NOBODY) is Unreachable


@pytest.mark.parametrize(
    "first",
    [
        Unanswered("silence"),
        RequestError(ErrorCode.request_timed_out),
        RequestError(ErrorCode.not_enough_replicas_after_append),
        RequestError(ErrorCode.not_leader_or_follower),
        RequestError(ErrorCode.kafka_storage_error),
    ],
)
def test_what_may_have_been_done_is_not_called_undone_because_nobody_is_there_later(first: Exception) -> None:
    assert fails_with(first, NOBODY) is Unanswered
