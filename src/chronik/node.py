"""The composition root: builds a node out of its parts, starts and stops it.

Nothing here decides anything; it says what is made of what, and in which order things begin and end.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from chronik.admin.context import AdminContext
from chronik.admin.counts import EventCounts
from chronik.admin.door import HttpDoor
from chronik.cluster.member import ClusterMember
from chronik.config import Settings
from chronik.metadata.store import MetadataStore
from chronik.metadata.topic_config import TopicConfig
from chronik.model import Limits
from chronik.replication.cleaning import Cleaner, CleaningConfig
from chronik.server.coordination import Coordination
from chronik.server.dispatch import Dispatcher
from chronik.server.handlers import all_handlers
from chronik.server.listener import KafkaListener
from chronik.server.services import FeatureRange, Services, broker_configs
from chronik.storage.disk import Disk, RealDisk
from chronik.storage.recovery import open_store
from chronik.storage.store import LogStore, StoreOptions
from chronik.storage.wal import PROFILES, WalOptions, WalProfile

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


def store_options(settings: Settings) -> StoreOptions:
    profile = PROFILES[settings.wal_profile]
    if settings.fsync_batch_timeout_ms is not None:
        profile = WalProfile(interval_ms=settings.fsync_batch_timeout_ms, eager_below=0)
    return StoreOptions(
        wal=WalOptions(
            profile=profile, queue_depth=settings.wal_queue_depth, file_bytes=settings.wal_file_bytes
        )
    )


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
    ) -> None:
        """`with_http=False` leaves out what needs threads and real sockets (the simulator)."""
        self.settings = settings
        self._given_disk = disk
        self._now_ms = now_ms
        self._rng = rng or random.SystemRandom()
        self.kafka_port = 0
        self.http_port = 0
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
        disk = self._given_disk or RealDisk(asyncio.get_running_loop())
        parts = _Parts(self.settings, disk, self._now_ms, self._rng)
        self._parts = parts
        try:
            if self._http is not None:
                self.http_port = self._http.bind(self.settings)
            self.kafka_port = await parts.listener.bind(self.settings.bind, self.settings.kafka_port)
            await parts.start()
            await self._register(parts)
            parts.coordination.start()
            await parts.listener.serve()
            if self._http is not None:
                if not self._http.is_open:
                    await self._http.open(partial(parts.admin_context, self.kafka_port))
                self._http.serve()
        except BaseException:
            await self.stop()
            raise

    async def _register(self, parts: _Parts) -> None:
        """Take part in the cluster. While that has to wait, HTTP says so instead of being silent."""
        if self._http is None:
            await parts.member.register(self.kafka_port, self.http_port)
            return
        registering = asyncio.ensure_future(parts.member.register(self.kafka_port, self.http_port))
        try:
            await asyncio.wait((registering,), timeout=SILENCE_SECONDS_MAX)
            if not registering.done():
                await self._http.open(partial(parts.admin_context, self.kafka_port))
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
    """Everything a running node is made of."""

    def __init__(self, settings: Settings, disk: Disk, now_ms: Callable[[], int], rng: random.Random) -> None:
        root = Path(settings.data_dir)
        limits = replace(
            Limits(), frame_bytes_max=settings.frame_bytes_max, connections_max=settings.connections_max
        )
        self.disk = disk
        self.events = EventCounts()
        self._rng = rng
        self.store: LogStore
        self.store, self.recovery = open_store(disk, root, store_options(settings))
        new_uuid = partial(_new_uuid, rng)
        self.member = ClusterMember(
            settings=settings,
            store=self.store,
            topic_config=lambda topic: _topic_config(self.metadata, settings, topic),
            now_ms=now_ms,
            new_uuid=new_uuid,
            rng=rng,
        )
        self.member.on_removed(self._leave)
        self.metadata = self.member.metadata
        self.replicas = self.member.replicas
        self.coordination = Coordination(
            settings=settings,
            metadata=self.metadata,
            replicas=self.replicas,
            now_ms=now_ms,
            new_uuid=new_uuid,
        )
        self.cleaner = Cleaner(
            store=self.store,
            replicas=self.replicas,
            config=lambda: CleaningConfig.resolve(broker_configs(self.metadata.state, settings)),
            now_ms=now_ms,
        )
        self.services = Services(
            settings=settings,
            metadata=self.metadata,
            replicas=self.replicas,
            limits=limits,
            new_uuid=new_uuid,
            quorum=self.member.leader_status,
            controller_id=self.member.controller_id,
            presence=self.member.presence,
            disk_usage=lambda: disk.usage(root),
            now_ms=now_ms,
            features=FEATURES,
            groups=self.coordination.groups,
            transactions=self.coordination.transactions,
            gate=self.coordination.gate,
        )
        self.dispatcher = Dispatcher(all_handlers(), self.services)
        self.listener = KafkaListener(
            dispatcher=self.dispatcher, limits=limits, pressures=(self.store.wal, self.store.flusher)
        )

    def _leave(self) -> None:
        """The cluster took this node out: no client may take it for one that knows."""
        self.services.spawn(self.listener.stop())

    async def start(self) -> None:
        """Everything but the doors: metadata from disk, links to peers."""
        self.metadata.bus.listen(self.events.on_event)
        await self.member.start()
        self.store.start()
        self.cleaner.start()

    def admin_context(self, kafka_port: int) -> AdminContext:
        from chronik.admin.loopback import Loopback
        from chronik.admin.peers import Peers
        from chronik.query.gateway import QueryGateway

        loop = asyncio.get_running_loop()
        settings = self.services.settings
        return AdminContext(
            settings=settings,
            services=self.services,
            listener=self.listener,
            store=self.store,
            cleaner=self.cleaner.stats,
            raft_status=self.member.status,
            replication_lag_seconds=self.member.replication_lag_seconds,
            watermark_propagation=self.member.replication.leader.propagation.seconds,
            events=self.events,
            loopback=Loopback(settings.reachable_here, kafka_port),
            peers=Peers(settings.node_id, lambda: self.metadata.state, _peer_tls(settings)),
            membership=self.member.operations if settings.peers else None,
            loop_time=loop.time,
            started=loop.time(),
            queries=QueryGateway(settings, self.metadata, self.replicas, kafka_port=kafka_port),
        )

    async def stop(self) -> None:
        await self.member.resign()
        await self.listener.stop()
        await self.dispatcher.close()
        await self.services.close()
        await self.coordination.stop()
        await self.cleaner.stop()
        await self.member.stop()
        await self.store.stop()


def _peer_tls(settings: Settings) -> ssl.SSLContext | None:
    if settings.http_tls_cert is None:
        return None
    from chronik.admin.tls import client_context

    return client_context(settings.http_tls_ca, settings.http_tls_cert)


def _topic_config(metadata: MetadataStore, settings: Settings, topic: str) -> TopicConfig:
    found = metadata.state.topics.get(topic)
    return TopicConfig.resolve(found.configs if found else {}, *broker_configs(metadata.state, settings))
