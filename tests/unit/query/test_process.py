"""Whatever goes wrong between the node and a query process ends in an answer and a new process."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from chronik.query import process as module
from chronik.query.messages import QueryError
from chronik.query.process import QueryProcess

CHILD = """
import asyncio, os, sys
from chronik.query.messages import *
import msgspec
Message = Question | Assignment | Cancel | Ping

def send(message):
    os.write(1, frame_of(message))

def framed(field):
    data = b"\\x83\\xa4type\\xa6answer\\xa2id\\x01" + field
    return len(data).to_bytes(4, "big") + data

async def main():
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    send(ChildHello(confinement={"environment": ",".join(sorted(os.environ))}))
    while (frame := await read_frame(reader)) is not None:
        message = msgspec.msgpack.decode(frame, type=Message)
        if isinstance(message, Ping):
            send(Pong())
        elif isinstance(message, Question):
            match message.method:
                case "pid": send(QueryAnswer(id=message.id, body=os.getpid()))
                case "die": os._exit(3)
                case "noise": os.write(1, b"Traceback (most recent call last): ...")
                case "nonsense": os.write(1, b"\\0\\0\\0\\4abcd")
                case "not_text": os.write(1, framed(b"\\xa4code\\xa1\\xff"))
                case "deep": os.write(1, framed(b"\\xa4body" + b"\\x91" * 60_000))
                case "huge": os.write(1, (1 << 30).to_bytes(4, "big") + bytes(1 << 20))
                case "hang":
                    import time
                    time.sleep(3600)
                case "spin":
                    while True:
                        pass
                case "ignore": pass
asyncio.run(main())
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    script = tmp_path / "child.py"
    script.write_text(textwrap.dedent(CHILD))
    real = asyncio.create_subprocess_exec

    async def start(*_: str, **more: Any) -> Any:
        return await real(sys.executable, str(script), **more)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    monkeypatch.setattr(module, "PING_SECONDS", 0.02)
    monkeypatch.setattr(module, "STOP_SECONDS", 0.05)
    monkeypatch.setattr(module, "BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(module, "SILENCE_SECONDS_MAX", 3.0)

    @asynccontextmanager
    async def made(**more: float) -> AsyncIterator[QueryProcess]:
        process = QueryProcess("sql", dict, grace_seconds=0.2, **more)
        try:
            yield process
        finally:
            await process.close()

    return made


async def pid(process: QueryProcess) -> int:
    return int((await process.ask("pid", None, timeout_s=60))[1])


@pytest.mark.parametrize("method", ["die", "noise", "nonsense", "not_text", "deep", "huge", "hang"])
async def test_a_broken_conversation_is_answered_and_mended(make: Callable[[], Any], method: str) -> None:
    async with make() as process:
        first = await pid(process)
        assert process.is_up
        with pytest.raises(QueryError) as refused:
            await process.ask(method, None, timeout_s=60)
        assert (refused.value.status, refused.value.code) == (503, "unavailable")
        assert not process.is_up
        assert await pid(process) != first
        assert process.is_up
        assert process.restarts == 1


async def test_a_process_that_works_without_a_word_is_ended_soon(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENCE_SECONDS_MAX", 60.0)
    async with make(silence_cpu_seconds_max=0.3) as process:
        first = await pid(process)
        with pytest.raises(QueryError) as refused:
            await process.ask("spin", None, timeout_s=30)
        assert refused.value.code == "unavailable"
        assert await pid(process) != first


async def test_a_process_that_sleeps_without_a_word_is_ended_soon(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It uses no processor time, so that alone does not tell: one on a busy machine gets none either."""
    monkeypatch.setattr(module, "SILENCE_SECONDS_MAX", 600.0)
    async with make() as process:
        first = await pid(process)
        with pytest.raises(QueryError) as refused:
            await process.ask("hang", None, timeout_s=60)
        assert refused.value.code == "unavailable"
        assert await pid(process) != first


async def test_a_process_that_waits_for_a_processor_is_not_taken_for_one_that_sleeps(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_is_asleep", lambda pid: False)
    async with make() as process:
        first = await pid(process)
        with pytest.raises(QueryError) as refused:
            await process.ask("hang", None, timeout_s=1)
        assert refused.value.code == "timed_out"
        assert process.pid == first


async def test_work_that_does_not_stop_ends_its_process(make: Callable[[], Any]) -> None:
    async with make() as process:
        first = await pid(process)
        with pytest.raises(QueryError) as refused:
            await process.ask("ignore", None, timeout_s=0.05)
        assert refused.value.code == "timed_out"
        with contextlib.suppress(QueryError):  # the one that was under way then
            while await pid(process) == first:
                pass
        assert await pid(process) != first
        assert process.restarts == 1


async def test_a_child_gets_nothing_of_the_nodes_environment(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHRONIK_CLUSTER_SECRET", "x")
    async with make() as process:
        await pid(process)
        names = set(process.confinement["environment"].split(","))
    assert names <= {*module.ENVIRONMENT, "LC_CTYPE"}  # Python itself sets that one


async def test_a_question_that_cannot_be_sent_is_refused(make: Callable[[], Any]) -> None:
    async with make() as process:
        for body in (10**400, "\ud800"):
            with pytest.raises(QueryError) as refused:
                await process.ask("pid", body, timeout_s=60)
            assert (refused.value.status, refused.value.code) == (400, "invalid_body")
        assert await pid(process)
        assert process.restarts == 0
