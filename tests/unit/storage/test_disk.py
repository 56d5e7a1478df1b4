"""Files of the operating system: what is written in how many calls, and that none stays open."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronik.storage import disk as disk_module
from chronik.storage.disk import IoThread, RealDisk, RealFile


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
        disk.submit(IoThread.BACKGROUND, work, lambda _result, failure: told.set_result(str(failure)))
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
            await disk.run(IoThread.READ, work)
        except OSError as error:
            assert str(error) == "no space left"
        del work
        disk.close()
        return handle

    assert asyncio.run(scenario())() is None


@given(
    sizes=st.lists(st.integers(0, 40), max_size=12),
    call_bytes=st.integers(1, 50),
    buffers_max=st.integers(1, 4),
    written_max=st.integers(1, 60),
)
def test_a_long_write_is_cut_into_calls_that_together_write_all_of_it(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    call_bytes: int,
    buffers_max: int,
    written_max: int,
) -> None:
    """Whatever the kernel takes of a call at once."""
    buffers = [bytes([number]) * size for number, size in enumerate(sizes, 1)]
    path: Path = tmp_path_factory.mktemp("disk") / "file"
    calls: list[tuple[int, int]] = []
    pwritev = os.pwritev

    def short(fd: int, group: Any, position: int) -> int:
        calls.append((len(group), sum(map(len, group))))
        return pwritev(fd, [b"".join(group)[:written_max]], position)

    file = RealFile(path, os.open(path, os.O_RDWR | os.O_CREAT))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(disk_module, "_CALL_BYTES_MAX", call_bytes)
            patch.setattr(disk_module, "_IOV_MAX", buffers_max)
            patch.setattr(os, "pwritev", short)
            assert file.write_at(3, buffers) == sum(sizes)
        assert file.read_at(0, 1000) == (b"\0\0\0" + b"".join(buffers) if any(sizes) else b"")
    finally:
        file.close()
    assert all(count <= buffers_max and size <= call_bytes for count, size in calls)
