"""Follows the committed log of the partitions this node leads and keeps their indexes up to date.

One task reads what comes into the partitions' tails, where searches find it at once. Another has it indexed
by a thread of its own, which stands back while others need the processors. What fails is tried again after
a pause that grows; a damaged index is thrown away and built again from the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import traceback
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from chronik.client import Cluster, Consumer, Fetched, FetchOptions
from chronik.client.offsets import EARLIEST, LATEST, list_offsets
from chronik.model import ChronikError, TopicPartition
from chronik.query.index import IndexDamaged, TopicIndex
from chronik.query.messages import Assignment, PartitionProgress, Progress
from chronik.query.pacing import Pace
from chronik.query.tail import Tail

__all__ = ["Indexer", "Topic"]

log = logging.getLogger(__name__)

T = TypeVar("T")

POLL_MS: Final = 200
COMMIT_SECONDS: Final = 0.3
COMMIT_SECONDS_MAX: Final = 2.0
LEFT_PER_SECOND: Final = 100_000
COMMIT_RECORDS: Final = 500_000
TAILS_BYTES_MAX: Final = 256 * 1024 * 1024
"""What is read ahead of the indexes."""
ROWS_AT_ONCE: Final = 2_000
REST_SECONDS: Final = 20.0
RETRY_SECONDS: Final = 1.0
RETRY_SECONDS_MAX: Final = 30.0


@dataclass(slots=True)
class Topic:
    """A searchable topic and how far its index is."""

    name: str
    topic_id: str
    index: TopicIndex
    positions: dict[int, int] = field(default_factory=dict)
    """What was added; the index finds it after the next commit."""
    tails: dict[int, Tail] = field(default_factory=dict)
    targets: dict[int, int] = field(default_factory=dict)
    """A partition is ready once it has reached the end that the log had when indexing began."""
    starts: dict[int, int] = field(default_factory=dict)
    documents: dict[int, int] = field(default_factory=dict)
    committed_at: float = 0.0
    is_gone: bool = False
    """Its index was thrown away."""

    @property
    def by_partition(self) -> tuple[dict[int, Any], ...]:
        return self.positions, self.tails, self.targets, self.starts, self.documents

    @property
    def committed(self) -> Mapping[int, int]:
        """Up to where the index finds everything."""
        return self.index.snapshot.reached

    def is_ready(self, partition: int) -> bool:
        return partition in self.committed and self.committed[partition] >= self.targets.get(partition, 0)

    @property
    def is_behind(self) -> bool:
        return any(tail.next_part(self.positions[number]) for number, tail in self.tails.items())

    def is_due(self, now: float) -> bool:
        """The more is left to read, the rarer: nothing is read meanwhile, and segments are merged later."""
        left = sum(tail.position - self.positions[number] for number, tail in self.tails.items())
        seconds = min(COMMIT_SECONDS + left / LEFT_PER_SECOND, COMMIT_SECONDS_MAX)
        return now - self.committed_at >= seconds or self.index.pending >= COMMIT_RECORDS


class Indexer:
    def __init__(
        self,
        root: Path,
        connect: Callable[[], Cluster],
        on_progress: Callable[[Progress], None],
        *,
        is_on: bool = True,
    ) -> None:
        self.is_on = is_on
        """False if nothing is indexed here, so that only what is published can be searched."""
        self._root = root
        self._connect = connect
        self._on_progress = on_progress
        self._wanted: Mapping[str, tuple[str, list[int]]] = {}
        self._changed = asyncio.Event()
        self._moved = asyncio.Condition()
        self._arrived = asyncio.Event()
        self._stopping = threading.Event()
        self._pace = Pace(self._tails_bytes)
        self._thread = ThreadPoolExecutor(1, "index")
        self._loop = asyncio.get_running_loop()
        self.topics: dict[str, Topic] = {}

    def assign(self, assignment: Assignment) -> None:
        self._wanted = assignment.topics
        self._changed.set()

    async def run(self) -> None:
        """For ever: whatever goes wrong is logged and tried again."""
        pause = RETRY_SECONDS
        while True:
            began = self._loop.time()
            try:
                self._changed.clear()
                await self._follow()
            except asyncio.CancelledError:
                raise
            except (IndexDamaged, ChronikError, OSError, ValueError) as error:
                log.warning("indexing pauses for %.0f s: %s", pause, error)
                _let_go(error)
                await self._pause(pause)
            except BaseException as error:  # tantivy's panics are no Exception
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
                log.exception("indexing failed; it goes on in %.0f s", pause)
                _let_go(error)
                await self._pause(pause)
            pause = RETRY_SECONDS if self._loop.time() - began > 60 else min(pause * 2, RETRY_SECONDS_MAX)

    async def _pause(self, seconds: float) -> None:
        """Let go of everything half done: the next run starts from what the indexes hold."""
        for topic in self.topics.values():
            topic.index.close()
        self.topics.clear()
        await asyncio.sleep(seconds)

    async def until(self, wanted: Mapping[TopicPartition, int]) -> None:
        """Wait until everything before these offsets is indexed; gives up only by its caller's deadline."""
        self._pace.hurry()
        async with self._moved:
            await self._moved.wait_for(lambda: all(self._reached(tp, end) for tp, end in wanted.items()))

    def _reached(self, tp: TopicPartition, end: int) -> bool:
        topic = self.topics.get(tp.topic)
        return topic is not None and topic.committed.get(tp.partition, 0) >= end

    async def until_read(self, wanted: Mapping[TopicPartition, int]) -> None:
        """Wait until everything before these offsets has been read, of partitions that are being read."""
        async with self._moved:
            await self._moved.wait_for(lambda: all(self._has_read(tp, end) for tp, end in wanted.items()))

    def _has_read(self, tp: TopicPartition, end: int) -> bool:
        topic = self.topics.get(tp.topic)
        tail = None if topic is None else topic.tails.get(tp.partition)
        return tail is None or tail.position >= end or self._is_full

    def _tails_bytes(self) -> int:
        topics = list(self.topics.values())
        return sum(tail.size_bytes for topic in topics for tail in list(topic.tails.values()))

    @property
    def _is_full(self) -> bool:
        return self._tails_bytes() >= TAILS_BYTES_MAX

    # --- one run until the assignment changes or something fails ---------------------------------------

    async def _follow(self) -> None:
        async with self._connect() as cluster:
            await self._open(cluster)
            positions = {
                TopicPartition(topic.name, number): tail.position
                for topic in self.topics.values()
                for number, tail in topic.tails.items()
            }
            await self._report()
            if not positions:
                await self._changed.wait()
                return
            options = FetchOptions(read_committed=True, max_wait_ms=POLL_MS, max_bytes=8 * 1024 * 1024)
            async with Consumer(cluster, options, on_out_of_range="earliest") as consumer:
                consumer.assign(positions)
                self._stopping.clear()
                feeding = self._loop.create_task(self._feed())
                try:
                    while not self._changed.is_set() and not feeding.done():
                        await self._read(consumer)
                finally:
                    self._stopping.set()
                    self._arrived.set()
                    await feeding

    async def _read(self, consumer: Consumer) -> None:
        """What came goes into the tails. Where the indexes are too far behind, it waits in the log."""
        if self._is_full:
            async with self._moved:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_MS / 1000):
                        await self._moved.wait()
            return
        fetched = await consumer.poll(POLL_MS)
        for part in fetched:
            topic = self.topics.get(part.tp.topic)
            tail = None if topic is None else topic.tails.get(part.tp.partition)
            if tail is not None:
                tail.add(part)
        if fetched:
            self._arrived.set()
            async with self._moved:
                self._moved.notify_all()

    async def _open(self, cluster: Cluster) -> None:
        wanted = self._wanted
        for name in [name for name in self.topics if name not in wanted]:
            self.topics.pop(name).index.close()
        for name, (topic_id, partitions) in wanted.items():
            topic = self.topics.get(name)
            if topic is not None and topic.topic_id == topic_id:
                await self._commit(topic)  # else what comes back would be taken from before it
            else:
                index = await self._on_thread(partial(self._index, name, topic_id))
                topic = self.topics[name] = Topic(name, topic_id, index)
            tps = [TopicPartition(name, number) for number in partitions]
            ends = await list_offsets(cluster, dict.fromkeys(tps, LATEST), read_committed=True)
            starts = await list_offsets(cluster, dict.fromkeys(tps, EARLIEST))
            for number in [number for number in topic.positions if number not in partitions]:
                for kept in topic.by_partition:
                    kept.pop(number, None)
            for tp in tps:
                await self._open_partition(topic, tp.partition, starts[tp].offset, ends[tp].offset)
            topic.index.reach(topic.positions)
        known = {f"{name}.{info.topic_id}" for name, info in (await cluster.topics()).items()}
        await self._on_thread(partial(self._remove_others, known))

    async def _open_partition(self, topic: Topic, number: int, start: int, end: int) -> None:
        if number in topic.positions:
            return
        first, position, documents = await self._on_thread(lambda: topic.index.span(number))
        if position > end:
            raise IndexDamaged(self._forget(topic, f"{topic.name} holds more than its log"))
        if documents and first < start:
            await self._on_thread(lambda: topic.index.purge(number, start))
        topic.starts[number] = start
        topic.documents[number] = documents
        topic.positions[number] = max(position, start)
        topic.tails[number] = Tail(topic.positions[number])
        topic.targets[number] = end

    def _index(self, name: str, topic_id: str) -> TopicIndex:
        path = self._root / f"{name}.{topic_id}"
        try:
            return TopicIndex(path)
        except IndexDamaged as error:
            log.warning("the index of %s is damaged (%s): it is built again from the log", name, error)
            TopicIndex.remove(path)
            return TopicIndex(path)

    def _forget(self, topic: Topic, why: str) -> str:
        """Throw an index away; the next run builds it again."""
        self.topics.pop(topic.name, None)
        topic.is_gone = True
        topic.index.close()
        TopicIndex.remove(topic.index.path)
        return why

    def hurry(self) -> None:
        """A search could not do without the index."""
        self._pace.hurry()

    def damaged(self, topic: Topic, why: str) -> None:
        """Somebody who searched found out."""
        if self.topics.get(topic.name) is topic:
            log.warning("the index of %s is damaged (%s): it is built again from the log", topic.name, why)
            self._forget(topic, why)
            self._changed.set()

    def damaged_from_thread(self, topic: Topic, why: str) -> None:
        self._loop.call_soon_threadsafe(self.damaged, topic, why)

    def _remove_others(self, known: set[str]) -> None:
        """Indexes of topics that are gone."""
        for path in self._root.iterdir() if self._root.is_dir() else ():
            if path.name not in known and _is_uuid(path.name.rpartition(".")[2]):
                TopicIndex.remove(path)

    async def _feed(self) -> None:
        """Have indexed what was read, until this run ends."""
        idle_since = self._loop.time()
        while not self._stopping.is_set():
            self._arrived.clear()
            topics = list(self.topics.values())
            for topic in topics:
                for number in list(topic.tails):
                    if (part := topic.tails[number].next_part(topic.positions[number])) is not None:
                        idle_since = self._loop.time()
                        await self._on_thread(partial(self._add, topic, part))
            now = self._loop.time()
            topics = list(self.topics.values())
            moved = [await self._commit_if_due(topic, now, now - idle_since) for topic in topics]
            if any(moved):
                await self._report()
            if not any(topic.is_behind for topic in topics):
                self._pace.rest()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), POLL_MS / 1000)

    async def _commit_if_due(self, topic: Topic, now: float, idle_seconds: float) -> bool:
        if topic.positions != topic.committed and not topic.index.pending:
            await self._commit(topic)  # nothing but markers and aborted records
            return True
        if topic.index.pending and topic.is_due(now):
            await self._commit(topic)
            return True
        if idle_seconds > REST_SECONDS:
            topic.index.rest()
        return False

    async def _commit(self, topic: Topic) -> None:
        if topic.is_gone:
            return
        positions = dict(topic.positions)
        if topic.index.pending:
            await self._on_thread(partial(topic.index.commit, positions))
            topic.committed_at = self._loop.time()
        else:
            topic.index.reach(positions)
        for number, tail in topic.tails.items():
            tail.drop(positions[number])

    def _add(self, topic: Topic, part: Fetched) -> None:
        """On the indexer's thread."""
        number = part.tp.partition
        self._pace.wait(self._stopping.is_set)
        rows = part.rows()
        for start in range(0, len(rows), ROWS_AT_ONCE):
            self._pace.wait(self._stopping.is_set)
            if topic.is_gone:
                return
            topic.index.add(number, rows[start : start + ROWS_AT_ONCE])
        topic.documents[number] = topic.documents.get(number, 0) + len(rows)
        topic.positions[number] = part.next_offset
        if part.log_start_offset > topic.starts.get(number, 0):
            topic.starts[number] = part.log_start_offset
            topic.index.purge(number, part.log_start_offset)

    async def _report(self) -> None:
        async with self._moved:
            self._moved.notify_all()
        partitions = []
        for topic in self.topics.values():
            for number, offset in topic.committed.items():
                documents = topic.documents.get(number, 0)
                partitions.append(
                    PartitionProgress(
                        topic=topic.name, partition=number, next_offset=offset, documents=documents
                    )
                )
        self._on_progress(Progress(partitions=partitions))

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._thread, work)


def _let_go(error: BaseException) -> None:
    """Of what the functions that failed had in hand. They may be in a circle with the task that they failed
    in, and until the collector came, the index's writer would keep its lock: nobody could write."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__context__


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
