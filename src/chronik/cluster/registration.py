"""This broker's registration in the cluster: it registers, stays unfenced, learns of its removal, resigns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from uuid import UUID

from chronik.cluster.lead_permission import LeadPermission
from chronik.cluster.raft_driver import RaftDriver
from chronik.cluster.transport import ClusterTransport
from chronik.config import ConfigError, Settings
from chronik.metadata import events as e
from chronik.metadata.commands import (
    Batch,
    Endpoint,
    FenceBroker,
    InitCluster,
    RegisterBroker,
    SetLevel,
    UnfenceBroker,
)
from chronik.metadata.levels import LEVEL_FIRST
from chronik.metadata.store import MetadataStore
from chronik.model import METADATA_TOPIC_ID, ErrorCode, RequestError, Unavailable
from chronik.replication.manager import ReplicaManager
from chronik.storage.store import LogStore
from chronik.tasks import Tasks

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.1
WAIT_LOG_EVERY: Final = 50
RESIGN_SECONDS_MAX: Final = 0.8
UNFENCE_SECONDS: Final = 0.1
ASK_SECONDS: Final = 1.0
"""How often a node that hears no controller asks the others whether it still belongs to them."""


class Registration:
    def __init__(
        self,
        *,
        settings: Settings,
        store: LogStore,
        metadata: MetadataStore,
        raft: RaftDriver,
        transport: ClusterTransport,
        common_level: Callable[[], Awaitable[int]],
        replicas: ReplicaManager,
        lead_permission: LeadPermission,
        new_uuid: Callable[[], UUID],
        public_key: bytes = b"",
        certified_cluster_id: str | None = None,
    ) -> None:
        """`public_key` is the key that other nodes will demand of this one from now on;
        `certified_cluster_id` is in this node's certificate."""
        self._settings = settings
        self._store = store
        self._metadata = metadata
        self._raft = raft
        self._transport = transport
        self._common_level = common_level
        self._replicas = replicas
        self._lead_permission = lead_permission
        self._new_uuid = new_uuid
        self._public_key = public_key
        self._certified_cluster_id = certified_cluster_id
        self._epoch = -1
        self._command: RegisterBroker | None = None
        self._tasks = Tasks("registration")

    async def stop(self) -> None:
        await self._tasks.close()

    async def register(
        self, kafka_port: int, http_port: int, listeners: Mapping[str, Endpoint] | None = None
    ) -> None:
        """Register this broker; tried again until the metadata log has it.

        `listeners` are the endpoints for Kafka clients, by the names that brokers know them by.
        """
        settings = self._settings
        command = RegisterBroker(
            broker_id=settings.node_id,
            incarnation=self._new_uuid(),
            endpoints=_endpoints(settings, kafka_port, http_port) | dict(listeners or {}),
            rack=settings.rack,
            public_key=self._public_key,
        )
        self._command = command
        waited = 0
        while True:
            try:
                await self._metadata.submit(command, timeout_s=2.0)
                if settings.node_id in self._metadata.state.brokers:
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
        await self._found_cluster()
        if self._certified_cluster_id not in (None, self._metadata.state.cluster_id):
            raise ConfigError(
                f"node_tls_cert is of cluster {self._certified_cluster_id}, but this is cluster "
                f"{self._metadata.state.cluster_id}"
            )
        self._forget_deleted_topics()
        self._epoch = self._metadata.state.brokers[settings.node_id].epoch
        self._lead_permission.registered()
        self._replicas.activate()
        self._tasks.spawn(self._stay_unfenced(), "staying unfenced")

    async def _found_cluster(self) -> None:
        """Give a new cluster its id and the highest level that the nodes met so far know.

        Tried again until the metadata log has an id, of this node or of another: the leader may change
        between the registration and this, and a node must not end because of that.
        """
        named = self._settings.cluster_id or self._certified_cluster_id
        found = InitCluster(cluster_id=named or self._new_uuid().hex[:22])
        while self._metadata.state.cluster_id is None:
            try:
                level = await self._common_level()
                first = (found,) if level == LEVEL_FIRST else (found, SetLevel(level=level))
                await self._metadata.submit(Batch(commands=first), timeout_s=2.0)
            except (Unavailable, RequestError) as error:
                log.info("the cluster has no id yet: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _stay_unfenced(self) -> None:
        """Ask to be unfenced whenever this broker finds itself fenced: it was paused or cut off.

        A node that was removed meanwhile gets no more news: it learns of its removal by asking.
        """
        while not self._lead_permission.is_removed:
            is_lost = not self._lead_permission.hears_controller()
            await asyncio.sleep(ASK_SECONDS if is_lost else UNFENCE_SECONDS)
            own = self._metadata.state.brokers.get(self._settings.node_id)
            if own is None:
                await self._register_again()
                continue
            if own.resigned or own.epoch != self._epoch or not (own.fenced or is_lost):
                continue
            try:
                command = UnfenceBroker(broker_id=own.broker_id, broker_epoch=own.epoch)
                await self._metadata.submit(command, timeout_s=2.0)
                if own.fenced:
                    log.info("node %d is unfenced", own.broker_id)
            except (Unavailable, RequestError) as error:
                if _tells_of_removal(error):
                    self._end_service()
                elif own.fenced:
                    log.info("node %d stays fenced for now: %s", own.broker_id, error)

    async def _register_again(self) -> None:
        """Register again, since somebody unregistered this node while it was fenced. Only removal keeps a
        node out for good."""
        node_id = self._settings.node_id
        if self._command is None or node_id in self._metadata.state.removed:
            return
        try:
            await self._metadata.submit(self._command, timeout_s=2.0)
        except (Unavailable, RequestError) as error:
            log.info("node %d is not registered yet: %s", node_id, error)
            return
        if node_id in self._metadata.state.brokers:
            self._epoch = self._metadata.state.brokers[node_id].epoch
            log.warning("node %d was unregistered while it ran: it registered again", node_id)

    def on_event(self, event: e.Event) -> None:
        if (
            isinstance(event, e.BrokerUnregistered | e.Resync)
            and self._lead_permission.is_registered
            and self._settings.node_id in self._metadata.state.removed
        ):
            self._end_service()

    def _end_service(self) -> None:
        """Stop serving clients: from now on this node's metadata is out of date."""
        if not self._lead_permission.is_removed:
            self._lead_permission.removed()
            log.warning(
                "node %d was removed from the cluster: it serves no clients any more and can be switched off",
                self._settings.node_id,
            )
            self._metadata.bus.publish([e.RemovedFromCluster()])

    def _forget_deleted_topics(self) -> None:
        """Delete logs of topics that no longer exist. Only now is the metadata known to be complete."""
        known = {
            (topic.topic_id.bytes, partition.partition)
            for topic in self._metadata.state.topics.values()
            for partition in topic.partitions
            if self._settings.node_id in partition.replicas
        }
        known.add((METADATA_TOPIC_ID.bytes, 0))
        self._store.forget_missing(lambda topic_id, partition: (topic_id, partition) in known)

    async def resign(self) -> None:
        """Tell the cluster before stopping: leadership moves at once instead of after a time-out."""
        broker = self._metadata.state.brokers.get(self._settings.node_id)
        if broker is None or not self._lead_permission.is_registered or not self._settings.peers:
            return
        try:
            command = FenceBroker(broker_id=broker.broker_id, broker_epoch=broker.epoch, resigned=True)
            await self._metadata.submit(command, timeout_s=RESIGN_SECONDS_MAX)
            voters = [
                peer for peer in self._raft.core.log.membership.voters if self._transport.is_connected(peer)
            ]
            if self._raft.is_leader and voters:
                self._raft.transfer_leadership(voters[0])
        except (Unavailable, RequestError) as error:
            log.info("could not tell the cluster that this node stops: %s", error)


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
