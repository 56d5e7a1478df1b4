"""What both coordinators share: finding the shard of a key, and removing what has expired."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from chronik.coordinators.journal import Journal
from chronik.coordinators.shards import Replicas, S, Shards, partition_of
from chronik.metadata.store import MetadataStore
from chronik.model import TopicPartition

_TICK_SECONDS_MAX: Final = 5.0
"""How soon a changed interval is noticed."""


class Config(Protocol):
    """The configs that both coordinators have."""

    @property
    def topic_partitions(self) -> int:
        """How many partitions the internal topic gets when it is created."""

    @property
    def expiry_interval_ms(self) -> int: ...


C = TypeVar("C", bound=Config)


class ShardedCoordinator(ABC, Generic[S, C]):
    """Owns the shards and the expiry timer; requests are the subclass's business."""

    def __init__(
        self,
        topic: str,
        *,
        metadata: MetadataStore,
        replicas: Replicas,
        config: Callable[[], C],
        now_ms: Callable[[], int],
    ) -> None:
        self._topic = topic
        self._config = config
        self._metadata = metadata
        self._now_ms = now_ms
        self._expiry: asyncio.TimerHandle | None = None
        self._expired_at = 0.0
        self._shards: Shards[S] = Shards(
            topic,
            metadata=metadata,
            replicas=replicas,
            build=self._build,
            now_ms=now_ms,
            on_topic_deleted=self._on_topic_deleted,
        )

    @property
    def config(self) -> C:
        """The configs in force now."""
        return self._config()

    @abstractmethod
    def _build(self, journal: Journal) -> S:
        """A shard for a partition that this node has begun to lead."""

    @abstractmethod
    def _expire(self, shard: S) -> None:
        """Remove what has expired."""

    def _on_topic_deleted(self, topic: str) -> None:
        """A topic other than the coordinator's own was deleted."""

    def start(self) -> None:
        self._expired_at = asyncio.get_running_loop().time()
        self._shards.start()
        self._schedule_expiry()

    async def stop(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        await self._shards.stop()

    def partition_for(self, key: str) -> TopicPartition:
        """The partition whose leader coordinates this key."""
        topic = self._metadata.state.topics.get(self._topic)
        count = self.config.topic_partitions if topic is None else len(topic.partitions)
        return TopicPartition(self._topic, partition_of(key, count))

    async def _shard_of(self, key: str) -> S:
        """RequestError if it is led elsewhere or takes long to load."""
        return await self._shards.get(self.partition_for(key).partition)

    def _schedule_expiry(self) -> None:
        loop = asyncio.get_running_loop()
        left = self._expired_at + self.config.expiry_interval_ms / 1000 - loop.time()
        self._expiry = loop.call_later(min(max(left, 0.0), _TICK_SECONDS_MAX), self._expire_all)

    def _expire_all(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._expired_at >= self.config.expiry_interval_ms / 1000:
            self._expired_at = now
            for shard in self._shards:
                self._expire(shard)
        self._schedule_expiry()
