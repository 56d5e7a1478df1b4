"""The door to object stores for commands, which are not asynchronous: a thread has a loop for its calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from chronik.objects.door import ObjectDoor

T = TypeVar("T")


class ObjectThread:
    def __init__(self, door: ObjectDoor) -> None:
        self.door = door
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="objects", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        under_way = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return under_way.result()
        except KeyboardInterrupt:
            under_way.cancel()
            raise

    def close(self) -> None:
        self.run(self.door.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
