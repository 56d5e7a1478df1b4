"""Who keeps a background task, who ends it and who hears that it failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from typing import Any

import pytest

from chronik.model import InvariantViolated, StorageError
from chronik.tasks import Tasks, in_slices


class Work:
    """A task that runs until it is told to end, or cancelled."""

    def __init__(self, name: str, ended: list[str]) -> None:
        self.name = name
        self.ended = ended
        self.go = asyncio.Event()

    async def run(self, error: BaseException | None = None) -> None:
        try:
            await self.go.wait()
        finally:
            self.ended.append(self.name)
        if error is not None:
            raise error


async def fail(error: BaseException) -> None:
    raise error


async def test_closing_cancels_and_waits_in_the_order_of_the_starts() -> None:
    tasks, ended = Tasks("test"), list[str]()
    for name in ("first", "second", "third"):
        tasks.spawn(Work(name, ended).run(), name)
    await asyncio.sleep(0)
    await tasks.close()
    assert ended == ["first", "second", "third"]
    assert len(tasks) == 0


async def test_finished_waits_without_cancelling() -> None:
    tasks, ended = Tasks("test"), list[str]()
    work = Work("only", ended)
    task = tasks.spawn(work.run(), "only")
    asyncio.get_running_loop().call_soon(work.go.set)
    await tasks.finished()
    assert ended == ["only"]
    assert not task.cancelled()


async def test_a_task_that_is_done_is_not_kept() -> None:
    tasks = Tasks("test")
    await tasks.spawn(asyncio.sleep(0), "a nap")
    await asyncio.sleep(0)
    assert len(tasks) == 0


async def test_an_expected_failure_is_logged_once_with_its_purpose(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks("cleaner")
    with caplog.at_level(logging.WARNING):
        tasks.spawn(fail(StorageError("the disk is full")), "compaction of t-0")
        await tasks.finished()
    assert [record.getMessage() for record in caplog.records] == [
        "cleaner: compaction of t-0 failed: the disk is full"
    ]


@pytest.mark.parametrize("error", [KeyError("a bug"), InvariantViolated("must hold")])
async def test_a_bug_goes_to_the_loops_exception_handler(error: BaseException) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    tasks = Tasks("cleaner")
    tasks.spawn(fail(error), "compaction")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(tasks) == 0
    assert [(context["message"], context["exception"]) for context in told] == [
        ("cleaner: compaction failed", error)
    ]


async def test_a_kept_future_is_waited_for_and_its_failure_heard(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks("replicas")
    deletion: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    tasks.keep(deletion, "removing the files of t-0")
    asyncio.get_running_loop().call_soon(deletion.set_exception, OSError("no such file"))
    await tasks.finished()
    assert "removing the files of t-0 failed: no such file" in caplog.text


async def test_the_oldest_is_ended_and_no_longer_counted() -> None:
    tasks = Tasks("owner")
    first, second = (tasks.spawn(asyncio.Event().wait(), name) for name in ("first", "second"))
    tasks.cancel_oldest()
    assert len(tasks) == 1
    tasks.cancel_oldest()
    assert len(tasks) == 0
    await asyncio.wait({first, second})
    assert first.cancelled()
    assert second.cancelled()


def test_long_work_is_done_in_slices_between_which_others_have_turns() -> None:
    done: list[str] = []

    def steps() -> Generator[None, None, str]:
        for number in range(4):
            done.append(f"step {number}")
            yield
        return "made"

    async def work() -> str:
        loop = asyncio.get_running_loop()
        loop.call_soon(done.append, "another's turn")
        return await in_slices(steps(), 3)

    assert asyncio.run(work()) == "made"
    assert done == ["step 0", "step 1", "step 2", "another's turn", "step 3"]
