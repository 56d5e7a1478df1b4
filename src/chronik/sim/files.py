"""Files and directories as a disk has them: what programs see, and what is still there after a power loss.

A write is seen at once and safe only after the file's sync; a name is safe only after its directory's sync.
What a power loss leaves of the rest is the seed's choice, within what real file systems do: pages reach the
device in any order and may be torn, names in the order in which they were made.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from math import inf
from pathlib import PurePath
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

SECTOR_BYTES: Final = 512
PAGE_BYTES: Final = 4096


C = TypeVar("C")


class _Unsynced(Generic[C]):
    """Changes that a power loss may undo, oldest first. A sync saves them at the moment when it is over.

    Work in an I/O thread is done at once and takes its time afterwards, so a change has the moment at which
    it happens: a power loss before then comes before it.
    """

    __slots__ = ("_changes", "_syncs")

    def __init__(self) -> None:
        self._changes: list[tuple[float, C]] = []
        self._syncs: list[tuple[float, int]] = []
        """When a sync is over, and how many of the changes it saves."""

    def open(self) -> list[C]:
        """Changes that no sync is asked to save."""
        return [change for _, change in self._changes[self._syncs[-1][1] if self._syncs else 0 :]]

    def add(self, change: C, at: float) -> None:
        self._changes.append((at, change))

    def sync(self, until: float) -> None:
        if self._changes:
            # One that began earlier but is over later saves nothing that this one has not saved.
            while self._syncs and self._syncs[-1][0] >= until:
                self._syncs.pop()
            self._syncs.append((until, len(self._changes)))

    def drop_open(self, is_dropped: Callable[[], bool]) -> None:
        """Forget some of the changes that no sync is asked to save, as if they had never been made."""
        saved = self._syncs[-1][1] if self._syncs else 0
        self._changes[saved:] = [one for one in self._changes[saved:] if not is_dropped()]

    def take_saved(self, now: float) -> list[C]:
        """What is safe by now and was not before."""
        count = 0
        while self._syncs and self._syncs[0][0] <= now:
            count = self._syncs.pop(0)[1]
        if not count:
            return []
        saved = [change for _, change in self._changes[:count]]
        del self._changes[:count]
        self._syncs = [(until, covered - count) for until, covered in self._syncs]
        return saved

    def finish(self, now: float) -> None:
        """Complete all pending changes and syncs now."""
        self._changes = [(min(at, now), change) for at, change in self._changes]
        self._syncs = [(min(until, now), count) for until, count in self._syncs]

    def hasten(self, now: float, factor: float) -> None:
        """Divide the remaining time of all pending changes and syncs by `factor`."""
        self._changes = [(_sooner(at, now, factor), change) for at, change in self._changes]
        self._syncs = [(_sooner(until, now, factor), count) for until, count in self._syncs]

    def pending(self) -> list[C]:
        return [change for _, change in self._changes]

    def take_all(self, now: float) -> list[C]:
        """Remove all changes and return those made by now. Later ones never happen."""
        changes, self._changes = self._changes, []
        self._syncs.clear()
        return [change for at, change in changes if at <= now]


def _sooner(at: float, now: float, factor: float) -> float:
    return now + (at - now) / factor if at > now else at


class _Write(NamedTuple):
    position: int
    data: bytes


class _Resize(NamedTuple):
    size: int


class _Image:
    """Bytes with a size; what was never written reads as zeros and takes no memory."""

    __slots__ = ("data", "size")

    def __init__(self, data: bytes | bytearray = b"", size: int = 0) -> None:
        self.data = bytearray(data)
        self.size = size

    def copy(self) -> _Image:
        return _Image(self.data, self.size)

    def write(self, position: int, data: bytes) -> None:
        end = position + len(data)
        if position > len(self.data):
            self.data.extend(bytes(position - len(self.data)))
        self.data[position:end] = data
        self.size = max(self.size, end)

    def resize(self, size: int) -> None:
        del self.data[size:]
        self.size = size

    def read(self, position: int, size: int) -> bytes:
        end = min(position + size, self.size)
        if end <= position:
            return b""
        found = bytes(self.data[position:end])
        return found + bytes(end - position - len(found))


class Inode:
    __slots__ = ("_durable", "_seen", "_unsynced", "modified_at")

    def __init__(self) -> None:
        self._seen = _Image()
        self._durable = _Image()
        self._unsynced: _Unsynced[_Write | _Resize] = _Unsynced()
        self.modified_at = 0.0
        """Virtual time of the last write."""

    @property
    def size(self) -> int:
        return self._seen.size

    @property
    def dirty_count(self) -> int:
        return len(self._unsynced.open())

    @property
    def dirty_bytes(self) -> int:
        """Written since the last sync, without zeros at the end of a write."""
        writes = (change.data for change in self._unsynced.open() if isinstance(change, _Write))
        return sum(len(data.rstrip(b"\0")) for data in writes)

    def write(self, position: int, data: bytes, at: float = 0.0) -> None:
        self._seen.write(position, data)
        self._unsynced.add(_Write(position, data), at)
        self.modified_at = at

    def resize(self, size: int, at: float = 0.0) -> None:
        self._seen.resize(size)
        self._unsynced.add(_Resize(size), at)

    def read(self, position: int, size: int) -> bytes:
        return self._seen.read(position, size)

    def sync(self, now: float = 0.0, until: float = 0.0) -> None:
        """All changes so far become durable at the moment `until`."""
        self._unsynced.sync(until)
        self._save(now)

    def _save(self, now: float) -> None:
        for change in self._unsynced.take_saved(now):
            _apply(self._durable, change)

    def finish(self, now: float) -> None:
        self._unsynced.finish(now)

    def hasten(self, now: float, factor: float) -> None:
        self._unsynced.hasten(now, factor)

    def fail_sync(self, rng: random.Random, now: float = 0.0, until: float = 0.0) -> None:
        """A failed sync: as in a real kernel, pages count as clean though the device may not have them.

        What it has is durable at the moment `until`. A name that was synced just before is so by then.
        """
        self._unsynced.drop_open(lambda: rng.random() >= 0.5)
        self.sync(now, until)

    def lose_power(self, rng: random.Random, now: float = inf) -> str:
        """Keep what the device happens to have written. Returns a word for the trace."""
        self._save(now)
        pending = self._unsynced.take_all(now)
        if not pending:
            how = "clean"
        else:
            how = rng.choice(("lost", "kept", "prefix", "scattered", "scattered"))
            if how == "kept":
                for change in pending:
                    _apply(self._durable, change)
            elif how == "prefix":
                self._keep_prefix(pending, rng)
            elif how == "scattered":
                self._scatter(pending, rng)
        self._seen = self._durable.copy()
        return how

    def _keep_prefix(self, pending: list[_Write | _Resize], rng: random.Random) -> None:
        count = rng.randrange(len(pending))
        for change in pending[:count]:
            _apply(self._durable, change)
        torn = pending[count]
        if isinstance(torn, _Write):
            sectors = rng.randrange(len(torn.data) // SECTOR_BYTES + 1)
            _apply(self._durable, _Write(torn.position, torn.data[: sectors * SECTOR_BYTES]))

    def _scatter(self, pending: list[_Write | _Resize], rng: random.Random) -> None:
        """Keep each page or sector of each write at random. The size is as after the last change."""
        unit = rng.choice((SECTOR_BYTES, PAGE_BYTES))
        for change in pending:
            if isinstance(change, _Resize):
                _apply(self._durable, change)
                continue
            position, data = change
            end = position + len(data)
            while data:
                length = unit - position % unit
                if rng.random() < 0.5:
                    _apply(self._durable, _Write(position, data[:length]))
                position, data = position + length, data[length:]
            self._durable.size = max(self._durable.size, end)

    @property
    def is_on_disk(self) -> bool:
        """Whether a power loss leaves anything of it."""
        return bool(self._durable.data)

    def flip_bit(self, rng: random.Random) -> int | None:
        """Bit rot: flip one durable bit. Returns the byte's position."""
        if not self._durable.data:
            return None
        position = rng.randrange(len(self._durable.data))
        mask = 1 << rng.randrange(8)
        self._durable.data[position] ^= mask
        if position < len(self._seen.data):
            self._seen.data[position] ^= mask
        return position


def _apply(image: _Image, change: _Write | _Resize) -> None:
    if isinstance(change, _Write):
        image.write(change.position, change.data)
    else:
        image.resize(change.size)


Entry: TypeAlias = "Inode | Directory"


class _Link(NamedTuple):
    name: str
    entry: Entry


class _Unlink(NamedTuple):
    name: str


class _Rename(NamedTuple):
    source: str
    target: str
    entry: Entry


_Change: TypeAlias = _Link | _Unlink | _Rename


class Directory:
    __slots__ = ("_durable", "_unsynced", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self._durable: dict[str, Entry] = {}
        self._unsynced: _Unsynced[_Change] = _Unsynced()

    def _change(self, change: _Change, at: float) -> None:
        _apply_name(self.entries, change)
        self._unsynced.add(change, at)

    def link(self, name: str, entry: Entry, at: float = 0.0) -> None:
        self._change(_Link(name, entry), at)

    def unlink(self, name: str, at: float = 0.0) -> None:
        self._change(_Unlink(name), at)

    def rename(self, source: str, target: str, at: float = 0.0) -> None:
        self._change(_Rename(source, target, self.entries[source]), at)

    def sync(self, now: float = 0.0, until: float = 0.0) -> None:
        """All names up to here are safe at the moment `until`."""
        self._unsynced.sync(until)
        self._save(now)

    def _save(self, now: float) -> None:
        for change in self._unsynced.take_saved(now):
            _apply_name(self._durable, change)

    def finish(self, now: float) -> None:
        """Let all calls that are under way be over, here and below."""
        self._unsynced.finish(now)
        for entry in self._all_entries():
            entry.finish(now)

    def hasten(self, now: float, factor: float) -> None:
        """Speed up all calls that are under way by `factor` from now on, here and in the files below."""
        self._unsynced.hasten(now, factor)
        for entry in self._all_entries():
            entry.hasten(now, factor)

    def _all_entries(self) -> list[Entry]:
        """The files that have a name, or had one and get it back if power goes now; each once."""
        changed = [change.entry for change in self._unsynced.pending() if not isinstance(change, _Unlink)]
        return list(dict.fromkeys([*self.entries.values(), *self._durable.values(), *changed]))

    def lose_power(self, rng: random.Random, path: PurePath, lost: list[str], now: float = inf) -> None:
        self._save(now)
        pending = self._unsynced.take_all(now)
        if pending:
            kept = rng.choice((0, len(pending), rng.randint(0, len(pending))))
            for change in pending[:kept]:
                _apply_name(self._durable, change)
            lost.append(f"{path}/ kept {kept} of {len(pending)} name changes")
        self.entries = dict(self._durable)
        for name, entry in self.entries.items():
            if isinstance(entry, Directory):
                entry.lose_power(rng, path / name, lost, now)
            else:
                how = entry.lose_power(rng, now)
                if how != "clean":
                    lost.append(f"{path / name} {how}")

    def size(self) -> int:
        """Size of all files in the folder and below."""
        sizes = (
            entry.size() if isinstance(entry, Directory) else entry.size for entry in self.entries.values()
        )
        return sum(sizes)

    def walk(self, path: PurePath) -> Iterator[tuple[PurePath, Inode]]:
        for name, entry in self.entries.items():
            if isinstance(entry, Directory):
                yield from entry.walk(path / name)
            else:
                yield path / name, entry


def _apply_name(entries: dict[str, Entry], change: _Change) -> None:
    match change:
        case _Link():
            entries[change.name] = change.entry
        case _Unlink():
            entries.pop(change.name, None)
        case _Rename():
            entries.pop(change.source, None)
            entries[change.target] = change.entry
