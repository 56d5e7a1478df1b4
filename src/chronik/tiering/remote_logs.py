"""What partitions ask of their remote logs: reads with a limit of time, deletions, epochs, timestamps."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, TypeVar

from chronik.log_lines import RepeatingLine
from chronik.metrics import TieringStats
from chronik.model import ChronikError, ErrorCode, RequestError, TopicPartition, Unavailable
from chronik.replication.partition import Partition
from chronik.storage.epochs import EpochHistory
from chronik.storage.reading import EMPTY, LogSlice, TimestampedOffset
from chronik.tasks import Tasks
from chronik.tiering.catalog import Catalog
from chronik.tiering.failures import store_failed
from chronik.tiering.manifest import RemoteManifest
from chronik.tiering.reader import RemoteReader

__all__ = ["TieredLogs"]

T = TypeVar("T")

_refused: Final = RepeatingLine(
    logging.getLogger(__name__),
    logging.WARNING,
    "%s: a deletion of records is refused: %d wait for the object store",
)
DELETES_MAX: Final = 64
"""DeleteRecords that wait for the store, in all and of one partition, where each waits for the one before."""
DELETES_PER_PARTITION: Final = 8
READS_MAX: Final = 256
"""Reads under way, most of them for fetches that were answered without."""
READS_PER_ASKER: Final = 16
"""Reads under way for one connection. Its next ones start as these end."""
LOOK_UP_SECONDS: Final = 20.0
"""Answers to ListOffsets and OffsetForLeaderEpoch take no longer: clients ask again after 30 s."""
_Read: TypeAlias = tuple[bytes, int, int, int, bool]


class TieredLogs:
    """Implements `replication.remote.RemoteLogs` on a node that has an object store."""

    def __init__(self, catalog: Catalog, reader: RemoteReader, stats: TieringStats) -> None:
        self._catalog = catalog
        self._reader = reader
        self._stats = stats
        self._tasks = Tasks("remote reads")
        self._under_way: dict[_Read, asyncio.Task[LogSlice | RequestError]] = {}
        """A consumer that was told to come again joins the read that it began."""
        self._begun: Counter[Hashable] = Counter()
        """Reads under way, by who began them."""
        self._deletes: Counter[TopicPartition] = Counter()

    async def stop(self) -> None:
        await self._tasks.close()

    # --- reading -----------------------------------------------------------------------------------

    async def read(
        self,
        partition: Partition,
        offset: int,
        bytes_max: int,
        *,
        min_one_batch: bool,
        until: float | None,
        asker: Hashable,
    ) -> LogSlice:
        if until is None:
            return await self._reader.read(partition, offset, bytes_max, min_one_batch=min_one_batch)
        wanted = (partition.topic_id.bytes, partition.tp.partition, offset, bytes_max, min_one_batch)
        task = self._under_way.get(wanted)
        if task is None:
            if len(self._under_way) >= READS_MAX or self._begun[asker] >= READS_PER_ASKER:
                # No error: a fetch that has one is answered at once, whatever its other partitions have.
                self._stats.deferred_reads += 1
                return EMPTY
            task = self._begin(wanted, partition, asker)
        left = until - asyncio.get_running_loop().time()
        await asyncio.wait((task,), timeout=max(left, 0))
        if not task.done():
            self._stats.slow_reads += 1
            return EMPTY
        outcome = task.result()
        if isinstance(outcome, RequestError):
            raise outcome
        return outcome

    def _begin(
        self, wanted: _Read, partition: Partition, asker: Hashable
    ) -> asyncio.Task[LogSlice | RequestError]:
        _, _, offset, bytes_max, min_one_batch = wanted
        reading = self._reader.read(partition, offset, bytes_max, min_one_batch=min_one_batch)
        task = self._tasks.spawn(_outcome(reading), f"reading {partition.tp} at {offset}")
        self._under_way[wanted] = task
        self._begun[asker] += 1
        task.add_done_callback(lambda _: self._ended(wanted, asker))
        return task

    def _ended(self, wanted: _Read, asker: Hashable) -> None:
        del self._under_way[wanted]
        self._begun[asker] -= 1
        if not self._begun[asker]:
            del self._begun[asker]

    async def epochs(self, partition: Partition) -> EpochHistory:
        return await _in_time(partition, self._reader.epochs(partition))

    async def offset_for_timestamp(self, partition: Partition, timestamp_ms: int) -> TimestampedOffset | None:
        return await _in_time(partition, self._reader.offset_for_timestamp(partition, timestamp_ms))

    async def max_timestamp(self, partition: Partition) -> int:
        return await _in_time(partition, self._reader.max_timestamp(partition))

    # --- deleting ----------------------------------------------------------------------------------

    async def delete_before(self, partition: Partition, offset: int) -> None:
        """For a client. RequestError if too many wait already."""
        with self._deletion(partition.tp):
            await self.retain_from(partition, offset)

    @contextmanager
    def _deletion(self, tp: TopicPartition) -> Iterator[None]:
        """While one is under way. Its client may be gone long before the store is back."""
        if self._deletes.total() >= DELETES_MAX or self._deletes[tp] >= DELETES_PER_PARTITION:
            self._stats.refused_deletes += 1
            _refused(tp, tp, self._deletes.total())
            raise RequestError(
                ErrorCode.kafka_storage_error,
                f"{tp}: too many deletions wait for the object store; try again later",
            )
        self._deletes[tp] += 1
        self._stats.deletes += 1
        try:
            yield
        finally:
            self._stats.deletes -= 1
            self._deletes[tp] -= 1
            if not self._deletes[tp]:
                del self._deletes[tp]

    async def retain_from(self, partition: Partition, offset: int) -> None:
        """The store forgets first: were it the other way round, a log could start again at what was deleted
        locally after a change of the leader.

        For the node's own retention, too, which goes from partition to partition and must not be refused for
        what clients wait for.
        """
        async with self._catalog.changing(partition):
            partition.require_leader()
            try:
                await self._forget(partition, partition.leader_epoch, offset)
            except (RequestError, Unavailable):
                raise
            except (ChronikError, OSError) as error:
                raise store_failed(partition.tp, error) from None
            await partition.log.advance_start(offset)

    async def _forget(self, partition: Partition, leader_epoch: int, offset: int) -> None:
        remote = partition.remote
        if remote is None or offset <= remote.start_offset or remote.start_offset == remote.end_offset:
            return
        if offset >= remote.end_offset:
            await self._catalog.commit(
                partition, leader_epoch, RemoteManifest(), remote.end_offset, remote.end_offset
            )
            return
        manifest = await self._catalog.manifest(partition)
        kept = tuple(one for one in manifest.segments if one.end_offset > offset)
        if len(kept) < len(manifest.segments):
            history = EpochHistory(manifest.epochs)
            history.truncate_start(kept[0].base_offset)
            manifest = RemoteManifest(kept, tuple(history.entries))
        await self._catalog.commit(partition, leader_epoch, manifest, offset, remote.end_offset)


async def _in_time(partition: Partition, looking: Coroutine[Any, Any, T]) -> T:
    try:
        async with asyncio.timeout(LOOK_UP_SECONDS):
            return await looking
    except TimeoutError:
        raise RequestError(
            ErrorCode.kafka_storage_error,
            f"{partition.tp}: the object store did not answer within {LOOK_UP_SECONDS:g} s",
        ) from None


async def _outcome(reading: Coroutine[Any, Any, LogSlice]) -> LogSlice | RequestError:
    """The result or the failure as a value: nobody may be left to take an exception."""
    try:
        return await reading
    except RequestError as error:
        return error
