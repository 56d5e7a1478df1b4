"""Partitions on a real store, led by this node, without a cluster around them."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from chronik.cleaning.cleaner import Cleaner, CleaningConfig
from chronik.links.link import Link
from chronik.metadata.bus import EventBus
from chronik.metadata.topic_config import TopicConfig
from chronik.metadata.values import PartitionRegistration as Assignment
from chronik.model import NodeId, TopicPartition
from chronik.records.batch import check_batch
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.replication.context import Acks, Feed, ReplicaContext
from chronik.replication.manager import log_config
from chronik.replication.partition import Partition
from chronik.replication.watermark_events import WatermarkEvents
from chronik.storage.log_parts import SegmentDamage
from chronik.storage.store import LogStore
from chronik.tasks import Tasks


class Alone:
    """No followers, no leader, no cluster around the partition."""

    def followers_changed(self, partition: Partition) -> None: ...
    def appended(self, partition: Partition) -> None: ...
    def watermark_moved(self, partition: Partition) -> None: ...
    def check_watermark(self, partition: Partition) -> None: ...

    def is_feeding(self, partition: Partition, peer: NodeId) -> bool:
        return True

    def send_soon(self, partition: Partition) -> None: ...
    def reset(self, partition: Partition, feeder: Link) -> None: ...
    def propose(self, partition: Partition, isr: tuple[NodeId, ...]) -> None: ...
    def propose_new_epoch(self, partition: Partition) -> None: ...
    def begin(self, partition: Partition, damage: SegmentDamage) -> None: ...
    def is_alive(self, node_id: NodeId) -> bool:
        return True


def context(
    around: Alone | None = None,
    *,
    feed: Feed | None = None,
    acks: Acks | None = None,
    bus: EventBus | None = None,
) -> ReplicaContext:
    """Of node 1."""
    around = around or Alone()
    return ReplicaContext(
        node_id=1,
        feed=feed or around,
        acks=acks or around,
        isr_proposals=around,
        repairs=around,
        is_alive=around.is_alive,
        tasks=Tasks("replicas"),
        watermark_events=WatermarkEvents(bus or EventBus()),
    )


class Replicas:
    def __init__(self, store: LogStore, around: ReplicaContext | None = None) -> None:
        self.store = store
        self.context = around or context()
        self.partitions: list[Partition] = []

    def add(self, topic: str, partition: int = 0, **configs: object) -> Partition:
        """A partition whose topic has these configs, with underscores for dots."""
        config = TopicConfig.resolve({name.replace("_", "."): str(value) for name, value in configs.items()})
        tp = TopicPartition(topic, partition)
        topic_id = UUID(bytes=topic.encode()[:16].ljust(16, b"\0"))
        made = Partition(
            tp=tp,
            topic_id=topic_id,
            log=self.store.open_log(tp, topic_id, log_config(tp.topic, config)),
            config=config,
            context=self.context,
        )
        made.assign(Assignment(partition=partition, replicas=(1,), isr=(1,), leader=1))
        self.partitions.append(made)
        return made

    def all(self) -> Iterable[Partition]:
        return list(self.partitions)


class Clock:
    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def cleaner(replicas: Replicas, clock: Clock, **config: object) -> Cleaner:
    settings = CleaningConfig(**config)  # type: ignore[arg-type]
    return Cleaner(store=replicas.store, replicas=replicas, config=lambda: settings, now_ms=clock)


def put(partition: Partition, *records: tuple[bytes, bytes | None], now_ms: int, **how: object) -> int:
    batch = build_batch(
        [Record(key=key, value=value, timestamp_ms=now_ms) for key, value in records],
        **how,  # type: ignore[arg-type]
    )
    return partition.log.append(memoryview(batch), check_batch(batch), partition.leader_epoch, now_ms)
