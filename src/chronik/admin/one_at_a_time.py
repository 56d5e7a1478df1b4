"""For calls that cost a node much and anybody with a looking key may make: one at a time, few wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from chronik.admin.errors import HttpError

__all__ = ["OneAtATime"]

WAITING_MAX: Final = 4


class OneAtATime:
    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._here = 0
        """Calls that run or wait."""

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The caller's turn; HttpError(503) if too many wait for theirs."""
        if self._here > WAITING_MAX:
            raise HttpError(503, "busy", "Too many such calls are under way.", {"retry-after": "5"})
        self._here += 1
        try:
            async with self._lock:
                yield
        finally:
            self._here -= 1
