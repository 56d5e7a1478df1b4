"""The cluster that tests hold in their hands."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from chronik.client import Admin, ClientOptions
from chronik.client import Cluster as ClientCluster
from chronik.client.admin import NewTopic
from chronik.config import Peer
from chronik.local.probe import ProbedNode, ask_http, ask_metadata, look
from chronik.model import NO_LEADER, ChronikError, ErrorCode, NodeId, RequestError, TopicPartition
from chronik.records.reader import Record
from chronik.testing.nodes import WAIT_SECONDS_MAX, ClusterFailed, Nodes
from chronik.testing.replicas import ReplicaReader, ReplicaView, compare

T = TypeVar("T")


class Cluster(Nodes):
    """Nodes, and what they know together: leaders, replicas, watermarks, members."""

    # --- members -----------------------------------------------------------------------------------

    def add_node(self, admit: Callable[[Peer], None] | None = None) -> NodeId:
        """One more node joins; it gets replicas by reassignment or `chronik cluster rebalance`.

        `admit` tells the cluster of it, by default by its admin API.
        """
        peer = self._new_peer(max(self.nodes) + 1)
        if admit is None:
            names = ("kafka", "wal", "raft", "http")
            body = {"node_id": peer.id, **{name: str(getattr(peer, name)) for name in names}}
            self.call_admin("/admin/add-node", body)
        else:
            admit(peer)
        self.layout = self.layout.with_node(peer)
        self.layout.write()
        self._take(peer)
        self._processes[peer.id].node.mark_joined()
        self.start(peer.id)
        return peer.id

    def remove_node(self, node_id: NodeId, *, timeout_s: float = 120) -> None:
        """Drain a node, take it out of the cluster, stop it."""
        asked = next(other for other in self.running if other != node_id)
        self.call_admin("/admin/remove-node", {"node_id": node_id}, node_id=asked, timeout_s=timeout_s)
        self.layout = self.layout.without_node(node_id)
        self.layout.write()
        process = self._processes.pop(node_id)
        if process.is_running:
            process.stop()

    def rebalance(self, *, timeout_s: float = 120) -> int:
        """Spread replicas and leaders evenly; returns how many replicas moved."""
        return int(self.call_admin("/admin/rebalance", {}, timeout_s=timeout_s)["moves"])

    def call_admin(
        self, path: str, body: object, *, node_id: NodeId | None = None, timeout_s: float = 30
    ) -> Any:
        """POST to the admin API of a node, by default the first that runs."""
        asked = self._answering()[0] if node_id is None else node_id
        peer = self.layout.node(asked).peer
        return self._background.run(ask_http(peer, "POST", path, body, timeout_s=timeout_s))

    def raft_status(self, node_id: NodeId) -> Mapping[str, Any]:
        peer = self.layout.node(node_id).peer
        found: Mapping[str, Any] = self._background.run(ask_http(peer, "GET", "/admin/raft-status"))
        return found

    def wait_in_sync(self, node_id: NodeId) -> None:
        """Wait until the node says that it serves clients and that its replicas are in sync."""
        peer = self.layout.node(node_id).peer
        self.wait_for(
            lambda: self._background.run(ask_http(peer, "GET", "/ready")), f"node {node_id} is ready"
        )

    # --- knowledge ---------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; returns when every running node names a leader for all its partitions.

        On a busy machine a node that runs may be fenced for a moment: it counts again when it is back.
        """
        new = NewTopic(
            name=name, partitions=partitions, replication_factor=replication_factor, configs=configs or {}
        )

        async def create() -> Any:
            async with ClientCluster(self.bootstrap, ClientOptions(deadline_ms=30_000)) as client:
                return await Admin(client).create_topics([new])

        def try_create() -> Any:
            (created,) = self._background.run(create())
            is_short = (
                isinstance(created, RequestError) and created.code == ErrorCode.invalid_replication_factor
            )
            return () if is_short and replication_factor <= len(self._answering()) else (created,)

        (created,) = self.wait_for(try_create, f"enough nodes for topic {name!r} are unfenced")
        if isinstance(created, RequestError):
            raise ClusterFailed(f"topic {name!r} could not be created: {created}")
        for node_id in self._answering():
            self.wait_for(partial(self.is_led, name, node_id), f"{name} is led, as node {node_id} sees it")

    def leader_of(self, topic: str, partition: int = 0, *, timeout_s: float = WAIT_SECONDS_MAX) -> NodeId:
        """The leader, waited for if there is none at the moment."""
        return int(
            self.wait_for(
                lambda: self.partition_of(topic, partition).leader_id + 1,
                f"{topic}-{partition} has a leader",
                timeout_s,
            )
            - 1
        )

    def view(self, node_id: NodeId) -> ProbedNode:
        """The cluster as this node sees it."""
        (found,) = self.run(look([self.layout.node(node_id).peer]))
        return found

    def brokers_seen(self, node_id: NodeId) -> tuple[NodeId, ...]:
        """The nodes that this node names to clients."""
        return self.view(node_id).brokers

    def topic_names(self, node_id: NodeId) -> set[str]:
        """Every topic this node knows, internal ones too."""
        return {topic.name for topic in self._metadata(None, node_id).topics}

    def isr_of(self, topic: str, partition: int = 0) -> tuple[NodeId, ...]:
        return tuple(self.partition_of(topic, partition).isr_nodes)

    def replicas_of(self, topic: str, partition: int = 0) -> tuple[NodeId, ...]:
        return tuple(self.partition_of(topic, partition).replica_nodes)

    def controller(self, *, timeout_s: float = WAIT_SECONDS_MAX) -> NodeId:
        """The node that leads the metadata log, as a majority of those that run sees it."""

        def seen() -> int:
            views = [self._controller_seen_by(node_id) for node_id in self._answering()]
            best = max(set(views), key=views.count)
            agreed = views.count(best) > len(self.nodes) // 2 and best not in (NO_LEADER, *self._paused)
            return best + 1 if agreed and self.is_running(best) else 0

        return int(self.wait_for(seen, "there is a controller", timeout_s) - 1)

    def replicas(self, topic: str, partition: int = 0) -> dict[NodeId, ReplicaView]:
        """The partition as each of its running replicas has it."""
        return self._ask_replicas(TopicPartition(topic, partition), ReplicaReader.view)

    def records(self, topic: str, partition: int = 0) -> dict[NodeId, list[Record]]:
        """What can be read from each running replica; where there is compaction, each does its own."""
        return self._ask_replicas(TopicPartition(topic, partition), ReplicaReader.records)

    def _ask_replicas(
        self, tp: TopicPartition, question: Callable[[ReplicaReader, TopicPartition], Coroutine[Any, Any, T]]
    ) -> dict[NodeId, T]:
        async def ask(node_id: NodeId) -> T:
            reader = await ReplicaReader.open(self._address(node_id))
            try:
                return await question(reader, tp)
            finally:
                reader.close()

        answering = self._answering()
        return {
            node_id: self._background.run(ask(node_id))
            for node_id in self.replicas_of(tp.topic, tp.partition)
            if node_id in answering
        }

    def end_offsets(self, topic: str, partition: int = 0) -> dict[NodeId, int]:
        """The end of the log on every replica that runs, acknowledged or not."""
        return {node_id: view.log_end_offset for node_id, view in self.replicas(topic, partition).items()}

    def high_watermarks(self, topic: str, partition: int = 0) -> dict[NodeId, int]:
        return {node_id: view.high_watermark for node_id, view in self.replicas(topic, partition).items()}

    def assert_replicas_agree(self, *topics: str, timeout_s: float = WAIT_SECONDS_MAX) -> None:
        """End offsets, watermarks and every byte below the watermark are the same on all replicas.

        Waits for replicas that still catch up. All nodes must run. By default for all but internal topics.
        """
        found = self._metadata(None, self._answering()[0]).topics
        chosen = [topic for topic in found if (topic.name in topics if topics else not topic.is_internal)]
        replicas = {
            TopicPartition(topic.name, one.partition_index): tuple(one.replica_nodes)
            for topic in chosen
            for one in topic.partitions
        }
        addresses = {node_id: self._address(node_id) for node_id in self.nodes}
        self._background.run(compare(addresses, replicas, timeout_s=timeout_s))

    # --- inside ------------------------------------------------------------------------------------

    def _metadata(self, topics: Sequence[str] | None, node_id: NodeId) -> Any:
        return self._background.run(ask_metadata(self._address(node_id), topics))

    def _controller_seen_by(self, node_id: NodeId) -> NodeId:
        try:
            return int(self._metadata((), node_id).controller_id)
        except ChronikError:
            return NO_LEADER

    def partition_of(self, topic: str, partition: int, node_id: NodeId | None = None) -> Any:
        """A partition as a node sees it; by default as the one with the newest epoch does."""
        asked = self._answering() if node_id is None else (node_id,)
        found = []
        for one in asked:
            with contextlib.suppress(ChronikError):
                (info,) = self._metadata([topic], one).topics
                found += [p for p in info.partitions if p.partition_index == partition]
        if not found:
            raise LookupError(f"no node knows {topic}-{partition}")
        return max(found, key=lambda one: one.leader_epoch)

    def is_led(self, topic: str, node_id: NodeId) -> bool:
        """Whether this node knows the topic and a leader of each of its partitions."""
        (info,) = self._metadata([topic], node_id).topics
        return bool(info.partitions) and all(one.leader_id >= 0 for one in info.partitions)
