"""The composition root: builds a node out of its parts, starts and stops it.

Nothing here decides anything; it says what is made of what, and in which order things begin and end.
`assembly.py` puts the large parts together.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from chronik.admin.context import AdminContext
from chronik.admin.counts import EventCounts
from chronik.admin.door import HttpDoor
from chronik.assembly import (
    RemoteParts,
    build_coordinators,
    build_links,
    build_load_balancer,
    build_quorum,
    build_remote,
    build_replication,
    limits_of,
    open_object_store,
    store_options,
)
from chronik.cleaning.cleaner import Cleaner, CleaningConfig
from chronik.client_state import ClientState
from chronik.cluster.controller import Controller
from chronik.cluster.lead_permission import LeadPermission
from chronik.cluster.operations import ClusterOperations
from chronik.cluster.presence import Presence
from chronik.cluster.registration import Registration
from chronik.config import Settings
from chronik.metadata.events import (
    BrokerRegistered,
    BrokerUnregistered,
    Event,
    LevelRaised,
    RemovedFromCluster,
    Resync,
)
from chronik.metadata.telling import tell_event
from chronik.model import Limits
from chronik.objects.door import ObjectDoor
from chronik.objects.store import ObjectStore
from chronik.open_files import FileBudget
from chronik.records.compression import limit_decompression
from chronik.replication.partitions import Partitions
from chronik.server.dispatch import Dispatcher
from chronik.server.fetch_sessions import FetchSessions
from chronik.server.handlers import all_handlers
from chronik.server.internal_topics import mend_internal_topics
from chronik.server.listener import KafkaListener
from chronik.server.listeners import OWN, advertised_endpoints
from chronik.server.open_doors import check_doors, doors_for_everybody
from chronik.server.security import Security
from chronik.server.services import FeatureRange, Services, broker_configs
from chronik.server.telemetry import Telemetry
from chronik.storage.disk import Disk, RealDisk
from chronik.storage.recovery import open_store
from chronik.storage.store import LogStore
from chronik.tiering.service import Tiering

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

SILENCE_SECONDS_MAX: Final = 0.5
"""How long a start may take before HTTP is opened to say what it waits for."""

FEATURES: Final = MappingProxyType(
    {
        "group.version": FeatureRange(low=0, high=1, level=1),
        "transaction.version": FeatureRange(low=0, high=2, level=2),
    }
)
"""KIP-848 groups; transactions that raise the epoch at every end (KIP-890). Clients look here first."""


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _new_uuid(rng: random.Random) -> uuid.UUID:
    return uuid.UUID(int=rng.getrandbits(128), version=4)


class Node:
    """One broker. Several may live in one process, each with its own disk and ports."""

    def __init__(
        self,
        settings: Settings,
        *,
        disk: Disk | None = None,
        now_ms: Callable[[], int] = _wall_clock_ms,
        rng: random.Random | None = None,
        with_http: bool = True,
        objects: ObjectStore | None = None,
    ) -> None:
        """`objects` takes the place of the store that the settings name. `with_http=False` leaves out what
        needs threads and real sockets (the simulator)."""
        self.settings = settings
        self._given_disk = disk
        self._given_objects = objects
        self._now_ms = now_ms
        self._rng = rng or random.SystemRandom()
        self.kafka_port = 0
        self.http_port = 0
        self.listener_ports: Mapping[str, int] = {}
        """The ports of all Kafka listeners, by name."""
        self._http = HttpDoor() if with_http else None
        self._parts: _Parts | None = None

    @property
    def parts(self) -> _Parts:
        if self._parts is None:
            raise RuntimeError("the node is not running")
        return self._parts

    async def start(self) -> None:
        """Recover, join the cluster, listen. Returns when clients can be served.

        A node of a cluster waits for a majority of its peers; `stop` ends that wait.
        """
        check_doors(self.settings)
        for door in doors_for_everybody(self.settings):
            log.warning(
                "listener %s at %s needs no login: whoever reaches it can read and write every record",
                door.name,
                door.host,
            )
        segments = FileBudget.of_process().segments(self.settings.open_segments_max)
        disk = self._given_disk or RealDisk(asyncio.get_running_loop(), segments)
        if self._given_objects is None:
            objects = open_object_store(self.settings, self._rng)
        else:
            timeout_s = self.settings.object_store_timeout_ms / 1000
            objects = ObjectDoor(self._given_objects, rng=self._rng, timeout_s=timeout_s)
        parts = _Parts(self.settings, disk, self._now_ms, self._rng, objects)
        self._parts = parts
        try:
            if self._http is not None:
                self.http_port = self._http.bind(self.settings)
            self.listener_ports = await parts.bind()
            self.kafka_port = self.listener_ports[OWN]
            await parts.start()
            await self._register(parts)
            await parts.security.admit_first_user(Path(self.settings.data_dir))
            parts.coordinators.start()
            parts.services.spawn(mend_internal_topics(parts.services))
            await parts.listener.serve()
            if self._http is not None:
                if not self._http.is_open:
                    await self._http.open(partial(parts.admin_context, self.listener_ports))
                self._http.serve()
        except BaseException:
            await self.stop()
            raise

    async def _register(self, parts: _Parts) -> None:
        """Take part in the cluster. While that has to wait, HTTP says so instead of being silent."""
        listeners = advertised_endpoints(self.settings, parts.security.specs, self.listener_ports)
        register = parts.registration.register(self.kafka_port, self.http_port, listeners)
        if self._http is None:
            await register
            return
        registering = asyncio.ensure_future(register)
        try:
            await asyncio.wait((registering,), timeout=SILENCE_SECONDS_MAX)
            if not registering.done():
                await self._http.open(partial(parts.admin_context, self.listener_ports))
            await registering
        finally:
            registering.cancel()

    async def stop(self) -> None:
        """Answer what is under way, make everything durable, let go of every resource."""
        parts, self._parts = self._parts, None
        if self._http is not None:
            await self._http.close()
        if parts is not None:
            await parts.stop()
            if self._given_disk is None:
                parts.disk.close()


class _Parts:
    """Everything a running node is made of, built from the bottom up: each part is given complete ones."""

    def __init__(
        self,
        settings: Settings,
        disk: Disk,
        now_ms: Callable[[], int],
        rng: random.Random,
        door: ObjectDoor | None,
    ) -> None:
        limits = limits_of(settings, FileBudget.of_process())
        limit_decompression(settings.decompressed_bytes_max)
        new_uuid = partial(_new_uuid, rng)
        self.settings = settings
        self.disk = disk
        self.events = EventCounts()
        self.client_state = ClientState(settings.client_state_bytes_max)
        self.store: LogStore
        options = store_options(settings, self.client_state.producer_ids)
        self.store, self.recovery = open_store(disk, Path(settings.data_dir), options)
        partitions = Partitions()
        self.quorum = build_quorum(settings, self.store, rng, partitions)
        self.raft, self.metadata = self.quorum.raft, self.quorum.metadata
        metadata, raft, transport = self.metadata, self.raft, self.quorum.transport
        lead_permission = LeadPermission(raft)
        remote = build_remote(settings, metadata, door, rng)
        self.replication = build_replication(
            settings, self.store, partitions, metadata, lead_permission.may_lead, now_ms, remote
        )
        self.replicas = self.replication.replicas
        self.presence = Presence(
            disconnected_since=transport.disconnected_since,
            state=lambda: metadata.state,
            now=asyncio.get_running_loop().time,
        )
        self.links = build_links(settings, disk, self.quorum, self.replication, self.presence, rng)
        self.operations = ClusterOperations(
            node_id=settings.node_id,
            metadata=metadata,
            quorum=lambda: raft.membership,
            voters=settings.voters,
        )
        self.controller = Controller(
            node_id=settings.node_id,
            driver=raft,
            transport=transport,
            presence=self.presence,
            metadata=metadata,
            voters=settings.voters,
            voter_replace_seconds=settings.voter_replace_ms / 1000,
            now_ms=now_ms,
        )
        self.registration = Registration(
            settings=settings,
            store=self.store,
            metadata=metadata,
            raft=raft,
            transport=transport,
            common_level=self.quorum.status.common_level,
            replicas=self.replicas,
            lead_permission=lead_permission,
            new_uuid=new_uuid,
            public_key=self.links.public_key,
            certified_cluster_id=self.links.cluster_id,
        )
        self.security = Security(settings, metadata, disk, now_ms, self.links.sign)
        own_clients, endpoint = self.security.client_options("chronik-broker"), self.security.own.endpoint
        self.coordinators = build_coordinators(
            settings, metadata, self.replicas, self.client_state, now_ms, new_uuid, own_clients, endpoint
        )
        self._build_background(remote, lead_permission.may_lead, now_ms)
        self._build_server(limits, now_ms, new_uuid)

    def _build_background(
        self, remote: RemoteParts | None, may_lead: Callable[[], bool], now_ms: Callable[[], int]
    ) -> None:
        settings, metadata = self.settings, self.metadata
        self.load_balancer = build_load_balancer(settings, self.quorum, self.controller.is_in_charge)
        self.cleaner = Cleaner(
            store=self.store,
            replicas=self.replicas,
            config=lambda: CleaningConfig.resolve(broker_configs(metadata.state, settings)),
            now_ms=now_ms,
        )
        self.tiering: Tiering | None = None
        if remote is not None:
            self.tiering = Tiering(
                catalog=remote.catalog,
                fetches=remote.fetches,
                logs=remote.logs,
                replicas=self.replicas,
                is_controller=lambda: self.raft.is_leader,
                may_lead=may_lead,
                interval_s=settings.tiering_interval_ms / 1000,
                stats=remote.stats,
                now_ms=now_ms,
                bus=metadata.bus,
            )

    def _build_server(
        self, limits: Limits, now_ms: Callable[[], int], new_uuid: Callable[[], uuid.UUID]
    ) -> None:
        settings, coordinators = self.settings, self.coordinators
        disk, root = self.disk, Path(settings.data_dir)
        self.services = Services(
            settings=settings,
            metadata=self.metadata,
            replicas=self.replicas,
            limits=limits,
            new_uuid=new_uuid,
            quorum=self.quorum.status.of_leader,
            controller_id=self.quorum.status.controller_id,
            presence=self.presence,
            client_state=self.client_state,
            fetch_sessions=FetchSessions(limits, share=self.client_state.fetch_sessions),
            telemetry=Telemetry(share=self.client_state.client_metrics),
            audit=self.security.audit,
            disk_usage=lambda: disk.usage(root),
            now_ms=now_ms,
            fixed_features=FEATURES,
            levels_of=self.quorum.status.levels_of,
            quotas=self.security.quotas,
            groups=coordinators.groups,
            transactions=coordinators.transactions,
            transaction_verifier=coordinators.transaction_verifier,
            schemas=coordinators.schemas,
        )
        self.dispatcher = Dispatcher(all_handlers(), self.services)
        self.listener = KafkaListener(
            dispatcher=self.dispatcher,
            limits=limits,
            configs=self.services.broker_configs,
            pressures=(self.store.wal.pressure, self.store.flusher),
            is_of_a_node=self.links.has_peer_at,
        )

    async def bind(self) -> dict[str, int]:
        """Take the ports of all Kafka listeners; their numbers by name."""
        security = self.security
        return {
            spec.name: await self.listener.bind(spec.host, spec.port, security.door(spec))
            for spec in security.specs
        }

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Resync | BrokerRegistered | BrokerUnregistered | LevelRaised):
            self.listener.end_sessions()
        if isinstance(event, RemovedFromCluster):
            # From now on this node's metadata is out of date: clients must ask other nodes.
            self.services.spawn(self.listener.stop())

    async def start(self) -> None:
        """Start everything except the listeners: load the metadata, dial the peers. The broker is not
        registered yet."""
        for listener in (
            partial(tell_event, lambda: self.metadata.state),
            self.events.on_event,
            self.replicas.on_event,
            self.links.dialed.on_event,
            self.presence.on_event,
            self.registration.on_event,
            self._on_event,
        ):
            self.metadata.bus.listen(listener)
        await self.raft.start()
        if self.settings.peers:
            await self.links.start(self.settings)
        self.controller.start()
        self.load_balancer.start()
        self.store.start()
        self.cleaner.start()
        if self.tiering is not None:
            self.tiering.start()

    def admin_context(self, listener_ports: Mapping[str, int]) -> AdminContext:
        from chronik.admin.audit_writer import AuditWriter
        from chronik.admin.callers import Callers
        from chronik.admin.guard import Guard
        from chronik.admin.http_quotas import HttpQuotas
        from chronik.admin.loopback import Loopback
        from chronik.admin.peers import HttpPeers
        from chronik.admin.watermark_waits import WatermarkWaits
        from chronik.query.gateway import QueryGateway
        from chronik.storage.verifying import Verifier

        loop = asyncio.get_running_loop()
        settings = self.settings
        own = self.security.own
        own_address = (own.reachable_here, listener_ports[own.name])
        peers = HttpPeers(
            settings.node_id,
            lambda: self.metadata.state,
            _peer_tls(settings),
            self.security.node_signature,
        )
        queries = QueryGateway(
            settings,
            self.metadata,
            self.replicas,
            kafka=own_address,
            endpoint=own.endpoint,
            credentials=self.security.query_credentials,
        )
        return AdminContext(
            settings=settings,
            security=self.security,
            guard=Guard.of(settings),
            callers=Callers(settings, self.security),
            audit=AuditWriter(self.services, self.security.audit, peers),
            services=self.services,
            quotas=HttpQuotas(self.services.quotas),
            listener=self.listener,
            store=self.store,
            verifier=Verifier(self.store, self.services.now_ms),
            cleaner=self.cleaner.stats,
            tiering=self.tiering,
            raft_status=self.quorum.status.local,
            load_moves=self.load_balancer.moved,
            replication_lag_seconds=self.replicas.lag_seconds,
            watermark_propagation=self.replication.feed.propagation.seconds,
            events=self.events,
            strangers_refused=self.links.refused,
            refusals=self.security.refusals,
            loopback=Loopback(*own_address, self.security.http_client_options),
            peers=peers,
            watermark_waits=WatermarkWaits(self.metadata.bus),
            membership=self.operations if settings.peers else None,
            loop_time=loop.time,
            started=loop.time(),
            queries=queries,
        )

    async def stop(self) -> None:
        await self.registration.resign()
        await self.listener.stop()
        await self.dispatcher.close()
        await self.services.close()
        await self.security.close()
        await self.coordinators.stop()
        await self.cleaner.stop()
        if self.tiering is not None:
            await self.tiering.stop()
        await self.load_balancer.stop()
        await self.controller.stop()
        await self.registration.stop()
        self.metadata.close()
        await self.replication.stop()
        await self.links.stop()
        await self.quorum.receiver.stop()
        await self.raft.stop()
        await self.store.stop()


def _peer_tls(settings: Settings) -> Callable[[], ssl.SSLContext] | None:
    if settings.http_tls_cert is None:
        return None
    from chronik.admin.tls import client_context
    from chronik.server.reloading import Reloaded

    trusted = (settings.http_tls_ca, settings.http_tls_cert)
    what = "the certificate that the nodes' HTTP ports are believed by"
    return Reloaded(what, trusted, lambda: client_context(*trusted)).current
