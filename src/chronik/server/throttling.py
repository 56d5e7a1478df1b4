"""What requests cost their clients: charged on the way out, named in the answer, and waited for (KIP-124).

A client over a quota gets its answer at once, with the throttle time in it where the API has the field; its
connection is not read for that time, so that a client which does not honour it gains nothing. Creations and
deletions of topics are charged by their handlers, before anything is changed (KIP-599): newer clients are
refused with THROTTLING_QUOTA_EXCEEDED, older ones are served and wait afterwards.

Nodes and query processes have no quotas: limits for all users are not meant for them. What callers of HTTP
take is charged in `admin/http_quotas.py`.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from chronik.metrics import clock
from chronik.model import ErrorCode, RequestError
from chronik.security.principals import USER_PREFIX
from chronik.security.quotas import CONSUMER_RATE, MUTATION_RATE, PRODUCER_RATE, REQUEST_SHARE, Quotas
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from chronik.server.dispatch import RequestContext

__all__ = [
    "PERCENT",
    "Cost",
    "charge_mutation",
    "charge_work",
    "fetch_bytes_max",
    "may_create_on_first_use",
    "metered",
    "quota_user",
    "throttle",
]

T = TypeVar("T")

_MUTATIONS: Final = frozenset({ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS})
PERCENT: Final = 100.0


class Cost(NamedTuple):
    """What one request took."""

    api_key: int
    request_bytes: int
    response_bytes: int
    work_s: float
    """Time on the event loop."""


def throttle(
    quotas: Quotas, principal: str, client_id: str, cost: Cost, now_s: float
) -> tuple[float, str] | None:
    """Seconds for which the client is throttled and the quota that says so; None if it is not."""
    user = quota_user(principal)
    if user is None:
        return None
    charges = [(REQUEST_SHARE, cost.work_s * PERCENT)]
    if cost.api_key == ApiKey.PRODUCE:
        charges.append((PRODUCER_RATE, cost.request_bytes))
    elif cost.api_key == ApiKey.FETCH:
        charges.append((CONSUMER_RATE, cost.response_bytes))
    elif cost.api_key in _MUTATIONS:
        charges.append((MUTATION_RATE, 0.0))  # charged by the handler; here it tells what is owed
    waits = [(quotas.take(key, user, client_id, amount, now_s), key) for key, amount in charges]
    longest = max(waits)
    return longest if longest[0] > 0 else None


def charge_mutation(ctx: RequestContext, partitions: int, *, strict: bool) -> None:
    """Charge partitions that are created or deleted. RequestError if the client has to wait first.

    `strict` is for versions whose clients know the error; older ones are delayed afterwards instead.
    """
    quotas, user = ctx.services.quotas, quota_user(ctx.connection.principal)
    if quotas.is_empty or user is None:
        return
    take = quotas.take_if_free_of_debt if strict else quotas.take
    wait_s = take(MUTATION_RATE, user, ctx.client_id or "", partitions, asyncio.get_running_loop().time())
    if strict and wait_s > 0:
        raise RequestError(
            ErrorCode.throttling_quota_exceeded, f"The throttling quota has been exceeded: {wait_s:.1f} s"
        )


def charge_work(ctx: RequestContext, seconds: float) -> None:
    """For work that a request has done in a thread: paid like time on the event loop."""
    quotas, user = ctx.services.quotas, quota_user(ctx.connection.principal)
    if not quotas.is_empty and user is not None:
        now_s = asyncio.get_running_loop().time()
        quotas.take(REQUEST_SHARE, user, ctx.client_id or "", seconds * PERCENT, now_s)


def may_create_on_first_use(ctx: RequestContext) -> bool:
    """The same for a topic that a client merely mentions: not created while something is owed."""
    try:
        charge_mutation(ctx, ctx.services.settings.default_partitions, strict=True)
    except RequestError:
        return False
    return True


def fetch_bytes_max(ctx: RequestContext, bytes_max: int) -> int:
    """How much one answer may carry, so that a single fetch does not run up a debt of minutes."""
    quotas, user = ctx.services.quotas, quota_user(ctx.connection.principal)
    if quotas.is_empty or user is None:
        return bytes_max
    burst = quotas.burst(CONSUMER_RATE, user, ctx.client_id or "")
    return bytes_max if burst is None else min(bytes_max, max(int(burst), 1))


def quota_user(principal: str) -> str | None:
    """The user whose quotas a principal has; None if it has none: nodes, query processes, API keys."""
    return principal.removeprefix(USER_PREFIX) if principal.startswith(USER_PREFIX) else None


async def metered(work: Coroutine[Any, Any, T], worked: Callable[[float], None]) -> T:
    """Await a coroutine and report the seconds for which it keeps the event loop busy, waits left out."""
    return await _steps(work, worked)


@types.coroutine
def _steps(work: Coroutine[Any, Any, T], worked: Callable[[float], None]) -> Generator[Any, Any, T]:
    step: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        began = clock()
        try:
            awaited = step(value)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            worked(clock() - began)
        try:
            step, value = work.send, (yield awaited)
        except BaseException as error:
            step, value = work.throw, error
