"""MirrorMaker 2 as a process of `chronik migrate run`, and the bars that show how far it is."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chronik.cli.client import CommandFailed
from chronik.cli.migrate_config import Choice, as_text, command
from chronik.cli.migrate_progress import MirrorLag, MirrorWatch, lag_of
from chronik.cli.migrate_topics import make_topics, old_topics
from chronik.local.leash import leashed
from chronik.private_files import open_private

if TYPE_CHECKING:
    from chronik.client import Cluster

LOOK_SECONDS: Final = 1.0
_TOLD_SECONDS: Final = 10.0
_STOP_SECONDS: Final = 30.0
_NEW_TOPICS_SECONDS: Final = 5.0
_SHOWN_TOPICS: Final = 8
_LOG_CHARS: Final = 600


class MirrorMaker:
    """The process, with a configuration that only its owner can read: it may hold passwords."""

    def __init__(self, kafka: Path, properties: Mapping[str, str], log: Path, heap_mib: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="chronik-migrate-"))
        self.log = log
        config = self._folder / "mirror.properties"
        with open_private(config, "wb") as file:
            file.write(as_text(properties).encode())
        try:
            java = shutil.which("java")
            if java is None:
                raise CommandFailed(
                    "there is no java on the PATH, and MirrorMaker 2 needs it: install Java 17"
                )
            started = command(java, kafka, config, heap_mib)
            if started is None:
                raise CommandFailed(
                    f"{kafka} has no connect-mirror-*.jar: give --kafka the folder of an Apache Kafka "
                    "distribution"
                )
            with open_private(log, "ab") as out:
                # In a session of its own, so that Ctrl-C reaches this command alone, which ends it in order.
                self.process = subprocess.Popen(
                    leashed(started),
                    stdout=out,
                    stderr=out,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def check(self) -> None:
        if (code := self.process.poll()) is not None:
            said = self.log.read_text(errors="replace")[-_LOG_CHARS:].strip()
            raise CommandFailed(f"MirrorMaker ended with {code}; {self.log} says at its end:\n{said}")

    def close(self) -> None:
        """What it copied and did not commit is copied again by the next run, and read once."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def bars(*, enabled: bool) -> Iterator[Callable[[MirrorLag], None]]:
    """A bar for everything and one for each topic with most left; lines now and then without a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not (enabled and console.is_terminal):
        yield _lines() if enabled else lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        whole = shown.add_task("all topics", total=None)
        tasks: dict[str, TaskID] = {}

        def show(lag: MirrorLag) -> None:
            shown.update(whole, completed=lag.copied, total=lag.total)
            left = lag.by_topic()
            sizes = lag.sizes()
            for name in sorted(left, key=lambda name: -left[name]):
                if name not in tasks and len(tasks) < _SHOWN_TOPICS:
                    tasks[name] = shown.add_task(f"  {name}")
                if name in tasks:
                    shown.update(tasks[name], completed=sizes[name] - left[name], total=sizes[name])

        yield show


def _lines() -> Callable[[MirrorLag], None]:
    told_at = -_TOLD_SECONDS
    before = -1

    def show(lag: MirrorLag) -> None:
        nonlocal told_at, before
        left = sum(lag.left.values())
        if time.monotonic() - told_at >= _TOLD_SECONDS or (left == 0) != (before == 0):
            told_at = time.monotonic()
            print(
                f"copied {lag.copied:,} of {lag.total:,} offsets, {left:,} to go", file=sys.stderr, flush=True
            )
        before = left

    return show


async def follow(
    old: Cluster, new: Cluster, topics: Choice, replication_factor: int, mirror: MirrorMaker | None
) -> AsyncIterator[MirrorLag]:
    """How far the copy is, again and again; makes topics that appear on the old side meanwhile."""
    watch = MirrorWatch(new)
    wanted = await old_topics(old, topics)
    listed_at = time.monotonic()
    while True:
        if mirror is not None:
            mirror.check()
        state = await watch.look()
        for name, reason in state.failed.items():
            where = f"; more in {mirror.log}" if mirror is not None else ""
            raise CommandFailed(f"MirrorMaker's {name} failed: {reason}{where}")
        if time.monotonic() - listed_at > _NEW_TOPICS_SECONDS:
            wanted = await old_topics(old, topics)
            await make_topics(new, wanted, replication_factor)
            listed_at = time.monotonic()
        yield await lag_of(old, [tp for topic in wanted for tp in topic.tps()], state.positions)
        await asyncio.sleep(LOOK_SECONDS)
