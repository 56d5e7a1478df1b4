"""How much of the node's disk SQL may use, which it shares with the WAL.

Columns of topics are kept for the next query. When they are more than their budget, or the disk is nearly
full, those that no query has used for longest go first; columns that a running query reads stay.
"""

from __future__ import annotations

import itertools
import shutil
import threading
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Final

import duckdb

from chronik.query.messages import QueryError
from chronik.query.tables import OWN_FOLDERS, PartitionColumns, TopicColumns

__all__ = ["KeptColumns", "spare_bytes"]

RESERVE_BYTES: Final = 1 << 30
RESERVE_PART: Final = 20
"""SQL leaves this part of the disk free, or `RESERVE_BYTES` if that is less."""


def spare_bytes(root: Path) -> int:
    """What SQL may still write."""
    usage = shutil.disk_usage(root)
    return usage.free - min(RESERVE_BYTES, usage.total // RESERVE_PART)


class KeptColumns:
    """The columns of all topics. Used from several threads."""

    def __init__(self, root: Path, bytes_max: int) -> None:
        self._root = root
        self._bytes_max = bytes_max
        self._disk = threading.Lock()
        """Held while files are searched, measured or deleted, which takes a while. Taken before `_lock`."""
        self._lock = threading.Lock()
        """Guards the fields below. Never held while files are touched, since the event loop takes it too."""
        self._topics: dict[str, TopicColumns] = {}
        self._users: Counter[str] = Counter()
        """Running queries by name of the topic's folder."""
        self._used: dict[str, int] = {}
        """For each folder the number of its last use in this process."""
        self._uses = itertools.count(1)
        self.bytes = 0
        """When a query last wrote columns."""
        self.dropped = 0
        """Topics whose columns were removed because there was no room."""

    def hold(self, name: str, topic_id: str, held: list[TopicColumns]) -> TopicColumns:
        """The columns of a topic, which stay until what is in `held` is released. Blocking."""
        with self._disk:
            topic = self._topics.get(name)
            if topic is None or topic.topic_id != topic_id:
                topic = TopicColumns(self._root, name, topic_id)
            with self._lock:
                self._topics[name] = topic
                self._users[topic.folder.name] += 1
                self._used[topic.folder.name] = next(self._uses)
                held.append(topic)
            return topic

    def release(self, held: Collection[TopicColumns]) -> None:
        """Never waits for the disk."""
        with self._lock:
            self._users.subtract(topic.folder.name for topic in held)

    def tail_bytes(self) -> int:
        with self._lock:
            return sum(topic.tail_bytes() for topic in self._topics.values())

    def make_room(self) -> bool:
        """Drop columns that nobody reads, longest unused first, until there is room. False if that is not
        enough. Blocking."""
        with self._disk:
            sizes = {path.name: _size(path) for path in self._root.iterdir() if path.is_dir()}
            with self._lock:
                oldest_first = sorted(sizes, key=lambda name: self._used.get(name, 0))
            for name in oldest_first:
                if not self._is_over(sum(sizes.values())):
                    break
                if name not in OWN_FOLDERS and self._forget(name):
                    shutil.rmtree(self._root / name, ignore_errors=True)
                    del sizes[name]
            self.bytes = sum(sizes.values())
            return not self._is_over(self.bytes)

    def flush(self, columns: PartitionColumns, connection: duckdb.DuckDBPyConnection) -> None:
        """Write what a query read; QueryError if the disk has no room for it."""
        columns.flush(connection)
        if not self.make_room():
            raise QueryError(
                413,
                "no_room_for_columns",
                "The columns that this query reads do not fit on the node's disk (sql_columns_bytes_max, or "
                "little is free): narrow it by partition, offset or time.",
            )

    def _is_over(self, size: int) -> bool:
        return size > self._bytes_max or spare_bytes(self._root) < 0

    def _forget(self, folder: str) -> bool:
        """False if a query reads it. Nobody begins to while `_disk` is held."""
        with self._lock:
            if self._users[folder] > 0:
                return False
            topics = self._topics.items()
            self._topics = {name: topic for name, topic in topics if topic.folder.name != folder}
            self._used.pop(folder, None)
            self.dropped += 1
            return True


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*.parquet"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # another query ended or trimmed it
            continue
    return total
