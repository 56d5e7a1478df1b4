"""When records of a benchmark are sent, and from when their latency counts.

Open loop: record number i is due at start + i / rate, whatever became of the ones before it, and its latency
counts from then. So a pause of the broker counts for all records that were due in it, not for the one under
way alone (coordinated omission).

Closed loop: each of a number of workers sends its next record when the last was acknowledged. That finds the
highest throughput; its latencies say nothing about a load that does not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["closed_loop", "open_loop"]

Send = Callable[[float], Awaitable[None]]
"""Hand over one record; its latency counts from the time given."""


async def open_loop(
    send: Send,
    *,
    rate: float,
    seconds: float,
    now: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
) -> int:
    """Send at a fixed rate; what is late is sent at once. Returns how many were sent."""
    start, number = now(), 0
    while (offset := number / rate) < seconds:
        wait = start + offset - now()
        if wait > 0:
            await sleep(wait)
        await send(start + offset)
        number += 1
    return number


async def closed_loop(send: Send, *, workers: int, seconds: float, now: Callable[[], float]) -> None:
    """Each worker sends as soon as `send` returns, until the time is over."""
    end = now() + seconds

    async def work() -> None:
        while (began := now()) < end:
            await send(began)

    await asyncio.gather(*(work() for _ in range(workers)))
