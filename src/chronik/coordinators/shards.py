"""Which partitions of an internal topic this node coordinates: those it leads, each replayed into a shard.

A coordinator's state is a function of the records in the partitions of its topic. The leader of a partition
replays it into a shard and then appends to it. A node that loses the leadership drops the shard. A shard
belongs to one leader epoch, so state of an older epoch is never used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, Protocol, TypeVar

from chronik.coordinators.journal import Journal
from chronik.metadata import events as e
from chronik.metadata.store import MetadataStore
from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.records.batch import BatchHeader, Buffer
from chronik.replication.partition import Partition
from chronik.tasks import Tasks

log = logging.getLogger(__name__)

KEY_CHARS_MAX: Final = 10_000
"""Longest group or transactional id. Records of the internal topics hold 32,767 bytes of it, and a character
has up to three; hashing a longer one would take the loop's time."""

LOAD_WAIT_S: Final = 5.0
"""How long a request waits for a replay before its client is told to retry."""


class Shard(Protocol):
    """What a coordinator keeps of one partition."""

    def apply(self, header: BatchHeader, batch: Buffer) -> None:
        """Replay one batch."""

    def opened(self) -> None:
        """Everything is replayed: requests and timers may begin."""

    def close(self) -> None:
        """This node no longer leads the partition: fail all waiting requests."""


S = TypeVar("S", bound=Shard)


class Replicas(Protocol):
    def get(self, tp: TopicPartition) -> Partition | None: ...
    def all(self) -> Iterable[Partition]: ...

    @property
    def may_lead(self) -> bool:
        """Whether this node is registered, not removed, and its lease has not expired."""
        ...


class _ShardSlot(Generic[S]):
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
        self._slots: dict[int, _ShardSlot[S]] = {}
        self._tasks = Tasks(topic)

    def start(self) -> None:
        """Begin to follow the metadata: load what this node leads, drop what it no longer leads."""
        self._tasks.spawn(self._follow(), "following the metadata")

    async def stop(self) -> None:
        await self._tasks.close()
        for index in list(self._slots):
            self._drop(index)

    def __iter__(self) -> Iterator[S]:
        """The shards that are loaded and led here."""
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

        RequestError also if this node's lease has expired: another node may lead it by now.
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

    def _refresh(self, index: int) -> _ShardSlot[S] | None:
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
            slot = self._slots[index] = _ShardSlot(self._build(journal), journal)
            slot.loading = self._tasks.spawn(self._load(index, slot), f"loading partition {index}")
        return slot

    async def _load(self, index: int, slot: _ShardSlot[S]) -> None:
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
    """The partition that keeps the state of this group or transactional id: Java's hash, as in Kafka."""
    if len(key) > KEY_CHARS_MAX:
        raise RequestError(ErrorCode.invalid_request, f"An id has at most {KEY_CHARS_MAX} characters.")
    value = 0
    encoded = key.encode("utf-16-be", "surrogatepass")
    for place in range(0, len(encoded), 2):
        value = (value * 31 + (encoded[place] << 8 | encoded[place + 1])) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % partition_count
