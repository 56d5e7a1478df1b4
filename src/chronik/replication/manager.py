"""All partitions that have a replica on this node, kept in step with the cluster's metadata."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final
from uuid import UUID

from chronik.metadata import events as e
from chronik.metadata.commands import BROKER_RESOURCE, TOPIC_RESOURCE
from chronik.metadata.durability import DurabilityPromise
from chronik.metadata.store import MetadataStore
from chronik.metadata.topic_config import TopicConfig
from chronik.metadata.values import PartitionRegistration as Assignment
from chronik.metadata.values import Topic
from chronik.model import ErrorCode, NodeId, RequestError, TopicPartition
from chronik.replication.context import ReplicaContext
from chronik.replication.follower import FollowerLinks
from chronik.replication.partition import Partition
from chronik.replication.partitions import Partitions
from chronik.storage.log import LogConfig
from chronik.storage.store import LogStore

log = logging.getLogger(__name__)


CHECK_SECONDS: Final = 0.25
"""Interval of `Replica.check_followers`."""
METADATA_CHECK_SECONDS: Final = 1.0
"""How often replicas are compared with the metadata, while that moves (S10)."""
_NOTHING: Final[Mapping[int, Partition]] = MappingProxyType({})


def log_config(topic: str, config: TopicConfig) -> LogConfig:
    durability = DurabilityPromise.of_topic(topic, config.durability)
    segment_ms = config.segment_ms
    if config.is_compacted:
        # Only closed segments are compacted, so roll a segment before max.compaction.lag.ms is over.
        segment_ms = min(segment_ms, config.max_compaction_lag_ms)
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_ms=segment_ms,
        segment_jitter_ms=config.segment_jitter_ms,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        file_delete_delay_ms=config.file_delete_delay_ms,
        sync_within_seconds=durability.sync_within_ms / 1000,
        sync_records=durability.sync_records,
    )


class ReplicaManager:
    def __init__(
        self,
        *,
        partitions: Partitions,
        context: ReplicaContext,
        store: LogStore,
        metadata: MetadataStore,
        topic_config: Callable[[str], TopicConfig],
        follower_links: FollowerLinks,
        may_lead: Callable[[], bool],
        lag_seconds_max: float,
    ) -> None:
        """`may_lead` tells whether this node may lead now (`cluster.lead_permission`); while it is False no
        partition is led."""
        self._context = context
        self.repaired = 0
        """Damaged replicas that were cut, to be copied again."""
        self._node_id = context.node_id
        self._tasks = context.tasks
        self._store = store
        self._metadata = metadata
        self._topic_config = topic_config
        self._follower_links = follower_links
        self._may_lead = may_lead
        self._lag_seconds_max = lag_seconds_max
        self._loop = asyncio.get_running_loop()
        self._all = partitions
        self._partitions = partitions.by_tp
        self._checker: asyncio.TimerHandle | None = None
        self._metadata_check_due = 0.0
        self._checked_index = -1
        """The entry of the metadata log up to which every replica is known to be in line."""
        self._is_active = False

    # --- finding -----------------------------------------------------------------------------------

    def get(self, tp: TopicPartition) -> Partition | None:
        return self._partitions.get(tp)

    def leader(self, tp: TopicPartition) -> Partition:
        """The partition, if this node leads it; the error a client needs, if not."""
        partition = self._partitions.get(tp) or self.replica(tp)
        if partition.leader_id != self._node_id or not self._may_lead():
            raise RequestError(ErrorCode.not_leader_or_follower, f"node {self._node_id} does not lead {tp}")
        return partition

    def replica(self, tp: TopicPartition) -> Partition:
        partition = self._partitions.get(tp)
        if partition is not None:
            return partition
        if self._metadata.state.partition(tp) is None:
            raise RequestError(ErrorCode.unknown_topic_or_partition, f"there is no {tp}")
        raise RequestError(ErrorCode.not_leader_or_follower, f"node {self._node_id} has no replica of {tp}")

    def find(self, topic_id: bytes, partition: int) -> Partition | None:
        return self._all.by_id.get((topic_id, partition))

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
            case e.PartitionAssigned() | e.LeaderChanged() | e.IsrChanged() | e.RemoteLogChanged():
                self._update(event.tp)
            case e.TopicDeleted():
                self._delete(event.topic, event.topic_id)
            case e.ConfigChanged():
                self._on_config_changed(event)
            case e.Resync():
                self.synchronize()
            case _:
                pass

    def activate(self) -> None:
        """Called once the broker has registered after a start: its metadata is complete up to there.

        Before that the node has no replicas, since leaders in older metadata may be long deposed.
        """
        self._is_active = True
        self.synchronize()
        self._checker = self._loop.call_later(CHECK_SECONDS, self._check_followers)

    def synchronize(self) -> None:
        """Bring every partition in line with the metadata, whichever events were missed."""
        state = self._metadata.state
        for tp, partition in list(self._partitions.items()):
            topic = state.topics.get(tp.topic)
            if topic is None or topic.topic_id != partition.topic_id:
                self._delete(tp.topic, partition.topic_id)
        for topic in state.topics.values():
            for assignment in topic.partitions:
                self._update(TopicPartition(topic.name, assignment.partition), topic)
        self._reconfigure(self._all.by_topic)

    def _check_metadata(self) -> None:
        """Bring in line the replicas that no event told of. Events come in the turn of the change, so usually
        there are none. Only what differs is touched, since a node may have 10,000 replicas."""
        state = self._metadata.state
        if state.applied_index == self._checked_index:
            return
        for topic_id, topic_name in [
            (partition.topic_id, name)
            for name, of_topic in self._all.by_topic.items()
            for partition in of_topic.values()
            if (topic := state.topics.get(name)) is None or topic.topic_id != partition.topic_id
        ]:
            self._tell_missed(topic_name)
            self._delete(topic_name, topic_id)
        for tp, topic in list(self._out_of_line()):
            self._tell_missed(tp)
            self._update(tp, topic)
        self._checked_index = state.applied_index

    def _out_of_line(self) -> Iterator[tuple[TopicPartition, Topic]]:
        """Replicas that are missing here, and those that changed since they were assigned."""
        node_id, by_topic = self._node_id, self._all.by_topic
        for topic in self._metadata.state.topics.values():
            here = by_topic.get(topic.name, _NOTHING)
            for assignment in topic.partitions:
                partition = here.get(assignment.partition)
                if (
                    node_id in assignment.replicas
                    if partition is None
                    else partition.partition_epoch < assignment.partition_epoch
                    or (assignment.remote is not None and assignment.remote != partition.remote)
                ):
                    yield TopicPartition(topic.name, assignment.partition), topic

    @staticmethod
    def _tell_missed(what: object) -> None:
        log.info("%s: no event told of a change of its metadata, the check has found it", what)

    def _update(self, tp: TopicPartition, topic: Topic | None = None) -> None:
        topic = topic or self._metadata.state.topics.get(tp.topic)
        if topic is None:
            return
        assignment = topic.partitions[tp.partition]
        partition = self._partitions.get(tp)
        if self._node_id not in assignment.replicas:
            if partition is not None:
                self._drop(tp, partition, ErrorCode.not_leader_or_follower)
            return
        if partition is not None:
            cut_at = partition.reset_at(assignment)
            if cut_at is None:
                self._assign(partition, assignment)
                return
            self._cut_damaged(partition, cut_at)
        config = self._topic_config(tp.topic)
        opened = self._store.open_log(tp, topic.topic_id, log_config(tp.topic, config))
        created = Partition(
            tp=tp,
            topic_id=topic.topic_id,
            log=opened,
            config=config,
            context=self._context,
        )
        self._all.add(created)
        self._assign(created, assignment)

    def _cut_damaged(self, partition: Partition, offset: int) -> None:
        """Remove the replica and cut the damaged part off its log. The caller creates a new replica, which
        gets its high watermark and the dropped records from the leader."""
        log_ = partition.log
        self._all.remove(partition)
        partition.remove(RequestError(ErrorCode.not_leader_or_follower, f"{partition.tp} is being repaired"))
        log_.unsubscribe(partition)
        line = "%s: dropping offsets %d to %d from %s: damaged, the leader sends them again"
        first = max(offset, log_.log_start_offset)
        log.warning(line, partition.tp, first, log_.log_end_offset - 1, log_.directory)
        if offset > log_.log_start_offset:
            log_.truncate(offset)
        else:
            # A log may start inside a batch, and only whole ones are sent: the leader finds the place.
            log_.restart_at(0)
        self.repaired += 1

    def _assign(self, partition: Partition, assignment: Assignment) -> None:
        partition.assign(assignment)
        self._follower_links.partition_assigned(partition)

    def _on_config_changed(self, event: e.ConfigChanged) -> None:
        if event.resource_type == TOPIC_RESOURCE:
            self._reconfigure([event.name])
        elif event.resource_type == BROKER_RESOURCE:
            self._reconfigure(self._all.by_topic)

    def _reconfigure(self, topics: Iterable[str]) -> None:
        for topic in topics:
            of_topic = self._all.by_topic.get(topic)
            if of_topic is None:
                continue
            config = self._topic_config(topic)
            for partition in of_topic.values():
                if partition.config != config:
                    partition.reconfigure(config, log_config(topic, config))

    def _delete(self, topic: str, topic_id: UUID) -> None:
        for partition in list(self._all.by_topic.get(topic, {}).values()):
            if partition.topic_id == topic_id:
                self._drop(partition.tp, partition, ErrorCode.unknown_topic_or_partition)

    def _drop(self, tp: TopicPartition, partition: Partition, code: ErrorCode) -> None:
        self._all.remove(partition)
        partition.remove(RequestError(code, f"{tp} is gone from node {self._node_id}"))
        self._tasks.keep(self._store.delete_log(tp, partition.topic_id), f"removing the files of {tp}")

    # --- followers ---------------------------------------------------------------------------------

    def _check_followers(self) -> None:
        self._checker = self._loop.call_later(CHECK_SECONDS, self._check_followers)
        now = self._loop.time()
        for partition in list(self._partitions.values()):
            partition.check_followers(now, self._lag_seconds_max)
        if now >= self._metadata_check_due:
            self._metadata_check_due = now + METADATA_CHECK_SECONDS
            self._check_metadata()

    def lag_seconds(self) -> dict[NodeId, float]:
        """For how long each follower has not had everything of the partitions led here."""
        now = self._loop.time()
        lag: dict[NodeId, float] = {}
        for partition in self._partitions.values():
            for peer, progress in partition.followers.items():
                behind = progress.lag_seconds(partition.log_end_offset, now)
                lag[peer] = max(lag.get(peer, 0.0), behind)
        return lag

    async def close(self) -> None:
        if self._checker is not None:
            self._checker.cancel()
        for partition in self._partitions.values():
            partition.close(RequestError(ErrorCode.not_leader_or_follower, "the node is stopping"))
        await self._tasks.finished()
