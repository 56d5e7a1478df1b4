"""The cluster's state and the one function that changes it.

`apply` is a function of the state and the command alone. It checks first and changes afterwards, so a refused
command leaves no trace. Topics, partitions and brokers are replaced, never altered: a reader may keep what
it got.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias
from uuid import UUID

import msgspec

from chronik.metadata import commands as c
from chronik.metadata import elections, reassignment
from chronik.metadata import events as e
from chronik.metadata.levels import LEVEL_FIRST, refuse_level
from chronik.metadata.partitions import (
    assignments,
    changed_partition,
    changes,
    check_replicas,
    is_alive,
    new_partitions,
)
from chronik.metadata.security import SECURITY_COMMANDS, SecurityState
from chronik.metadata.sizes import (
    configs_bytes,
    partition_bytes,
    partitions_bytes,
    resource_bytes,
    topic_bytes,
)
from chronik.metadata.values import Broker, Outcome, PartitionRegistration, Refusal, Topic
from chronik.model import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    ErrorCode,
    NodeId,
    TopicPartition,
    invariant,
)

__all__ = ["ClusterState"]

_RESERVED_IDS: Final = frozenset({UUID(int=0), METADATA_TOPIC_ID})
"""No topic's: the first means "none" on the wire, the second is the key of the metadata log in the WAL."""
_CONFIGURED: Final = (c.BROKER_RESOURCE, c.GROUP_RESOURCE, c.CLIENT_METRICS_RESOURCE)
_PartitionChange: TypeAlias = Callable[
    [Topic, PartitionRegistration, NodeId, elections.IsAlive], PartitionRegistration | None
]


class ClusterState:
    """Read it freely; change it through `apply` only."""

    def __init__(self) -> None:
        self.applied_index = 0
        self.cluster_id: str | None = None
        self.level = LEVEL_FIRST
        """What every node of the cluster can read and may therefore write (`levels`)."""
        self.topics: dict[str, Topic] = {}
        self.topic_names: dict[UUID, str] = {}
        self.brokers: dict[NodeId, Broker] = {}
        self.broker_configs: dict[str, dict[str, str]] = {}
        self.group_configs: dict[str, dict[str, str]] = {}
        self.client_metrics: dict[str, dict[str, str]] = {}
        """Client metrics subscriptions (KIP-714) by name."""
        self.next_producer_id = 0
        self.removed: set[NodeId] = set()
        """Nodes that were taken out of the cluster and may not register."""
        self.node_keys: dict[NodeId, bytes] = {}
        """Public keys by which nodes prove to each other who they are, since they first registered."""
        self.security = SecurityState()
        self.config_bytes = 0
        """Size of topics, partitions and configs, as `sizes` reckons it; adjusted with every change of them.
        """
        self._changing: dict[UUID, list[PartitionRegistration]] = {}
        """Partitions, by topic id, of the topics that the batch being applied has changed. So a topic is
        copied once for a batch, not once for each of its partitions."""

    # --- reading ---

    @property
    def size_bytes(self) -> int:
        """What clients made the state grow to, about: what it takes in a snapshot."""
        return self.config_bytes + self.security.size_bytes

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        name = self.topic_names.get(topic_id)
        return self.topics[name] if name is not None else None

    def partition(self, tp: TopicPartition) -> PartitionRegistration | None:
        topic = self.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return None
        return topic.partitions[tp.partition]

    def is_alive(self, broker_id: NodeId) -> bool:
        return is_alive(self.brokers, broker_id)

    def live_brokers(self) -> list[Broker]:
        return [broker for _, broker in sorted(self.brokers.items()) if not broker.fenced]

    def configs(self, resource_type: int, name: str) -> Mapping[str, str]:
        if resource_type == c.TOPIC_RESOURCE:
            topic = self.topics.get(name)
            return topic.configs if topic is not None else {}
        return self.config_table(resource_type).get(name, {})

    def config_table(self, resource_type: int) -> dict[str, dict[str, str]]:
        """Configs by the name of the resource. The configs of topics are kept with the topics."""
        if resource_type == c.GROUP_RESOURCE:
            return self.group_configs
        if resource_type == c.CLIENT_METRICS_RESOURCE:
            return self.client_metrics
        return self.broker_configs

    # --- changing ---

    def apply(self, command: c.Command, index: int) -> Outcome:
        """Apply the command that stands at `index` in the log; indexes must come in order."""
        invariant(index > self.applied_index, f"metadata entry {index} applied after {self.applied_index}")
        outcome = (
            self._apply_batch(command, index) if isinstance(command, c.Batch) else self._apply(command, index)
        )
        self.applied_index = index
        return outcome

    def _apply_batch(self, batch: c.Batch, index: int) -> Outcome:
        parts = []
        for command in batch.commands:
            if not isinstance(command, c.ChangePartition | c.Reassign):
                self._settle()  # others look at whole topics
            parts.append(self._apply(command, index, in_batch=True))
        self._settle()
        events = tuple(event for part in parts for event in part.events)
        return Outcome(index=index, events=events, parts=tuple(parts))

    def _settle(self) -> None:
        """Put the partitions that a batch changed into their topics."""
        for topic_id, partitions in self._changing.items():
            self._replace(self._known_topic(topic_id), partitions=tuple(partitions))
        self._changing.clear()

    def _apply(self, command: Any, index: int, *, in_batch: bool = False) -> Outcome:
        try:
            events = _APPLY[type(command)](self, command, index)
        except Refusal as refusal:
            return Outcome(index=index, refused=refusal.refused)
        if self._changing and not in_batch:
            self._settle()
        if isinstance(command, c.AllocateProducerIds):
            return Outcome(index=index, value=self.next_producer_id - command.count)
        return Outcome(index=index, events=tuple(events))

    def _noop(self, command: c.Noop, index: int) -> Iterable[e.Event]:
        return ()

    def _init_cluster(self, command: c.InitCluster, index: int) -> Iterable[e.Event]:
        if self.cluster_id is None:
            self.cluster_id = command.cluster_id
        return ()

    def _set_level(self, command: c.SetLevel, index: int) -> Iterable[e.Event]:
        """Whether all nodes know the level was checked by who submitted it: the state does not have that."""
        refuse_level(command.level)
        if command.level < self.level:
            raise Refusal(
                ErrorCode.invalid_update_version,
                f"The cluster is at level {self.level}, which was finalized: it does not go back.",
            )
        self.level = command.level
        return (e.LevelRaised(level=command.level),)

    def _create_topic(self, command: c.CreateTopic, index: int) -> Iterable[e.Event]:
        if command.name in self.topics:
            raise Refusal(ErrorCode.topic_already_exists, f"Topic '{command.name}' already exists.")
        if command.name == METADATA_TOPIC or command.topic_id in _RESERVED_IDS:
            raise Refusal(ErrorCode.invalid_request, "This name or id belongs to the metadata log.")
        if command.topic_id in self.topic_names:
            raise Refusal(ErrorCode.invalid_request, f"Topic id {command.topic_id} is taken.")
        if not command.assignments:
            raise Refusal(ErrorCode.invalid_partitions, "A topic needs at least one partition.")
        partitions = new_partitions(0, command.assignments, self.brokers)
        topic = Topic(
            name=command.name, topic_id=command.topic_id, partitions=partitions, configs=dict(command.configs)
        )
        self.topics[topic.name] = topic
        self.topic_names[topic.topic_id] = topic.name
        self.config_bytes += topic_bytes(topic.name, topic.configs) + partitions_bytes(partitions)
        return [e.TopicCreated(topic=topic.name, topic_id=topic.topic_id), *assignments(topic, partitions)]

    def _add_partitions(self, command: c.AddPartitions, index: int) -> Iterable[e.Event]:
        topic = self._known_topic(command.topic_id)
        if command.first_partition != len(topic.partitions):
            raise Refusal(
                ErrorCode.invalid_partitions,
                f"Topic '{topic.name}' has {len(topic.partitions)} partitions by now.",
            )
        partitions = new_partitions(command.first_partition, command.assignments, self.brokers)
        self._replace(topic, partitions=topic.partitions + partitions)
        self.config_bytes += partitions_bytes(partitions)
        return assignments(topic, partitions)

    def _delete_topic(self, command: c.DeleteTopic, index: int) -> Iterable[e.Event]:
        topic = self._known_topic(command.topic_id)
        del self.topics[topic.name]
        del self.topic_names[topic.topic_id]
        self.config_bytes -= topic_bytes(topic.name, topic.configs) + partitions_bytes(topic.partitions)
        count = len(topic.partitions)
        return [e.TopicDeleted(topic=topic.name, topic_id=topic.topic_id, partition_count=count)]

    def _change_partition(self, command: c.ChangePartition, index: int) -> Iterable[e.Event]:
        topic, old = self._known_partition(command)
        _check_epoch(old, command.partition_epoch)
        return self._put(topic, old, changed_partition(old, command, self.brokers))

    def _set_remote_log(self, command: c.SetRemoteLog, index: int) -> Iterable[e.Event]:
        topic, old = self._known_partition(command)
        if command.leader_epoch != old.leader_epoch:
            raise Refusal(
                ErrorCode.fenced_leader_epoch,
                f"Leader epoch is {old.leader_epoch}, not {command.leader_epoch}.",
            )
        before, after = old.remote or c.RemoteLog(start_offset=0, end_offset=0), command.remote
        if command.previous != before.manifest:
            raise Refusal(ErrorCode.invalid_update_version, "Another manifest counts by now.")
        if after.start_offset < before.start_offset or after.end_offset < before.end_offset:
            raise Refusal(ErrorCode.invalid_update_version, "A remote log does not go back.")
        if after.start_offset > after.end_offset or bool(after.manifest) != (
            after.start_offset < after.end_offset
        ):
            raise Refusal(ErrorCode.invalid_request, "A remote log has a manifest unless it is empty.")
        new = msgspec.structs.replace(old, remote=after)
        self.config_bytes += partition_bytes(new) - partition_bytes(old)
        self._replace(topic, partitions=tuple(new if one is old else one for one in topic.partitions))
        return [e.RemoteLogChanged(tp=TopicPartition(topic.name, new.partition), topic_id=topic.topic_id)]

    def _reassign(self, command: c.Reassign, index: int) -> Iterable[e.Event]:
        topic, old = self._known_partition(command)
        if command.partition_epoch is not None:
            _check_epoch(old, command.partition_epoch)
        if command.target is None and not reassignment.is_moving(old):
            raise Refusal(ErrorCode.no_reassignment_in_progress, "No reassignment is in progress.")
        target = reassignment.original_of(old) if command.target is None else command.target
        if command.target is not None:
            check_replicas(target, self.brokers)
        new = reassignment.begin(old, target, self.is_alive)
        if new is None:
            raise Refusal(
                ErrorCode.invalid_replica_assignment, "Only replicas that would be dropped are in sync."
            )
        return self._put(topic, old, new)

    def _put(self, topic: Topic, old: PartitionRegistration, new: PartitionRegistration) -> list[e.Event]:
        """Replace one partition, and end its move if it can end now."""
        new = reassignment.complete(new, self.is_alive)
        changing = self._changing.get(topic.topic_id)
        if changing is None:
            changing = self._changing[topic.topic_id] = list(topic.partitions)
        changing[old.partition] = new
        self.config_bytes += partition_bytes(new) - partition_bytes(old)
        return changes(topic, old, new)

    def _set_configs(self, command: c.SetConfigs, index: int) -> Iterable[e.Event]:
        if command.resource_type == c.TOPIC_RESOURCE:
            topic = self.topics.get(command.name)
            if topic is None:
                raise Refusal(ErrorCode.unknown_topic_or_partition, f"There is no topic '{command.name}'.")
            merged = _merged(topic.configs, command)
            self._replace(topic, configs=merged)
            self.config_bytes += configs_bytes(merged) - configs_bytes(topic.configs)
        elif command.resource_type in _CONFIGURED:
            table = self.config_table(command.resource_type)
            old = table.get(command.name, {})
            merged = _merged(old, command)
            self.config_bytes += resource_bytes(command.name, merged) - resource_bytes(command.name, old)
            if merged:
                table[command.name] = merged
            else:
                table.pop(command.name, None)
        else:
            raise Refusal(ErrorCode.invalid_request, f"Resource type {command.resource_type} has no configs.")
        return [e.ConfigChanged(resource_type=command.resource_type, name=command.name)]

    def _register_broker(self, command: c.RegisterBroker, index: int) -> Iterable[e.Event]:
        if command.broker_id in self.removed:
            raise Refusal(
                ErrorCode.invalid_registration, f"Node {command.broker_id} was removed from this cluster."
            )
        known_key = self.node_keys.get(command.broker_id)
        if command.public_key and known_key not in (None, command.public_key):
            raise Refusal(
                ErrorCode.invalid_registration,
                f"Node {command.broker_id} has another key than the cluster knows: remove and add it.",
            )
        if command.public_key:
            self.node_keys[command.broker_id] = command.public_key
        old = self.brokers.get(command.broker_id)
        same = old is not None and old.incarnation == command.incarnation
        self.brokers[command.broker_id] = broker = Broker(
            broker_id=command.broker_id,
            incarnation=command.incarnation,
            epoch=old.epoch if old is not None and same else index,
            endpoints=dict(command.endpoints),
            rack=command.rack,
            fenced=command.fenced,
            draining=old is not None and old.draining,
            votes=None if old is None else old.votes,
        )
        events: list[e.Event] = [e.BrokerRegistered(broker_id=broker.broker_id, broker_epoch=broker.epoch)]
        if broker.fenced:
            events.append(e.BrokerFenced(broker_id=broker.broker_id))
        # A new incarnation may have lost unsynced records, so no leader epoch of the old one continues.
        # The same incarnation registers again if it got no answer; it may have been fenced in between.
        change = elections.led_again if same else elections.after_restart
        return events + self._each_partition_of(broker.broker_id, change)

    def _fence_broker(self, command: c.FenceBroker, index: int) -> Iterable[e.Event]:
        return self._set_fenced(command, fenced=True, resigned=command.resigned)

    def _unfence_broker(self, command: c.UnfenceBroker, index: int) -> Iterable[e.Event]:
        return self._set_fenced(command, fenced=False)

    def _set_fenced(
        self, command: c.FenceBroker | c.UnfenceBroker, *, fenced: bool, resigned: bool = False
    ) -> Iterable[e.Event]:
        broker = self._known_broker(command.broker_id)
        if broker.epoch != command.broker_epoch:
            raise Refusal(ErrorCode.stale_broker_epoch, f"Broker epoch is {broker.epoch}.")
        if broker.fenced == fenced:
            return ()
        self.brokers[broker.broker_id] = msgspec.structs.replace(broker, fenced=fenced, resigned=resigned)
        if fenced:
            gone = self._each_partition_of(broker.broker_id, elections.without)
            return [e.BrokerFenced(broker_id=broker.broker_id), *gone]
        back = self._each_partition_of(broker.broker_id, elections.led_again)
        return [e.BrokerUnfenced(broker_id=broker.broker_id), *back]

    def _each_partition_of(self, broker_id: NodeId, change: _PartitionChange) -> list[e.Event]:
        """Apply `change` to every partition with a replica there, and tell what changed."""
        events: list[e.Event] = []
        for topic in list(self.topics.values()):
            partitions: list[PartitionRegistration] | None = None
            for place, old in enumerate(topic.partitions):
                new = change(topic, old, broker_id, self.is_alive) if broker_id in old.replicas else None
                if new is not None:
                    partitions = partitions or list(topic.partitions)
                    partitions[place] = new = reassignment.complete(new, self.is_alive)
                    self.config_bytes += partition_bytes(new) - partition_bytes(old)
                    events += changes(topic, old, new)
            if partitions is not None:
                self._replace(topic, partitions=tuple(partitions))
        return events

    # --- coming and going ---

    def _unregister_broker(self, command: c.UnregisterBroker, index: int) -> Iterable[e.Event]:
        broker = self._known_broker(command.broker_id)
        broker_id = broker.broker_id
        if command.fenced_only and not broker.fenced:
            raise Refusal(
                ErrorCode.invalid_request,
                f"Broker {broker_id} is alive and cannot be unregistered: stop it first.",
            )
        del self.brokers[broker_id]
        gone = self._each_partition_of(broker_id, elections.without)
        return [e.BrokerUnregistered(broker_id=broker_id), *gone]

    def _drain_node(self, command: c.DrainNode, index: int) -> Iterable[e.Event]:
        broker = self._known_broker(command.broker_id)
        self.brokers[broker.broker_id] = msgspec.structs.replace(broker, draining=command.draining)
        return ()

    def _set_voter(self, command: c.SetVoter, index: int) -> Iterable[e.Event]:
        broker = self._known_broker(command.broker_id)
        self.brokers[broker.broker_id] = msgspec.structs.replace(broker, votes=command.votes)
        return ()

    def _remove_node(self, command: c.RemoveNode, index: int) -> Iterable[e.Event]:
        node = command.broker_id
        held = [
            f"{topic.name}-{partition.partition}"
            for topic in self.topics.values()
            for partition in topic.partitions
            if node in partition.replicas
        ]
        if held and not command.force:
            raise Refusal(
                ErrorCode.reassignment_in_progress,
                f"Node {node} still has {len(held)} replicas, of {held[0]} for one.",
            )
        self.removed.add(node)
        self.node_keys.pop(node, None)
        self.brokers.pop(node, None)
        events: list[e.Event] = [e.BrokerUnregistered(broker_id=node)]
        return events + self._each_partition_of(node, _bereft)

    def _admit_node(self, command: c.AdmitNode, index: int) -> Iterable[e.Event]:
        self.node_keys.pop(command.broker_id, None)
        if command.broker_id not in self.removed:
            return ()
        self.removed.discard(command.broker_id)
        return [e.NodeAdmitted(broker_id=command.broker_id)]

    def _allocate_producer_ids(self, command: c.AllocateProducerIds, index: int) -> Iterable[e.Event]:
        if command.count <= 0:
            raise Refusal(ErrorCode.invalid_request, "A block of producer ids is not empty.")
        self.next_producer_id += command.count
        return ()

    def _secure(self, command: Any, index: int) -> Iterable[e.Event]:
        return self.security.apply(command)

    def _known_topic(self, topic_id: UUID) -> Topic:
        topic = self.topic_by_id(topic_id)
        if topic is None:
            raise Refusal(ErrorCode.unknown_topic_id, f"There is no topic with id {topic_id}.")
        return topic

    def _known_partition(
        self, command: c.ChangePartition | c.Reassign | c.SetRemoteLog
    ) -> tuple[Topic, PartitionRegistration]:
        topic = self._known_topic(command.topic_id)
        if not 0 <= command.partition < len(topic.partitions):
            raise Refusal(ErrorCode.unknown_topic_or_partition, f"No partition {command.partition}.")
        return topic, self._changing.get(topic.topic_id, topic.partitions)[command.partition]

    def _known_broker(self, broker_id: NodeId) -> Broker:
        broker = self.brokers.get(broker_id)
        if broker is None:
            raise Refusal(ErrorCode.broker_id_not_registered, f"Broker {broker_id} is not registered.")
        return broker

    def _replace(self, topic: Topic, **changes: Any) -> None:
        self.topics[topic.name] = msgspec.structs.replace(topic, **changes)


def _check_epoch(partition: PartitionRegistration, expected: int) -> None:
    if partition.partition_epoch != expected:
        raise Refusal(
            ErrorCode.invalid_update_version,
            f"Partition epoch is {partition.partition_epoch}, not {expected}.",
        )


_APPLY: Final[Mapping[type, Callable[[ClusterState, Any, int], Iterable[e.Event]]]] = {
    c.Noop: ClusterState._noop,
    c.InitCluster: ClusterState._init_cluster,
    c.SetLevel: ClusterState._set_level,
    c.CreateTopic: ClusterState._create_topic,
    c.DeleteTopic: ClusterState._delete_topic,
    c.AddPartitions: ClusterState._add_partitions,
    c.ChangePartition: ClusterState._change_partition,
    c.SetRemoteLog: ClusterState._set_remote_log,
    c.Reassign: ClusterState._reassign,
    c.SetConfigs: ClusterState._set_configs,
    c.RegisterBroker: ClusterState._register_broker,
    c.FenceBroker: ClusterState._fence_broker,
    c.UnfenceBroker: ClusterState._unfence_broker,
    c.UnregisterBroker: ClusterState._unregister_broker,
    c.DrainNode: ClusterState._drain_node,
    c.SetVoter: ClusterState._set_voter,
    c.RemoveNode: ClusterState._remove_node,
    c.AdmitNode: ClusterState._admit_node,
    c.AllocateProducerIds: ClusterState._allocate_producer_ids,
    **dict.fromkeys(SECURITY_COMMANDS, ClusterState._secure),
}


def _bereft(
    topic: Topic, old: PartitionRegistration, gone: NodeId, is_alive: elections.IsAlive
) -> PartitionRegistration | None:
    fewer = reassignment.without_replica(old, gone, is_alive)
    return fewer if fewer is not None else elections.without(topic, old, gone, is_alive)


def _merged(old: Mapping[str, str], command: c.SetConfigs) -> dict[str, str]:
    values: dict[str, str | None] = {**({} if command.replace else old), **command.values}
    return {key: value for key, value in values.items() if value is not None}
