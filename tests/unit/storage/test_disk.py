"""A file that nobody uses any more is closed at once, whatever went wrong with it before."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from chronik.storage.disk import Lane, RealDisk


class Handle:
    """Stands for an open file: the system closes it when the last one to refer to it lets go."""

    def fail(self) -> None:
        raise OSError("no space left")


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """It would hide what is kept alive by a circle, on a node as here: but there it comes by rarely."""
    gc.disable()
    yield
    gc.enable()


def failing() -> tuple[Callable[[], None], weakref.ref[Handle]]:
    handle = Handle()
    return (lambda: handle.fail()), weakref.ref(handle)


def test_work_that_failed_in_a_lane_keeps_no_file_open() -> None:
    async def scenario() -> weakref.ref[Handle]:
        disk = RealDisk(asyncio.get_running_loop())
        work, handle = failing()
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        disk.submit(Lane.BACKGROUND, work, lambda _result, failure: told.set_result(str(failure)))
        del work
        assert await told == "no space left"
        disk.close()
        return handle

    assert asyncio.run(scenario())() is None


def test_who_waited_for_work_that_failed_keeps_no_file_open() -> None:
    async def scenario() -> weakref.ref[Handle]:
        disk = RealDisk(asyncio.get_running_loop())
        work, handle = failing()
        try:
            await disk.run(Lane.READ, work)
        except OSError as error:
            assert str(error) == "no space left"
        del work
        disk.close()
        return handle

    assert asyncio.run(scenario())() is None
