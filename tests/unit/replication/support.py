"""Partitions on a real store, led by this node, without a cluster around them."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from chronik.metadata.topic_config import TopicConfig
from chronik.metadata.values import Partition as Assignment
from chronik.model import NodeId, TopicPartition
from chronik.records.batch import check_batch
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.replication.cleaning import Cleaner, CleaningConfig
from chronik.replication.partition import Partition, PartitionHooks, log_config
from chronik.storage.store import LogStore


class NoHooks:
    """No replication around the partition."""

    def changed(self, partition: Partition) -> None: ...
    def appended(self, partition: Partition) -> None: ...
    def watermark_moved(self, partition: Partition) -> None: ...
    def durable(self, partition: Partition) -> None: ...
    def start_moved(self, partition: Partition, log_start_offset: int) -> None: ...
    def is_alive(self, node_id: NodeId) -> bool:
        return True

    def halted(self, partition: Partition) -> None: ...
    def refused(self, partition: Partition) -> None: ...


class Replicas:
    def __init__(self, store: LogStore, hooks: PartitionHooks | None = None) -> None:
        self.store = store
        self.hooks = hooks or NoHooks()
        self.partitions: list[Partition] = []

    def add(self, topic: str, partition: int = 0, **configs: object) -> Partition:
        """A partition whose topic has these configs, with underscores for dots."""
        config = TopicConfig.resolve({name.replace("_", "."): str(value) for name, value in configs.items()})
        tp = TopicPartition(topic, partition)
        topic_id = UUID(bytes=topic.encode()[:16].ljust(16, b"\0"))
        made = Partition(
            tp=tp,
            topic_id=topic_id,
            node_id=1,
            log=self.store.open_log(tp, topic_id, log_config(config)),
            config=config,
            hooks=self.hooks,
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
