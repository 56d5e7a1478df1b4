"""What every coordinator does alike: leads shards of an internal topic, finds them by key, forgets."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from chronik.metadata.store import MetadataStore
from chronik.model import TopicPartition
from chronik.replication.journal import Journal, Replicas, S, Shards, partition_of

_TICK_SECONDS_MAX: Final = 5.0
"""How soon a changed interval is noticed."""


class Config(Protocol):
    """What is set about any coordinator."""

    @property
    def topic_partitions(self) -> int:
        """Of the internal topic, when it is created."""

    @property
    def expiry_interval_ms(self) -> int: ...


C = TypeVar("C", bound=Config)


class Coordinator(ABC, Generic[S, C]):
    """Requests in, results out is the subclass's; this starts, stops, and looks for what has expired."""

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
        """As of now."""
        return self._config()

    @abstractmethod
    def _build(self, journal: Journal) -> S:
        """A shard for a partition that this node has begun to lead."""

    @abstractmethod
    def _expire(self, shard: S) -> None:
        """Forget what nobody used for long."""

    def _on_topic_deleted(self, topic: str) -> None:
        """A user's topic is gone."""

    def start(self) -> None:
        self._expired_at = asyncio.get_running_loop().time()
        self._shards.start()
        self._schedule_expiry()

    async def stop(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        await self._shards.stop()

    def partition_for(self, key: str) -> TopicPartition:
        """Whose leader coordinates this key."""
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
