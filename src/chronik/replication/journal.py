"""Partitions of an internal topic as a coordinator's memory: led, replayed, appended to.

A coordinator's state is a function of the records in the partitions of its topic. Whoever leads a partition
replays it into a shard and from then on appends to it; who no longer leads it drops the shard. A shard
belongs to one leader epoch, so nothing of an older one can be mistaken for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from chronik.metadata import events as e
from chronik.metadata.store import MetadataStore
from chronik.model import ErrorCode, RequestError, StorageError, TopicPartition
from chronik.records.batch import BatchHeader, Buffer, headers
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.replication.partition import ACKS_ALL, Partition

log = logging.getLogger(__name__)

READ_BYTES: Final = 1024 * 1024
LOAD_WAIT_S: Final = 5.0
"""How long a request waits for a replay before its client is told to come again."""

_NOT_COORDINATOR: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.kafka_storage_error,
    }
)
_NOT_AVAILABLE: Final = frozenset(
    {
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.request_timed_out,
    }
)


def coordinator_error(code: ErrorCode) -> ErrorCode:
    """What a client of a coordinator is told about a failed append."""
    if code in _NOT_COORDINATOR:
        return ErrorCode.not_coordinator
    return ErrorCode.coordinator_not_available if code in _NOT_AVAILABLE else code


class Written(NamedTuple):
    """What became of an append: the offset of its first record, or an error."""

    base_offset: int
    error: ErrorCode


class Producer(NamedTuple):
    """On whose behalf a transactional batch is written."""

    producer_id: int
    producer_epoch: int


class Journal:
    """One partition of an internal topic, in one leader epoch."""

    def __init__(self, partition: Partition, now_ms: Callable[[], int]) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self._now_ms = now_ms

    @property
    def is_current(self) -> bool:
        return self.partition.is_leader and self.partition.leader_epoch == self.leader_epoch

    def append(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        done: Callable[[Written], None],
        *,
        producer: Producer | None = None,
    ) -> int:
        """Write key-value pairs as one batch; `done` is called once they are committed, or failed.

        Returns the offset of the first one; -1 if it failed at once, in which case `done` was called.
        """
        now_ms = self._now_ms()
        batch = build_batch(
            [Record(key=key, value=value, timestamp_ms=now_ms) for key, value in records],
            producer_id=-1 if producer is None else producer.producer_id,
            producer_epoch=-1 if producer is None else producer.producer_epoch,
            is_transactional=producer is not None,
        )
        try:
            if not self.is_current:
                raise RequestError(ErrorCode.not_leader_or_follower)
            appended = self.partition.append_internal(batch, now_ms)
        except RequestError as error:
            done(Written(-1, coordinator_error(error.code)))
            return -1
        except StorageError as error:
            log.error("%s cannot be appended to: %s", self.partition.tp, error)
            done(Written(-1, ErrorCode.coordinator_not_available))
            return -1

        def acknowledged(error: RequestError | None) -> None:
            code = ErrorCode.none if error is None else coordinator_error(error.code)
            done(Written(appended.base_offset, code))

        self.partition.when_acked(appended.next_offset, ACKS_ALL, acknowledged)
        return appended.base_offset

    async def write(
        self, records: Sequence[tuple[bytes, bytes | None]], *, producer: Producer | None = None
    ) -> int:
        """The same for those who wait: the offset of the first record, or RequestError."""
        future: asyncio.Future[Written] = asyncio.get_running_loop().create_future()

        def done(written: Written) -> None:
            if not future.done():
                future.set_result(written)

        self.append(records, done, producer=producer)
        written = await future
        if written.error is not ErrorCode.none:
            raise RequestError(written.error)
        return written.base_offset

    async def load(self, apply: Callable[[BatchHeader, Buffer], None]) -> bool:
        """Show every batch of the log, oldest first; False if this is not to be acted on.

        Returns only once all of it is committed: a new leader may hold what others lack and could still lose.
        """
        partition, offset = self.partition, self.partition.log_start_offset
        while True:
            offset = await self._replay(apply, offset)
            await self._settled(offset)
            if not self.is_current or partition.high_watermark < offset:
                return False
            if partition.log_end_offset <= offset:
                return True  # else markers came meanwhile

    async def _settled(self, end: int) -> None:
        """Return when all before `end` is committed, or never will be."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_error: RequestError | None) -> None:
            if not settled.done():
                settled.set_result(None)

        self.partition.when_acked(end, ACKS_ALL, done)
        await settled

    async def _replay(self, apply: Callable[[BatchHeader, Buffer], None], offset: int) -> int:
        """All that is there from `offset` on; returns where that ends."""
        partition, end = self.partition, self.partition.log_end_offset
        while offset < end:
            found = await partition.read(offset, READ_BYTES, end)
            before = offset
            for buffer in found.buffers:
                for position, header in headers(buffer):
                    if header.next_offset > offset:
                        offset = header.next_offset
                        apply(header, memoryview(buffer)[position : position + header.size_bytes])
            if offset == before:
                return end  # nothing but a gap is left
            await asyncio.sleep(0)  # a long replay must not hold up everybody else
        return offset


class Shard(Protocol):
    """What a coordinator keeps of one partition."""

    def apply(self, header: BatchHeader, batch: Buffer) -> None:
        """Replay one batch."""

    def opened(self) -> None:
        """Everything is replayed: requests and timers may begin."""

    def close(self) -> None:
        """Led elsewhere from now on: let go of everybody who waits."""


S = TypeVar("S", bound=Shard)


class Replicas(Protocol):
    def get(self, tp: TopicPartition) -> Partition | None: ...
    def all(self) -> Iterable[Partition]: ...

    @property
    def may_lead(self) -> bool:
        """Whether the cluster still counts on this node."""
        ...


class _Slot(Generic[S]):
    def __init__(self, shard: S, journal: Journal) -> None:
        self.shard = shard
        self.journal = journal
        self.is_open = False
        self.loading: asyncio.Task[None] | None = None


class Shards(Generic[S]):
    """The shards of one internal topic that this node leads."""

    def __init__(
        self,
        topic: str,
        *,
        metadata: MetadataStore,
        replicas: Replicas,
        build: Callable[[Journal], S],
        now_ms: Callable[[], int],
        on_topic_deleted: Callable[[str], None] = lambda topic: None,
    ) -> None:
        self.topic = topic
        self._metadata = metadata
        self._replicas = replicas
        self._build = build
        self._now_ms = now_ms
        self._on_topic_deleted = on_topic_deleted
        self._slots: dict[int, _Slot[S]] = {}
        self._follower: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow the metadata: load what this node leads, drop what it no longer leads."""
        self._follower = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        tasks = [slot.loading for slot in self._slots.values() if slot.loading is not None]
        tasks += [self._follower] if self._follower is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for index in list(self._slots):
            self._drop(index)

    def __iter__(self) -> Iterator[S]:
        """Those that are open."""
        for slot in list(self._slots.values()):
            if slot.is_open and slot.journal.is_current:
                yield slot.shard

    @property
    def are_loading(self) -> bool:
        return any(not slot.is_open for slot in self._slots.values())

    def get_now(self, index: int) -> S | None:
        slot = self._slots.get(index)
        return slot.shard if slot is not None and slot.is_open and slot.journal.is_current else None

    async def get(self, index: int) -> S:
        """The shard of this partition; RequestError if it is led elsewhere or takes long to load.

        Also if it may be led elsewhere by now: a node that is cut off would answer with what used to be.
        """
        if not self._replicas.may_lead:
            raise RequestError(ErrorCode.not_coordinator, "this node is cut off from the others")
        shard = self.get_now(index)
        if shard is not None:
            return shard
        slot = self._refresh(index)
        if slot is None:
            raise RequestError(ErrorCode.not_coordinator)
        if slot.loading is not None:
            await asyncio.wait({slot.loading}, timeout=LOAD_WAIT_S)
        shard = self.get_now(index)
        if shard is None:
            still = self._slots.get(index) is slot
            raise RequestError(ErrorCode.coordinator_load_in_progress if still else ErrorCode.not_coordinator)
        return shard

    # -- following --------------------------------------------------------------------------------

    async def _follow(self) -> None:
        with self._metadata.bus.subscribe(e.LeaderChanged, e.PartitionAssigned, e.TopicDeleted) as events:
            self._refresh_all()
            while True:
                for event in await events.next_batch():
                    self._on_event(event)

    def _on_event(self, event: e.Event) -> None:
        match event:
            case e.LeaderChanged(tp=tp) | e.PartitionAssigned(tp=tp):
                if tp.topic == self.topic:
                    self._refresh(tp.partition)
            case e.TopicDeleted(topic=topic):
                if topic == self.topic:
                    self._refresh_all()
                else:
                    self._on_topic_deleted(topic)
            case _:
                self._refresh_all()

    def _refresh_all(self) -> None:
        led = {
            partition.tp.partition for partition in self._replicas.all() if partition.tp.topic == self.topic
        }
        for index in led | self._slots.keys():
            self._refresh(index)

    def _refresh(self, index: int) -> _Slot[S] | None:
        """Bring one slot in line with who leads the partition now."""
        partition = self._replicas.get(TopicPartition(self.topic, index))
        slot = self._slots.get(index)
        if slot is not None and (partition is not slot.journal.partition or not slot.journal.is_current):
            self._drop(index)
            slot = None
        if partition is None or not partition.is_leader:
            return None
        if slot is None:
            journal = Journal(partition, self._now_ms)
            slot = self._slots[index] = _Slot(self._build(journal), journal)
            slot.loading = asyncio.get_running_loop().create_task(self._load(index, slot))
        return slot

    async def _load(self, index: int, slot: _Slot[S]) -> None:
        try:
            is_loaded = await slot.journal.load(slot.shard.apply)
        except Exception:
            log.exception("%s-%d cannot be loaded", self.topic, index)
            is_loaded = False
        slot.loading = None
        if self._slots.get(index) is not slot:
            return
        if is_loaded:
            slot.is_open = True
            slot.shard.opened()
        else:
            del self._slots[index]  # the next request tries again
            slot.shard.close()

    def _drop(self, index: int) -> None:
        slot = self._slots.pop(index)
        if slot.loading is not None:
            slot.loading.cancel()
        slot.shard.close()


def partition_of(key: str, partition_count: int) -> int:
    """Which partition keeps the state of this group or transactional id: Java's hash, as in Kafka."""
    value = 0
    encoded = key.encode("utf-16-be", "surrogatepass")
    for place in range(0, len(encoded), 2):
        value = (value * 31 + (encoded[place] << 8 | encoded[place + 1])) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % partition_count
