"""Takes out of the indexes what compaction took out of the logs.

Compaction leaves holes in what was indexed long ago. After each one, the compacted part of the log is read
again. Where the index holds more documents than the log has records, they are replaced by what was read; all
else costs a look at the headers of its batches. Nobody can tell whether an index that was closed has missed
a compaction, so an index of a compacted topic is compared once when it is opened, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from chronik.client import Cluster, Consumer, Fetched, FetchOptions
from chronik.client.visibility import visible_batches
from chronik.model import ChronikError, TopicPartition, Unavailable
from chronik.query.index import TopicIndex
from chronik.query.messages import LogLosses
from chronik.query.unreadable_records import Skipped, readable_rows
from chronik.records.reader import Row

__all__ = ["Rechecking", "is_stale", "replace_lost"]

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.2
SILENCE_MS_MAX: Final = 10_000
RETRY_SECONDS: Final = 2.0
ROWS_AT_ONCE: Final = 2_000

OnThread: TypeAlias = Callable[[Callable[[], None]], Coroutine[Any, Any, None]]


class RecheckedTopic(Protocol):
    """The parts of an indexed topic that are used here. Dictionaries are by partition."""

    name: str
    topic_id: str
    index: TopicIndex
    starts: dict[int, int]
    targets: dict[int, int]
    replaced: dict[int, int]
    """The last compaction after which the index was compared; searches see it after a commit."""
    rechecked: dict[int, int]
    """The same as of the last commit, which is what searches see."""
    recount: set[int]
    is_gone: bool


class RecheckWork(NamedTuple):
    topic: RecheckedTopic
    partition: int
    compaction: int
    below: int


def is_stale(topic: RecheckedTopic, partition: int, state: LogLosses) -> bool:
    """Whether searches may still find records that a compaction removed."""
    return state.compaction > topic.rechecked.get(partition, -1)


class Rechecking:
    def __init__(
        self,
        topics: Mapping[str, RecheckedTopic],
        logs: Mapping[str, Mapping[int, LogLosses]],
        connect: Callable[[], Cluster],
        on_thread: OnThread,
    ) -> None:
        self._topics = topics
        self._logs = logs
        self._connect = connect
        self._on_thread = on_thread

    async def run(self) -> None:
        """Runs until cancelled. Errors are retried; a damaged index is left to the indexer."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for work in list(self._due()):
                try:
                    await self._recheck(work)
                except (ChronikError, OSError) as error:
                    name = f"{work.topic.name}-{work.partition}"
                    log.warning("the index of %s cannot be compared with its log: %s", name, error)
                    await asyncio.sleep(RETRY_SECONDS)

    def _due(self) -> Iterator[RecheckWork]:
        for topic in self._topics.values():
            for number, state in self._logs.get(topic.topic_id, {}).items():
                if number not in topic.targets or state.compaction <= topic.replaced.get(number, -1):
                    continue
                below = state.compacted_below
                if number not in topic.replaced:  # whatever was compacted before it was opened
                    below = max(below, topic.targets[number])
                # What was read before the compaction has to be in the index, or it would come after.
                if topic.index.snapshot.reached.get(number, -1) >= below:
                    yield RecheckWork(topic, number, state.compaction, below)

    async def _recheck(self, work: RecheckWork) -> None:
        topic, number, compaction, below = work
        tp = TopicPartition(topic.name, number)
        options = FetchOptions(read_committed=True, max_bytes=8 * 1024 * 1024)
        async with (
            self._connect() as cluster,
            Consumer(cluster, options, on_out_of_range="earliest") as consumer,
        ):
            consumer.assign({tp: topic.starts.get(number, 0)})
            while (position := consumer.position(tp)) < below:
                parts = await consumer.poll(SILENCE_MS_MAX)
                if not parts and consumer.position(tp) == position:
                    raise Unavailable(f"nothing came from offset {position} on")
                for part in parts:
                    await self._on_thread(partial(replace_lost, topic, part, below))
        topic.replaced[number] = compaction


def replace_lost(topic: RecheckedTopic, part: Fetched, below: int) -> None:
    """Remove documents that this part of the log no longer has. Runs on the indexer's thread."""
    number, first, end = part.tp.partition, part.fetch_offset, min(part.next_offset, below)
    if topic.is_gone or first >= end:
        return
    held = topic.index.count(number, first, end)
    if held == _records(part, end):
        return
    if held != sum(1 for _ in _rows(part, end)):
        topic.index.clear(number, first, end)
        coming = _rows(part, end)
        while rows := list(islice(coming, ROWS_AT_ONCE)):
            topic.index.add(number, rows)
        topic.recount.add(number)


def _rows(part: Fetched, end: int) -> Iterator[Row]:
    """The rows that can be read; the others were counted when they were indexed first."""
    return (row for row in readable_rows(part, Skipped(is_quiet=True)) if row[0] < end)


def _records(part: Fetched, end: int) -> int:
    """Number of visible records, from batch headers alone; -1 if they are not enough to know."""
    found = 0
    for _, header in visible_batches(part.data, part.aborted):
        if header.base_offset < part.fetch_offset or header.next_offset > end:
            return -1
        found += header.record_count
    return found
