"""Whether the topic `_schemas` is the registry's. A client may have made one before the name was taken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chronik.coordinators.shards import Replicas
from chronik.metadata.store import MetadataStore
from chronik.metadata.topic_config import TOPIC_CONFIGS
from chronik.metadata.values import Topic
from chronik.model import SCHEMAS_TOPIC, TopicPartition
from chronik.replication.partition import Partition

__all__ = ["CLEANUP_POLICY", "OwnReplicas", "is_foreign"]

CLEANUP_POLICY: Final = "cleanup.policy"


def is_foreign(topic: Topic) -> bool:
    """Whether it is called `_schemas` but no registry can have made it, this one or Confluent's: theirs have
    one partition, which is compacted. It is left as it is: compaction would lose its records."""
    if topic.name != SCHEMAS_TOPIC:
        return False
    try:
        policy = TOPIC_CONFIGS[CLEANUP_POLICY].parse(topic.configs.get(CLEANUP_POLICY, ""))
    except ValueError:
        return True
    return len(topic.partitions) != 1 or policy != ("compact",)


class OwnReplicas:
    """The replicas as a coordinator sees them. A `_schemas` that is not a registry's is left out: nobody
    replays it."""

    def __init__(self, replicas: Replicas, metadata: MetadataStore) -> None:
        self._replicas = replicas
        self._metadata = metadata

    @property
    def may_lead(self) -> bool:
        return self._replicas.may_lead

    def get(self, tp: TopicPartition) -> Partition | None:
        return self._replicas.get(tp) if self._is_own(tp.topic) else None

    def all(self) -> Iterable[Partition]:
        return (one for one in self._replicas.all() if self._is_own(one.tp.topic))

    def _is_own(self, name: str) -> bool:
        topic = self._metadata.state.topics.get(name)
        return topic is None or not is_foreign(topic)
