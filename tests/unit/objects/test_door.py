"""The door to object stores: time-outs, retries, one sentence (L06)."""

from __future__ import annotations

import asyncio
import os
import random
import stat
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chronik.model import StorageError
from chronik.objects import door as doors
from chronik.objects.door import ATTEMPTS_MAX, ObjectDoor
from chronik.objects.local import LocalObjects
from chronik.objects.opening import ObjectStoreOptions, open_objects
from chronik.objects.store import ObjectMissing, ObjectStoreBusy, ObjectStoreError, check_object_name


class Failing(LocalObjects):
    """Fails a number of times, then works."""

    def __init__(self, root: Path, failures: int, error: Exception | None = None) -> None:
        super().__init__(root)
        self.failures = failures
        self.error = error or ObjectStoreError("503\n  <html>")
        self.calls = 0

    async def get(self, name: str, start: int, size: int) -> bytes:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return await super().get(name, start, size)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "BACKOFF_SECONDS", 0.0)


def opened(store: LocalObjects, timeout_s: float = 5.0) -> ObjectDoor:
    return ObjectDoor(store, rng=random.Random(1), timeout_s=timeout_s)


def whole(*parts: bytes) -> doors.Chunks:
    async def chunks() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    return chunks


async def test_an_object_comes_back_in_any_piece(tmp_path: Path) -> None:
    door = opened(LocalObjects(tmp_path))
    await door.put("a/b.segment", whole(b"hello ", b"world"))
    assert await door.get("a/b.segment", 0, 11) == b"hello world"
    assert await door.get("a/b.segment", 6, 5) == b"world"
    assert [(one.name, one.size_bytes) for one in await door.listed("a")] == [("a/b.segment", 11)]
    await door.put("a/c/d", whole(b"x"))
    assert await door.folders("a") == ["c"]
    assert await door.folders("nothing") == []
    assert await door.listed("nothing") == []
    await door.delete(["a/b.segment", "a/never"])
    with pytest.raises(ObjectMissing):
        await door.get("a/b.segment", 0, 1)
    await door.close()


async def test_an_object_that_was_not_finished_is_not_there(tmp_path: Path) -> None:
    door = opened(LocalObjects(tmp_path))

    async def broken() -> AsyncIterator[bytes]:
        yield b"the first half"
        assert await door.listed("a") == []
        raise StorageError("the disk lost the rest")

    with pytest.raises(StorageError, match="the disk lost the rest"):
        await door.put("a/b", broken)
    assert door.stats.errors["put"] == 0, "the store is not to blame"
    assert await door.listed("a") == []
    await door.close()
    assert await asyncio.to_thread(comes_empty, tmp_path)


def comes_empty(folder: Path) -> bool:
    """What was unfinished is removed by a thread that nobody waits for."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if not [path for path in folder.rglob("*") if path.is_file()]:
            return True
        time.sleep(0.005)
    return False


async def test_what_a_killed_writer_left_goes_after_a_day(tmp_path: Path) -> None:
    door = opened(LocalObjects(tmp_path))
    await door.put("a/b", whole(b"x"))
    old, new = tmp_path / "a" / ".part-old", tmp_path / "a" / ".part-new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 2 * 24 * 3600,) * 2)
    assert [one.name for one in await door.listed("a")] == ["a/b"]
    assert sorted(os.listdir(tmp_path / "a")) == [".part-new", "b"]
    new.unlink()
    await door.delete(["a/b"])
    assert os.listdir(tmp_path) == [], "empty folders go too"


async def test_what_fails_for_a_moment_is_tried_again(tmp_path: Path) -> None:
    store = Failing(tmp_path, failures=ATTEMPTS_MAX - 1)
    door = opened(store)
    await door.put("a/b", whole(b"x"))
    assert await door.get("a/b", 0, 1) == b"x"
    assert door.stats.errors["get"] == ATTEMPTS_MAX - 1
    store.calls, store.failures = 0, ATTEMPTS_MAX
    with pytest.raises(ObjectStoreError) as told:
        await door.get("a/b", 0, 1)
    assert str(told.value) == f"cannot get a/b at {tmp_path.as_uri()}: 503 <html>"


async def test_a_store_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    class Silent(LocalObjects):
        async def get(self, name: str, start: int, size: int) -> bytes:
            await asyncio.Event().wait()
            return b""

    with pytest.raises(ObjectStoreError, match=r"no answer within 0\.01 s"):
        await opened(Silent(tmp_path), 0.01).get("a/b", 0, 1)


async def test_an_answer_that_is_too_short_is_an_error(tmp_path: Path) -> None:
    door = opened(LocalObjects(tmp_path))
    await door.put("a/b", whole(b"abc"))
    with pytest.raises(ObjectStoreError, match="3 bytes instead of 5"):
        await door.get("a/b", 0, 5)


async def test_no_more_calls_are_under_way_than_allowed(tmp_path: Path) -> None:
    class Counting(LocalObjects):
        under_way = highest = 0

        async def get(self, name: str, start: int, size: int) -> bytes:
            self.under_way += 1
            self.highest = max(self.highest, self.under_way)
            await asyncio.sleep(0)
            self.under_way -= 1
            return b"x"

    store = Counting(tmp_path)
    door = ObjectDoor(store, rng=random.Random(1), reads_max=3)
    await asyncio.gather(*(door.get(f"a/{n}", 0, 1) for n in range(20)))
    assert store.highest == 3


@pytest.mark.parametrize(
    "name", ["", "/a", "../a", "a/../b", "a//b", "a/", ".part-x", "a b", "a" * 1000, "ä"]
)
def test_names_that_could_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(ObjectStoreError):
        check_object_name(name)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://x/y", "none of file:///folder and s3://bucket/prefix"),
        ("file://folder", "names no folder"),
        ("s3://", "none of"),
        ("s3://key:secret@bucket", "credentials are settings"),
        ("/data", "none of"),
    ],
)
def test_a_url_that_names_no_store_is_explained(url: str, words: str) -> None:
    with pytest.raises(Exception, match=words) as told:
        open_objects(ObjectStoreOptions(url=url), random.Random(1))
    assert "secret@" not in str(told.value)


def test_half_of_the_credentials_is_refused() -> None:
    options = ObjectStoreOptions(url="s3://b", access_key_id="an id")
    assert "an id" not in repr(options)
    with pytest.raises(Exception, match="belong together"):
        open_objects(options, random.Random(1))


async def test_a_write_that_is_given_up_keeps_its_file_open_until_its_thread_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of a file that was closed too early may be that of another one: a socket, or the WAL."""
    entered, released, looked = threading.Event(), threading.Event(), threading.Event()
    fsync = os.fsync
    seen: list[bool] = []
    store = LocalObjects(tmp_path)
    await store.put("a/first", whole(b"x")())

    def slow(file: int) -> None:
        if stat.S_ISREG(os.fstat(file).st_mode):
            entered.set()
            released.wait(30)
            seen.append(Path(f"/proc/self/fd/{file}").exists())
            looked.set()
            if not seen[-1]:
                return
        fsync(file)

    monkeypatch.setattr(os, "fsync", slow)
    task = asyncio.ensure_future(store.put("a/object", whole(b"whole")()))
    assert await asyncio.to_thread(entered.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(8):
        await store.listed("a")  # the other threads had time to close it
    released.set()
    assert await asyncio.to_thread(looked.wait, 30)
    assert seen == [True]


async def test_folders_of_an_object_are_synced_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    fsync = os.fsync

    def noting(file: int) -> None:
        fsync(file)
        synced.add(os.fstat(file).st_ino)

    monkeypatch.setattr(os, "fsync", noting)
    await LocalObjects(tmp_path / "store").put("topic/0/object", whole(b"x")())
    for folder in ("", "store", "store/topic", "store/topic/0", "store/topic/0/object"):
        assert (tmp_path / folder).stat().st_ino in synced, folder


@pytest.mark.parametrize(
    "endpoint",
    ["http://me:secret@host:9000", "https://host/?token=secret", "host:9000", "ftp://host", "http://"],
)
def test_an_endpoint_is_a_plain_url_without_credentials(endpoint: str) -> None:
    with pytest.raises(Exception, match="plain URL") as told:
        open_objects(ObjectStoreOptions(url="s3://bucket", endpoint=endpoint), random.Random(1))
    assert "secret" not in str(told.value)


async def test_no_more_calls_wait_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a store is away, its calls last for minutes, and new ones keep coming."""

    class Silent(LocalObjects):
        async def get(self, name: str, start: int, size: int) -> bytes:
            await answered.wait()
            return b"x"

    answered = asyncio.Event()
    monkeypatch.setattr(doors, "WAITING_MAX", 3)
    door = ObjectDoor(Silent(tmp_path), rng=random.Random(1), reads_max=2)
    calls = [asyncio.ensure_future(door.get(f"a/{n}", 0, 1)) for n in range(5)]
    for _ in calls:
        await asyncio.sleep(0)
    with pytest.raises(ObjectStoreBusy):
        await asyncio.wait_for(door.get("a/x", 0, 1), 5)
    calls[4].cancel()
    await asyncio.wait(calls[4:])
    calls[4] = asyncio.ensure_future(door.get("a/y", 0, 1))
    answered.set()
    assert await asyncio.gather(*calls) == [b"x"] * 5
    assert await door.get("a/z", 0, 1) == b"x"
