"""All partitions that have a replica on this node, kept in step with the cluster's metadata."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from uuid import UUID

from chronik.metadata import events as e
from chronik.metadata.state import ClusterState
from chronik.metadata.topic_config import TopicConfig
from chronik.metadata.values import Topic
from chronik.model import ErrorCode, NodeId, RequestError, TopicPartition
from chronik.replication.partition import Partition, PartitionHooks, log_config
from chronik.storage.store import LogStore

log = logging.getLogger(__name__)


class ReplicaManager:
    def __init__(
        self,
        *,
        node_id: NodeId,
        store: LogStore,
        state: Callable[[], ClusterState],
        topic_config: Callable[[str], TopicConfig],
        hooks: PartitionHooks,
        may_lead: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_lead` tells whether the cluster still counts on this node; without it nothing is led."""
        self._node_id = node_id
        self._store = store
        self._state = state
        self._topic_config = topic_config
        self._hooks = hooks
        self._may_lead = may_lead
        self._by_id: dict[tuple[bytes, int], Partition] = {}
        self._partitions: dict[TopicPartition, Partition] = {}
        self._deletions: set[asyncio.Future[None]] = set()
        self._is_active = False

    # --- finding -----------------------------------------------------------------------------------

    def get(self, tp: TopicPartition) -> Partition | None:
        return self._partitions.get(tp)

    def leader(self, tp: TopicPartition) -> Partition:
        """The partition, if this node leads it; the error a client needs, if not."""
        partition = self.replica(tp)
        if partition.leader_id != self._node_id or not self._may_lead():
            raise RequestError(ErrorCode.not_leader_or_follower, f"node {self._node_id} does not lead {tp}")
        return partition

    def replica(self, tp: TopicPartition) -> Partition:
        partition = self._partitions.get(tp)
        if partition is not None:
            return partition
        if self._state().partition(tp) is None:
            raise RequestError(ErrorCode.unknown_topic_or_partition, f"there is no {tp}")
        raise RequestError(ErrorCode.not_leader_or_follower, f"node {self._node_id} has no replica of {tp}")

    def find(self, topic_id: bytes, partition: int) -> Partition | None:
        return self._by_id.get((topic_id, partition))

    @property
    def may_lead(self) -> bool:
        return self._may_lead()

    def all(self) -> list[Partition]:
        return list(self._partitions.values())

    # --- following the metadata ----------------------------------------------------------------------

    def on_event(self, event: e.Event) -> None:
        """Called in the turn in which the metadata changed, so that a client's next request sees it."""
        if not self._is_active:
            return
        match event:
            case e.PartitionAssigned() | e.LeaderChanged() | e.IsrChanged():
                self._update(event.tp)
            case e.TopicDeleted():
                self._delete(event.topic, event.topic_id)
            case e.ConfigChanged():
                self._reconfigure()
            case e.Resync():
                self.synchronize()
            case _:
                pass

    def activate(self) -> None:
        """This node is registered in its present life, so its metadata is complete up to there.

        Before that it has no replicas at all: what its log says of leadership may be long over.
        """
        self._is_active = True
        self.synchronize()

    def synchronize(self) -> None:
        """Bring every partition in line with the state, whatever was missed."""
        state = self._state()
        for tp, partition in list(self._partitions.items()):
            topic = state.topics.get(tp.topic)
            if topic is None or topic.topic_id != partition.topic_id:
                self._delete(tp.topic, partition.topic_id)
        for topic in state.topics.values():
            for assignment in topic.partitions:
                self._update(TopicPartition(topic.name, assignment.partition), topic)
        self._reconfigure()

    def _update(self, tp: TopicPartition, topic: Topic | None = None) -> None:
        topic = topic or self._state().topics.get(tp.topic)
        if topic is None:
            return
        assignment = topic.partitions[tp.partition]
        partition = self._partitions.get(tp)
        if self._node_id not in assignment.replicas:
            if partition is not None:
                self._drop(tp, partition, ErrorCode.not_leader_or_follower)
            return
        if partition is not None:
            partition.assign(assignment)
            return
        config = self._topic_config(tp.topic)
        opened = self._store.open_log(tp, topic.topic_id, log_config(config))
        created = Partition(
            tp=tp,
            topic_id=topic.topic_id,
            node_id=self._node_id,
            log=opened,
            config=config,
            hooks=self._hooks,
        )
        self._partitions[tp] = self._by_id[topic.topic_id.bytes, tp.partition] = created
        created.assign(assignment)

    def _reconfigure(self) -> None:
        configs: dict[str, TopicConfig] = {}
        for tp, partition in self._partitions.items():
            config = configs.get(tp.topic)
            if config is None:
                config = configs[tp.topic] = self._topic_config(tp.topic)
            if partition.config != config:
                partition.config = config
                partition.log.config = log_config(config)

    def _delete(self, topic: str, topic_id: UUID) -> None:
        for tp, partition in list(self._partitions.items()):
            if tp.topic == topic and partition.topic_id == topic_id:
                self._drop(tp, partition, ErrorCode.unknown_topic_or_partition)

    def _drop(self, tp: TopicPartition, partition: Partition, code: ErrorCode) -> None:
        del self._partitions[tp]
        self._by_id.pop((partition.topic_id.bytes, tp.partition), None)
        self._hooks.refused(partition)
        partition.close(RequestError(code, f"{tp} is gone from node {self._node_id}"))
        deletion = self._store.delete_log(tp, partition.topic_id)
        self._deletions.add(deletion)
        deletion.add_done_callback(self._deletion_done)

    def _deletion_done(self, deletion: asyncio.Future[None]) -> None:
        self._deletions.discard(deletion)
        if not deletion.cancelled() and (error := deletion.exception()) is not None:
            log.error("a deleted partition's files could not be removed: %s", error)

    async def close(self) -> None:
        for partition in self._partitions.values():
            partition.close(RequestError(ErrorCode.not_leader_or_follower, "the node is stopping"))
        if self._deletions:
            await asyncio.gather(*self._deletions, return_exceptions=True)
