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
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from chronik.client import Cluster, Consumer, Fetched, FetchOptions
from chronik.client.offsets import EARLIEST, LATEST, list_offsets
from chronik.model import ChronikError, TopicPartition
from chronik.query.index import IndexDamaged, TopicIndex
from chronik.query.indexed_topic import IndexedTopic
from chronik.query.messages import Assignment, IndexProgress, LogLosses, Logs, PartitionProgress
from chronik.query.pacing import IndexerPace
from chronik.query.rechecking import Rechecking, is_stale
from chronik.query.tail import Tail
from chronik.query.unreadable_records import Skipped, readable_rows

__all__ = ["Indexer"]

log = logging.getLogger(__name__)

T = TypeVar("T")

POLL_MS: Final = 200
TAILS_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes that are read ahead of the indexes."""
ROWS_AT_ONCE: Final = 2_000
REST_SECONDS: Final = 20.0
RETRY_SECONDS: Final = 1.0
RETRY_SECONDS_MAX: Final = 30.0


class Indexer:
    def __init__(
        self,
        root: Path,
        connect: Callable[[], Cluster],
        on_progress: Callable[[IndexProgress], None],
        *,
        is_on: bool = True,
        skipped: Skipped | None = None,
        tails_bytes_max: int = TAILS_BYTES_MAX,
    ) -> None:
        self._tails_bytes_max = tails_bytes_max
        self._skipped = Skipped() if skipped is None else skipped
        self.is_on = is_on
        """False if this node indexes nothing: then only indexes that the pipeline published are searched."""
        self._root = root
        self._connect = connect
        self._on_progress = on_progress
        self._wanted: Mapping[str, tuple[str, list[int]]] = {}
        self._changed = asyncio.Event()
        self._moved = asyncio.Condition()
        self._arrived = asyncio.Event()
        self._stopping = threading.Event()
        self._pace = IndexerPace(self._tails_bytes)
        self._thread = ThreadPoolExecutor(1, "index")
        self._loop = asyncio.get_running_loop()
        self.topics: dict[str, IndexedTopic] = {}
        self._logs: dict[str, dict[int, LogLosses]] = {}
        """What retention and compaction have removed from the logs, by topic id."""
        self._rechecking = Rechecking(self.topics, self._logs, connect, self._on_thread_gently)

    def learn(self, logs: Logs) -> None:
        """The node's report about its logs. Neither log start offsets nor compactions go back."""
        for topic_id, states in logs.topics.items():
            known = self._logs.setdefault(topic_id, {})
            for number, state in states.items():
                known[number] = state if (seen := known.get(number)) is None else seen.joined(state)
        for topic in self.topics.values():
            for number, state in logs.topics.get(topic.topic_id, {}).items():
                topic.learn_start(number, state.start)

    def assign(self, assignment: Assignment) -> None:
        ids = {topic_id for topic_id, _ in assignment.topics.values()}
        for topic_id in self._logs.keys() - ids:
            del self._logs[topic_id]
        self._wanted = assignment.topics
        self._changed.set()

    async def run(self) -> None:
        """Runs until cancelled. Errors are logged, and indexing starts again."""
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
        """Discard uncommitted work. The next run starts from what the indexes have committed."""
        for topic in self.topics.values():
            topic.index.close()
        self.topics.clear()
        await asyncio.sleep(seconds)

    def topic(self, name: str, topic_ids: Mapping[str, str]) -> IndexedTopic | None:
        """The topic of this name, unless it is one that was deleted: then another has the name now."""
        topic = self.topics.get(name)
        return topic if topic is not None and topic.topic_id == topic_ids.get(name) else None

    async def until(self, wanted: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]) -> None:
        """Wait until everything before these offsets is indexed. The caller sets the deadline."""
        self._pace.hurry()

        def has_reached(tp: TopicPartition, end: int) -> bool:
            topic = self.topic(tp.topic, topic_ids)
            return topic is not None and topic.committed.get(tp.partition, 0) >= end

        async with self._moved:
            await self._moved.wait_for(lambda: all(has_reached(tp, end) for tp, end in wanted.items()))

    async def until_read(self, wanted: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]) -> None:
        """Wait until everything before these offsets has been read, of partitions that are being read."""

        def has_read(tp: TopicPartition, end: int) -> bool:
            topic = self.topic(tp.topic, topic_ids)
            tail = None if topic is None else topic.tails.get(tp.partition)
            return tail is None or tail.position >= end or self._is_full

        async with self._moved:
            await self._moved.wait_for(lambda: all(has_read(tp, end) for tp, end in wanted.items()))

    async def until_rechecked(self, wanted: Iterable[TopicPartition], topic_ids: Mapping[str, str]) -> None:
        """Wait until searches no longer find records that were compacted away before this call."""
        logs = {tp: self._logs.get(topic_ids.get(tp.topic, ""), {}).get(tp.partition) for tp in wanted}

        def is_behind(tp: TopicPartition, state: LogLosses | None) -> bool:
            topic = self.topic(tp.topic, topic_ids)
            return topic is not None and state is not None and is_stale(topic, tp.partition, state)

        async with self._moved:
            await self._moved.wait_for(lambda: not any(is_behind(tp, log) for tp, log in logs.items()))

    def _tails_bytes(self) -> int:
        topics = list(self.topics.values())
        return sum(tail.size_bytes for topic in topics for tail in list(topic.tails.values()))

    @property
    def _is_full(self) -> bool:
        return self._tails_bytes() >= self._tails_bytes_max

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
                # `run` hears of their failures: the results are read below.
                feeding = self._loop.create_task(self._feed())
                rechecking = self._loop.create_task(self._rechecking.run())
                try:
                    while not (self._changed.is_set() or feeding.done() or rechecking.done()):
                        await self._read(consumer)
                finally:
                    self._stopping.set()
                    self._arrived.set()
                    rechecking.cancel()
                    await asyncio.wait({feeding, rechecking})
                    await self._on_thread(lambda: None)  # the work that was begun there has ended
                    for task in (feeding, rechecking):
                        if not task.cancelled():
                            task.result()

    async def _read(self, consumer: Consumer) -> None:
        """Put fetched records into the tails. Stops fetching while the indexes are too far behind."""
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
            if topic is not None and tail is not None:
                tail.add(part)
                topic.learn_start(part.tp.partition, part.log_start_offset)
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
                # Otherwise a partition that comes back would be read from before what is indexed.
                await self._commit(topic)
            else:
                index = await self._on_thread(partial(self._index, name, topic_id))
                topic = self.topics[name] = IndexedTopic(name, topic_id, index)
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

    async def _open_partition(self, topic: IndexedTopic, number: int, start: int, end: int) -> None:
        if number in topic.positions:
            return
        first, position, documents = await self._on_thread(lambda: topic.index.span(number))
        if position > end:
            raise IndexDamaged(self._forget(topic, f"{topic.name} holds more than its log"))
        await self._on_thread(lambda: topic.index.purge(number, start))
        if documents and first < start:
            topic.recount.add(number)
        topic.starts[number] = start
        topic.documents[number] = documents
        topic.positions[number] = max(position, start)
        topic.tails[number] = Tail(topic.positions[number])
        topic.targets[number] = end
        if not documents and (state := self._logs.get(topic.topic_id, {}).get(number)) is not None:
            topic.replaced[number] = topic.rechecked[number] = state.compaction

    def _index(self, name: str, topic_id: str) -> TopicIndex:
        path = self._root / f"{name}.{topic_id}"
        try:
            return TopicIndex(path)
        except IndexDamaged as error:
            log.warning("the index of %s is damaged (%s): it is built again from the log", name, error)
            TopicIndex.remove(path)
            return TopicIndex(path)

    def _forget(self, topic: IndexedTopic, why: str) -> str:
        """Throw an index away; the next run builds it again."""
        self.topics.pop(topic.name, None)
        topic.is_gone = True
        topic.index.close()
        TopicIndex.remove(topic.index.path)
        return why

    def hurry(self) -> None:
        """A search needed more of the index than there is: index without waiting for a free processor."""
        self._pace.hurry()

    def damaged(self, topic: IndexedTopic, why: str) -> None:
        """A search found the index damaged."""
        if self.topics.get(topic.name) is topic:
            log.warning("the index of %s is damaged (%s): it is built again from the log", topic.name, why)
            self._forget(topic, why)
            self._changed.set()

    def damaged_from_thread(self, topic: IndexedTopic, why: str) -> None:
        self._loop.call_soon_threadsafe(self.damaged, topic, why)

    def _remove_others(self, known: set[str]) -> None:
        """Indexes of topics that are gone."""
        for path in self._root.iterdir() if self._root.is_dir() else ():
            if path.name not in known and _is_uuid(path.name.rpartition(".")[2]):
                TopicIndex.remove(path)

    async def _feed(self) -> None:
        """Index what was read, until this run ends."""
        idle_since = self._loop.time()
        while not self._stopping.is_set():
            self._arrived.clear()
            topics = list(self.topics.values())
            for topic in topics:
                await self._purge(topic)
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

    async def _purge(self, topic: IndexedTopic) -> None:
        """Delete documents before the log start offset from the index."""
        for number, tail in list(topic.tails.items()):
            start = topic.starts.get(number, 0)
            if topic.index.purged_below(number) < start:
                topic.recount.add(number)
                await self._on_thread(partial(topic.index.purge, number, start))
            if topic.positions[number] < start and tail.next_part(topic.positions[number]) is None:
                topic.positions[number] = start

    async def _commit_if_due(self, topic: IndexedTopic, now: float, idle_seconds: float) -> bool:
        is_ahead = topic.positions != topic.committed or topic.replaced != topic.rechecked
        if is_ahead and not topic.index.pending:
            await self._commit(topic)  # nothing but markers and aborted records, or nothing was compacted
            return True
        if topic.index.pending and topic.is_due(now):
            await self._commit(topic)
            return True
        if idle_seconds > REST_SECONDS:
            topic.index.rest()
        return False

    async def _commit(self, topic: IndexedTopic) -> None:
        if topic.is_gone:
            return
        positions, replaced = dict(topic.positions), dict(topic.replaced)
        if topic.index.pending:
            await self._on_thread(partial(self._commit_here, topic, positions))
            topic.committed_at = self._loop.time()
        else:
            topic.index.reach(positions)
        for number, tail in topic.tails.items():
            tail.drop(positions[number])
        topic.rechecked |= replaced

    def _commit_here(self, topic: IndexedTopic, positions: Mapping[int, int]) -> None:
        """On the indexer's thread."""
        topic.index.commit(positions)
        while topic.recount:
            number = topic.recount.pop()
            if number in topic.documents:
                topic.documents[number] = topic.index.count(number, 0, None)

    def _add(self, topic: IndexedTopic, part: Fetched) -> None:
        """On the indexer's thread."""
        number = part.tp.partition
        self._pace.wait(self._stopping.is_set)
        first = max(topic.starts.get(number, 0), topic.positions[number])
        # The log may have lost its beginning while this came.
        coming = (row for row in readable_rows(part, self._skipped) if row[0] >= first)
        added = 0
        while rows := list(islice(coming, ROWS_AT_ONCE)):
            self._pace.wait(self._stopping.is_set)
            if topic.is_gone:
                return
            left_out = topic.index.add(number, rows)
            added += len(rows)
            if left_out:
                self._skipped.add(topic.name, number, left_out, "a record cannot be made a document")
        topic.documents[number] = topic.documents.get(number, 0) + added
        topic.positions[number] = part.next_offset

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
        self._on_progress(IndexProgress(partitions=partitions))

    async def _on_thread_gently(self, work: Callable[[], None]) -> None:
        def wait_and_work() -> None:
            self._pace.wait(self._stopping.is_set)
            work()

        await self._on_thread(wait_and_work)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._thread, work)


def _let_go(error: BaseException) -> None:
    """Clear the local variables of the failed functions. They may form a cycle with the failed task; until it
    is collected, the index writer would keep its lock and nobody could write."""
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
