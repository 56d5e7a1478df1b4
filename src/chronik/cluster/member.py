"""This node as a member of its cluster: consensus, metadata, replicas, links, and the duties they bring.

A node without peers is a cluster of one: the same parts, no links.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from chronik.cluster.controller import LEASE_SECONDS, Controller
from chronik.cluster.membership import DATA, Membership, PeerAddress
from chronik.cluster.operations import ClusterOperations
from chronik.cluster.presence import Presence
from chronik.cluster.raft_driver import RaftDriver
from chronik.cluster.raft_storage import RaftStorage
from chronik.cluster.status import FollowerStatus, RaftStatus
from chronik.cluster.transport import METADATA, RAFT, ClusterTransport
from chronik.config import Settings
from chronik.metadata import events as e
from chronik.metadata.commands import (
    ChangePartition,
    Endpoint,
    FenceBroker,
    InitCluster,
    RegisterBroker,
    UnfenceBroker,
)
from chronik.metadata.store import MetadataStore
from chronik.metadata.topic_config import TopicConfig
from chronik.metrics import WriteStages
from chronik.model import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    NO_LEADER,
    ErrorCode,
    NodeId,
    RequestError,
    TopicPartition,
    Unavailable,
)
from chronik.replication.connections import Acceptor
from chronik.replication.follower import FollowerSide
from chronik.replication.leader import LeaderSide
from chronik.replication.link import LinkIdentity
from chronik.replication.manager import ReplicaManager
from chronik.replication.partition import Partition
from chronik.replication.streams import Replication
from chronik.storage.log import LogConfig
from chronik.storage.store import LogStore

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.1
WAIT_LOG_EVERY: Final = 50
RESIGN_SECONDS_MAX: Final = 0.8
UNFENCE_SECONDS: Final = 0.1
ASK_SECONDS: Final = 1.0
"""How often a node that hears no controller asks the others whether it still belongs to them."""
PROPOSE_SECONDS_MAX: Final = 5.0


class ClusterMember:
    def __init__(
        self,
        *,
        settings: Settings,
        store: LogStore,
        topic_config: Callable[[str], TopicConfig],
        now_ms: Callable[[], int],
        new_uuid: Callable[[], UUID],
        rng: random.Random,
    ) -> None:
        self.settings = settings
        self.store = store
        self._topic_config = topic_config
        self._new_uuid = new_uuid
        self._loop = asyncio.get_running_loop()
        self._is_registered = False
        self._epoch = -1
        self._task: asyncio.Task[None] | None = None
        self._elections = 0
        self._leave: Callable[[], None] = lambda: None
        self.is_removed = False
        """The cluster took this node out while it ran: it serves nobody any more."""
        self._build_consensus(settings, Path(settings.data_dir), rng)
        self._build_replication(settings, now_ms)
        self._build_links(settings, rng)

    def _build_consensus(self, settings: Settings, root: Path, rng: random.Random) -> None:
        metadata_tp = TopicPartition(METADATA_TOPIC, 0)
        log_ = self.store.open_log(metadata_tp, METADATA_TOPIC_ID, LogConfig())
        voters = tuple(peer.id for peer in settings.peers) or (settings.node_id,)
        stages = WriteStages()
        self.transport = ClusterTransport(
            node_id=settings.node_id,
            use_fast_path=not settings.disable_metadata_wal,
            refusal=self._refusal,
            status=lambda: msgspec.msgpack.encode(self.status()),
            on_gone=lambda peer: self.membership.look_after(peer),
        )
        self.raft = RaftDriver(
            node_id=settings.node_id,
            voters=() if settings.join else voters,
            storage=RaftStorage(self.store, log_, root),
            transport=self.transport,
            rng=rng,
            take_snapshot=lambda: self.metadata.snapshot(),
            stages=stages,
        )
        self.transport.attach(self.raft)
        self.metadata = MetadataStore(self.raft, origin=rng.getrandbits(63), stages=stages)
        self.presence = Presence(
            gone_since=self.transport.gone_since, state=lambda: self.metadata.state, now=self._loop.time
        )
        self.operations = ClusterOperations(
            node_id=settings.node_id,
            metadata=self.metadata,
            quorum=lambda: self.raft.core.log.membership,
        )
        self.controller = Controller(
            node_id=settings.node_id,
            driver=self.raft,
            transport=self.transport,
            presence=self.presence,
            metadata=self.metadata,
        )

    def _build_replication(self, settings: Settings, now_ms: Callable[[], int]) -> None:
        leader = LeaderSide(
            node_id=settings.node_id,
            partitions=lambda: self.replicas.all(),
            find=lambda topic_id, partition: self.replicas.find(topic_id, partition),
            propose_isr=self._propose_isr,
            is_alive=lambda node_id: self.metadata.state.is_alive(node_id),
            lag_seconds_max=settings.replica_lag_time_max_ms / 1000,
        )
        follower = FollowerSide(
            node_id=settings.node_id,
            find=lambda topic_id, partition: self.replicas.find(topic_id, partition),
            now_ms=now_ms,
        )
        self.replication = Replication(leader, follower)
        self.replicas = ReplicaManager(
            node_id=settings.node_id,
            store=self.store,
            state=lambda: self.metadata.state,
            topic_config=self._topic_config,
            hooks=self.replication,
            may_lead=self._may_lead,
        )

    def _build_links(self, settings: Settings, rng: random.Random) -> None:
        secret = (settings.cluster_secret or "").encode()
        identity = LinkIdentity(settings.node_id, secret, lambda: rng.randbytes(32))
        self.membership = Membership(
            identity=identity,
            configured={
                peer.id: PeerAddress(
                    (peer.wal.host, peer.wal.port or 0), (peer.raft.host, peer.raft.port or 0)
                )
                for peer in settings.peers
            },
            handlers={RAFT: self.transport, METADATA: self.transport, DATA: self.replication.leader},
            state=lambda: self.metadata.state,
            quorum=lambda: self.raft.members,
            on_refused=self.presence.refused,
            rng=rng,
        )
        self.wal_port = Acceptor(identity, {METADATA: self.transport, DATA: self.replication.follower})
        self.raft_port = Acceptor(identity, {RAFT: self.transport})

    # --- starting ----------------------------------------------------------------------------------

    def on_removed(self, leave: Callable[[], None]) -> None:
        """Have `leave` called once, if the cluster takes this node out while it runs."""
        self._leave = leave

    async def start(self) -> None:
        """Metadata from disk, links to peers, replication. The cluster does not count on this node yet."""
        settings = self.settings
        self.metadata.bus.listen(self.replicas.on_event)
        self.metadata.bus.listen(self.membership.on_event)
        self.metadata.bus.listen(self.presence.on_event)
        self.metadata.bus.listen(self._look_for_own_removal)
        self.raft.on_soft_state(lambda _state: self._count_election())
        self.raft.on_membership(self.membership.refresh)
        await self.raft.start(self.metadata)
        self.replication.start()
        if settings.peers:
            await self.wal_port.start(settings.bind, settings.wal_port)
            await self.raft_port.start(settings.bind, settings.raft_port)
            self.membership.start()
        self.controller.start()

    def _count_election(self) -> None:
        self._elections += 1

    async def register(self, kafka_port: int, http_port: int) -> None:
        """Take part in the cluster; tried again until a leader takes it."""
        settings = self.settings
        command = RegisterBroker(
            broker_id=settings.node_id,
            incarnation=self._new_uuid(),
            endpoints=_endpoints(settings, kafka_port, http_port),
            rack=settings.rack,
        )
        waited = 0
        while True:
            try:
                await self.metadata.submit(command, timeout_s=2.0)
                if settings.node_id in self.metadata.state.brokers:
                    break  # else it was removed in the same moment
            except (Unavailable, RequestError) as error:
                if _tells_of_removal(error):
                    if waited % WAIT_LOG_EVERY == 0:
                        log.error("this node does not serve: %s", error)
                elif waited % WAIT_LOG_EVERY == 0 and waited:
                    nodes = ", ".join(str(peer.id) for peer in settings.peers)
                    log.info("waiting for a majority of nodes %s: %s", nodes, error)
                waited += 1
                await asyncio.sleep(RETRY_SECONDS)
        if self.metadata.state.cluster_id is None:
            cluster_id = settings.cluster_id or self._new_uuid().hex[:22]
            await self.metadata.submit(InitCluster(cluster_id=cluster_id))
        self._forget_deleted_topics()
        self._epoch = self.metadata.state.brokers[settings.node_id].epoch
        self._is_registered = True
        self.replicas.activate()
        self._task = self._loop.create_task(self._stay_unfenced())

    async def _stay_unfenced(self) -> None:
        """A node that was paused or cut off finds itself fenced when it is back: it asks to be let in.

        One that was taken out meanwhile gets no news at all any more: it learns of it by asking.
        """
        while not self.is_removed:
            is_lost = not self._hears_controller()
            await asyncio.sleep(ASK_SECONDS if is_lost else UNFENCE_SECONDS)
            own = self.metadata.state.brokers.get(self.settings.node_id)
            if own is None or own.resigned or own.epoch != self._epoch or not (own.fenced or is_lost):
                continue
            try:
                command = UnfenceBroker(broker_id=own.broker_id, broker_epoch=own.epoch)
                await self.metadata.submit(command, timeout_s=2.0)
                if own.fenced:
                    log.info("node %d takes part again", own.broker_id)
            except (Unavailable, RequestError) as error:
                if _tells_of_removal(error):
                    self._end_service()
                elif own.fenced:
                    log.info("node %d stays fenced for now: %s", own.broker_id, error)

    def _look_for_own_removal(self, event: e.Event) -> None:
        if (
            isinstance(event, e.BrokerUnregistered | e.Resync)
            and self._is_registered
            and self.settings.node_id in self.metadata.state.removed
        ):
            self._end_service()

    def _end_service(self) -> None:
        """What this node knows of the cluster is old from now on: clients must hear it from others."""
        if not self.is_removed:
            self.is_removed = True
            log.warning(
                "node %d was removed from the cluster: it serves no clients any more and can be switched off",
                self.settings.node_id,
            )
            self._leave()

    def _forget_deleted_topics(self) -> None:
        """Only now is the metadata known to be complete: logs of topics it does not have are garbage."""
        known = {
            (topic.topic_id.bytes, partition.partition)
            for topic in self.metadata.state.topics.values()
            for partition in topic.partitions
            if self.settings.node_id in partition.replicas
        }
        known.add((METADATA_TOPIC_ID.bytes, 0))
        self.store.forget_missing(lambda topic_id, partition: (topic_id, partition) in known)

    def _refusal(self, peer: NodeId) -> str | None:
        """Why a node that is no member may not ask to become one."""
        if peer in self.metadata.state.removed:
            return f"node {peer} was removed from this cluster; `add-node` lets it in again"
        return None

    # --- what others ask -----------------------------------------------------------------------------

    def _may_lead(self) -> bool:
        """Whether the cluster counts on this node: registered in this life, and the controller is heard."""
        return self._is_registered and not self.is_removed and self._hears_controller()

    def _hears_controller(self) -> bool:
        return self._loop.time() - self.raft.lease_start < LEASE_SECONDS or self.raft.leads_alone

    def controller_id(self) -> int:
        leader = self.raft.leader_id
        return leader if leader is not None else self.settings.node_id

    async def _propose_isr(self, partition: Partition, isr: tuple[NodeId, ...] | None) -> bool | None:
        """Have the cluster agree on another ISR of a partition that this node leads, or on a new epoch.

        None: nobody knows whether it will be in force, because the leader went away or took too long.
        """
        current = self.metadata.state.partition(partition.tp)
        if current is None or current.leader_epoch != partition.leader_epoch or not partition.is_leader:
            return False
        command = ChangePartition(
            topic_id=partition.topic_id,
            partition=partition.tp.partition,
            partition_epoch=current.partition_epoch,
            isr=isr,
            bump_leader_epoch=isr is None,
        )
        try:
            await self.metadata.submit(command, timeout_s=PROPOSE_SECONDS_MAX)
        except (Unavailable, RequestError) as error:
            log.info("%s: the ISR stays as it is: %s", partition.tp, error)
            is_refused = isinstance(error, RequestError) and error.code != ErrorCode.request_timed_out
            return False if is_refused else None
        return True

    def status(self) -> RaftStatus:
        found = self.raft.status()
        now = self._loop.time()
        followers = tuple(
            FollowerStatus(
                node_id=peer,
                match_index=one.match,
                lag_entries=found.last_index - one.match,
                last_contact_ms=int((now - self.transport.last_heard.get(peer, now)) * 1000),
                is_voter=not one.is_learner,
            )
            for peer, one in sorted(found.followers.items())
            if peer != self.settings.node_id
        )
        return RaftStatus(
            node_id=self.settings.node_id,
            role=found.role.value if self.settings.peers else "single",
            term=found.term,
            leader_id=NO_LEADER if found.leader_id is None else found.leader_id,
            last_log_index=found.last_index,
            last_committed_index=found.commit,
            last_applied_index=found.applied,
            elections=self._elections,
            fast_path=not self.settings.disable_metadata_wal,
            fast_messages=self.transport.fast_count,
            fallback_messages=self.transport.fallback_count,
            followers=followers,
        )

    async def leader_status(self) -> RaftStatus:
        """The same from the leader, who alone knows how far the others are."""
        leader = self.raft.leader_id
        if leader is None:
            raise Unavailable("the cluster has no leader now")
        if leader == self.settings.node_id:
            return self.status()
        return msgspec.msgpack.decode(await self.transport.ask_status(leader), type=RaftStatus)

    def replication_lag_seconds(self) -> dict[NodeId, float]:
        """For how long each follower has not had everything of the partitions led here."""
        now = self._loop.time()
        lag: dict[NodeId, float] = {}
        for partition in self.replicas.all():
            for peer, progress in partition.followers.items():
                behind = progress.lags_since(partition.log_end_offset, now)
                lag[peer] = max(lag.get(peer, 0.0), behind)
        return lag

    # --- stopping ----------------------------------------------------------------------------------

    async def resign(self) -> None:
        """Tell the cluster before going: leadership moves at once instead of after a time-out."""
        broker = self.metadata.state.brokers.get(self.settings.node_id)
        if broker is None or not self._is_registered or not self.settings.peers:
            return
        try:
            command = FenceBroker(broker_id=broker.broker_id, broker_epoch=broker.epoch, resigned=True)
            await self.metadata.submit(command, timeout_s=RESIGN_SECONDS_MAX)
            voters = [
                peer for peer in self.raft.core.log.membership.voters if self.transport.is_connected(peer)
            ]
            if self.raft.is_leader and voters:
                self.raft.transfer_leadership(voters[0])
        except (Unavailable, RequestError) as error:
            log.info("the cluster could not be told that this node stops: %s", error)

    async def stop(self) -> None:
        await self.controller.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.metadata.close()
        await self.replicas.close()
        await self.replication.stop()
        await self.membership.stop()
        await self.transport.stop()
        await self.wal_port.stop()
        await self.raft_port.stop()
        await self.raft.stop()


def _tells_of_removal(error: Exception) -> bool:
    return isinstance(error, RequestError) and error.code == ErrorCode.invalid_registration


def _endpoints(settings: Settings, kafka_port: int, http_port: int) -> dict[str, Endpoint]:
    address = settings.advertised(kafka_port=kafka_port)
    found = {"kafka": Endpoint(host=address.host, port=address.port or kafka_port)}
    if http_port:
        found["http"] = Endpoint(host=address.host, port=http_port)
    for peer in settings.peers:
        if peer.id == settings.node_id:
            found["wal"] = Endpoint(host=peer.wal.host, port=peer.wal.port or settings.wal_port)
            found["raft"] = Endpoint(host=peer.raft.host, port=peer.raft.port or settings.raft_port)
    return found
