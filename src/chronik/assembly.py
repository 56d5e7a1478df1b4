"""The large parts of a node, each put together from small ones: quorum, replication, links, coordinators.

`node.py` builds them from the bottom up and starts and stops them. Nothing here decides anything.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from chronik.client.options import ClientOptions
from chronik.client_state import ClientState, Share
from chronik.cluster.known_nodes import KnownNodes
from chronik.cluster.load import LoadMeter
from chronik.cluster.load_balancer import LoadBalancer
from chronik.cluster.node_identity import link_identity
from chronik.cluster.peer_links import DATA, PeerAddress, PeerLinks
from chronik.cluster.presence import Presence
from chronik.cluster.raft_driver import RaftDriver
from chronik.cluster.raft_storage import RaftStorage
from chronik.cluster.receiver import RaftReceiver
from chronik.cluster.status import ClusterStatus
from chronik.cluster.transport import METADATA, RAFT, ClusterTransport
from chronik.config import Settings
from chronik.groups.coordinator import GroupCoordinator
from chronik.links.connections import Acceptor
from chronik.memory import budgets
from chronik.metadata.budget import MetadataBudget
from chronik.metadata.store import MetadataStore
from chronik.metadata.topic_config import TopicConfig
from chronik.metrics import TieringStats, WriteStages
from chronik.model import METADATA_TOPIC, METADATA_TOPIC_ID, Limits, NodeId, TopicPartition
from chronik.objects.door import ObjectDoor
from chronik.objects.opening import open_objects, options_of
from chronik.open_files import FileBudget
from chronik.registry.coordinator import SchemaRegistry
from chronik.replication.ack_sender import AckSender
from chronik.replication.context import ReplicaContext
from chronik.replication.feed import FollowerFeed
from chronik.replication.follower import FollowerLinks
from chronik.replication.follower_reports import FollowerReports
from chronik.replication.isr import MetadataIsrProposals
from chronik.replication.manager import ReplicaManager
from chronik.replication.partitions import Partitions
from chronik.replication.remote import NO_REMOTE_LOGS
from chronik.replication.repair import Repairs
from chronik.replication.watermark_events import WatermarkEvents
from chronik.server.coordinator_config import group_config, transaction_config
from chronik.server.peers import BrokerPeers
from chronik.server.services import broker_configs
from chronik.storage.disk import Disk
from chronik.storage.log import LogConfig
from chronik.storage.store import LogStore, StoreOptions
from chronik.storage.wal import PROFILES, WalOptions, WalProfile
from chronik.tasks import Tasks
from chronik.tiering.cache import ObjectCache
from chronik.tiering.catalog import Catalog
from chronik.tiering.fetches import Fetches
from chronik.tiering.memory import ByteBudget
from chronik.tiering.reader import RemoteReader
from chronik.tiering.remote_logs import TieredLogs
from chronik.transactions.coordinator import TransactionCoordinator
from chronik.transactions.markers import Marker, MarkerWriter
from chronik.transactions.producer_ids import ProducerIds
from chronik.transactions.verification import TransactionVerifier


def store_options(settings: Settings, producer_share: Share) -> StoreOptions:
    profile = PROFILES[settings.wal_profile]
    if settings.fsync_batch_timeout_ms is not None:
        profile = WalProfile(interval_ms=settings.fsync_batch_timeout_ms, eager_below=0)
    return StoreOptions(
        wal=WalOptions(
            profile=profile, queue_depth=settings.wal_queue_depth, file_bytes=settings.wal_file_bytes
        ),
        producer_share=producer_share,
        unflushed_bytes_max=budgets(settings.memory_bytes_max).unflushed_bytes,
    )


def limits_of(settings: Settings, files: FileBudget) -> Limits:
    connections = min(settings.connections_max, files.kafka_connections)
    memory = budgets(settings.memory_bytes_max)
    return replace(
        Limits(),
        request_memory_bytes_max=memory.request_bytes,
        stalled_memory_bytes_max=memory.stalled_bytes,
        frame_bytes_max=settings.frame_bytes_max,
        connections_max=connections,
        connections_possible=files.kafka_connections,
        connections_per_ip_max=settings.connections_per_ip_max or max(1, connections // 2),
        connections_per_second_max=settings.connections_per_second_max,
        http_connections_max=files.http_connections,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """This node's part in the metadata quorum, and the metadata that it agrees on."""

    transport: ClusterTransport
    raft: RaftDriver
    metadata: MetadataStore
    status: ClusterStatus
    receiver: RaftReceiver


def build_quorum(settings: Settings, store: LogStore, rng: random.Random, partitions: Partitions) -> Quorum:
    """`partitions` is empty here and filled later; load reports to the controller read it."""
    transport = ClusterTransport(node_id=settings.node_id, use_fast_path=not settings.disable_metadata_wal)
    log_ = store.open_log(TopicPartition(METADATA_TOPIC, 0), METADATA_TOPIC_ID, LogConfig())
    voters = tuple(peer.id for peer in settings.peers) or (settings.node_id,)
    stages = WriteStages()
    raft = RaftDriver(
        node_id=settings.node_id,
        voters=() if settings.join else voters,
        storage=RaftStorage(store, log_, Path(settings.data_dir)),
        transport=transport,
        rng=rng,
        stages=stages,
    )
    budget = MetadataBudget(settings.metadata_bytes_max)
    metadata = MetadataStore(raft, origin=rng.getrandbits(63), stages=stages, budget=budget)
    now = asyncio.get_running_loop().time
    load = LoadMeter(partitions, now, settings.load_balance_interval_ms / 1000)
    status = ClusterStatus(settings=settings, raft=raft, transport=transport, metadata=metadata, load=load)
    known = KnownNodes(
        configured=[peer.id for peer in settings.peers],
        quorum=raft,
        state=lambda: metadata.state,
        connected=transport.connected_peers,
        ask=status.of,
    )
    receiver = RaftReceiver(
        node_id=settings.node_id,
        transport=transport,
        raft=raft,
        metadata=metadata,
        known=known,
        status=status.encoded,
    )
    return Quorum(transport=transport, raft=raft, metadata=metadata, status=status, receiver=receiver)


def build_load_balancer(settings: Settings, quorum: Quorum, is_in_charge: Callable[[], bool]) -> LoadBalancer:
    return LoadBalancer(
        mode=settings.load_balance,
        interval_seconds=settings.load_balance_interval_ms / 1000,
        difference_min=settings.load_balance_min_bytes,
        metadata=quorum.metadata,
        is_in_charge=is_in_charge,
        load_of=quorum.status.load_of,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteParts:
    """What a node with an object store reads remote logs with."""

    catalog: Catalog
    fetches: Fetches
    logs: TieredLogs
    stats: TieringStats


def open_object_store(settings: Settings, rng: random.Random) -> ObjectDoor | None:
    """None if the settings name none."""
    options = options_of(settings)
    return None if options is None else open_objects(options, rng)


def build_remote(
    settings: Settings, metadata: MetadataStore, door: ObjectDoor | None, rng: random.Random
) -> RemoteParts | None:
    if door is None:
        return None
    stats = TieringStats()
    memory = budgets(settings.memory_bytes_max)
    half = memory.remote_read_bytes // 2
    # Apart, so that reads that hold something do not wait for memory that other such reads hold.
    fetches = Fetches(ByteBudget(half, stats))
    catalog = Catalog(door, fetches, metadata, rng, stats)
    cache = ObjectCache(door, fetches, settings.remote_cache_bytes, stats)
    reader = RemoteReader(
        catalog,
        cache,
        fetches,
        ByteBudget(half, stats),
        index_bytes_max=memory.remote_index_bytes,
        stats=stats,
    )
    logs = TieredLogs(catalog, reader, stats)
    return RemoteParts(catalog=catalog, fetches=fetches, logs=logs, stats=stats)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationParts:
    """The partitions of this node, and what carries them to and from other nodes."""

    replicas: ReplicaManager
    isr_proposals: MetadataIsrProposals
    repairs: Repairs
    feed: FollowerFeed
    leader_links: FollowerReports
    follower_links: FollowerLinks

    async def stop(self) -> None:
        await self.replicas.close()
        await self.isr_proposals.stop()
        await self.repairs.stop()
        await self.leader_links.stop()
        await self.feed.stop()
        await self.follower_links.stop()


def _wal_address(metadata: MetadataStore, node_id: NodeId) -> str:
    """Where a node takes the data stream; its number if it has not registered."""
    broker = metadata.state.brokers.get(node_id)
    wal = None if broker is None else broker.endpoints.get("wal")
    return f"node {node_id}" if wal is None else f"{wal.host}:{wal.port}"


def build_replication(
    settings: Settings,
    store: LogStore,
    partitions: Partitions,
    metadata: MetadataStore,
    may_lead: Callable[[], bool],
    now_ms: Callable[[], int],
    remote: RemoteParts | None = None,
) -> ReplicationParts:
    acks = AckSender()
    feed = FollowerFeed(
        window_bytes=settings.replica_window_bytes, address_of=partial(_wal_address, metadata)
    )
    isr_proposals = MetadataIsrProposals(metadata)
    repairs = Repairs(metadata)
    follower_links = FollowerLinks(
        partitions=partitions, acks=acks, pressures=(store.wal.pressure, store.flusher), now_ms=now_ms
    )
    context = ReplicaContext(
        node_id=settings.node_id,
        feed=feed,
        acks=acks,
        isr_proposals=isr_proposals,
        repairs=repairs,
        is_alive=lambda node_id: metadata.state.is_alive(node_id),
        tasks=Tasks("replicas"),
        watermark_events=WatermarkEvents(metadata.bus),
        remote_logs=NO_REMOTE_LOGS if remote is None else remote.logs,
    )
    replicas = ReplicaManager(
        partitions=partitions,
        context=context,
        store=store,
        metadata=metadata,
        topic_config=partial(_topic_config, metadata, settings),
        follower_links=follower_links,
        may_lead=may_lead,
        lag_seconds_max=settings.replica_lag_time_max_ms / 1000,
    )
    return ReplicationParts(
        replicas=replicas,
        isr_proposals=isr_proposals,
        repairs=repairs,
        feed=feed,
        leader_links=FollowerReports(partitions=partitions, feed=feed),
        follower_links=follower_links,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The connections with other nodes: those that this one dials, and the ports for theirs."""

    dialed: PeerLinks
    wal_port: Acceptor
    raft_port: Acceptor
    public_key: bytes
    """The key that this node registers with, so that no other node can pretend to be it; empty if nodes have
    no secret."""
    sign: Callable[[bytes], bytes] | None
    """Signs with the private half of that key."""
    cluster_id: str | None
    """The cluster id in this node's certificate."""

    async def start(self, settings: Settings) -> None:
        await self.wal_port.start(settings.bind, settings.wal_port)
        await self.raft_port.start(settings.bind, settings.raft_port)
        self.dialed.start()

    async def stop(self) -> None:
        await self.dialed.stop()
        await self.wal_port.stop()
        await self.raft_port.stop()

    def has_peer_at(self, host: str) -> bool:
        """Whether another node speaks from this address now."""
        return self.wal_port.has_peer_at(host) or self.raft_port.has_peer_at(host)

    def refused(self) -> int:
        return self.wal_port.refused + self.raft_port.refused


def build_links(
    settings: Settings,
    disk: Disk,
    quorum: Quorum,
    replication: ReplicationParts,
    presence: Presence,
    rng: random.Random,
) -> Links:
    receiver, raft, metadata = quorum.receiver, quorum.raft, quorum.metadata
    identity = link_identity(settings, disk, lambda: metadata.state, rng.randbytes)
    dialed = PeerLinks(
        identity=identity,
        configured={
            peer.id: PeerAddress((peer.wal.host, peer.wal.port or 0), (peer.raft.host, peer.raft.port or 0))
            for peer in settings.peers
        },
        handlers={RAFT: receiver, METADATA: receiver, DATA: replication.leader_links},
        state=lambda: metadata.state,
        quorum=lambda: raft.members,
        on_refused=presence.refused,
        rng=rng,
    )
    return Links(
        dialed=dialed,
        wal_port=Acceptor(identity, {METADATA: receiver, DATA: replication.follower_links}),
        raft_port=Acceptor(identity, {RAFT: receiver}),
        public_key=identity.key.public if identity.key is not None else b"",
        sign=identity.key.sign if identity.key is not None else None,
        cluster_id=identity.tls.cluster_id if identity.tls is not None else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinators:
    """All coordinators; a marker that one writes ends what another holds open."""

    groups: GroupCoordinator
    transactions: TransactionCoordinator
    transaction_verifier: TransactionVerifier
    schemas: SchemaRegistry
    peers: BrokerPeers

    def start(self) -> None:
        """Load what this node leads, now and whenever that changes."""
        self.groups.start()
        self.transactions.start()
        self.schemas.start()

    async def stop(self) -> None:
        await self.groups.stop()
        await self.transactions.stop()
        await self.schemas.stop()
        await self.peers.close()


def build_coordinators(
    settings: Settings,
    metadata: MetadataStore,
    replicas: ReplicaManager,
    client_state: ClientState,
    now_ms: Callable[[], int],
    new_uuid: Callable[[], uuid.UUID],
    own_clients: ClientOptions | None = None,
    own_endpoint: str = "kafka",
) -> Coordinators:
    groups = GroupCoordinator(
        metadata=metadata,
        replicas=replicas,
        config=group_config(metadata, settings),
        now_ms=now_ms,
        new_uuid=new_uuid,
        client_state=client_state,
    )

    def end_transaction(tp: TopicPartition, marker: Marker) -> None:
        groups.end_transaction(tp, marker.producer_id, commit=marker.is_commit)

    peers = BrokerPeers(metadata, own_clients, own_endpoint)
    markers = MarkerWriter(
        node_id=settings.node_id,
        metadata=metadata,
        replicas=replicas,
        peers=peers,
        now_ms=now_ms,
        on_marker=end_transaction,
    )
    transactions = TransactionCoordinator(
        metadata=metadata,
        replicas=replicas,
        markers=markers,
        producer_ids=ProducerIds(metadata, settings.node_id),
        config=transaction_config(metadata, settings),
        now_ms=now_ms,
        share=client_state.transactional_ids,
    )
    verifier = TransactionVerifier(
        node_id=settings.node_id, metadata=metadata, coordinator=transactions, peers=peers
    )
    schemas = SchemaRegistry(
        metadata=metadata, replicas=replicas, now_ms=now_ms, bytes_max=settings.schema_registry_bytes_max
    )
    return Coordinators(
        groups=groups,
        transactions=transactions,
        transaction_verifier=verifier,
        schemas=schemas,
        peers=peers,
    )


def _topic_config(metadata: MetadataStore, settings: Settings, topic: str) -> TopicConfig:
    found = metadata.state.topics.get(topic)
    return TopicConfig.resolve(found.configs if found else {}, *broker_configs(metadata.state, settings))
