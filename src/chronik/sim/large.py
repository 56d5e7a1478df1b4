"""Large clusters: the nodes' real metadata, Raft, leases, registration and controller, without any records.

Of a hundred nodes with fifty thousand partitions only the metadata can be simulated. Partitions are empty
here: a replica is in sync as soon as its leader learns of it. What is measured: virtual time until every
partition has a live leader on every node, and for each node the processor time that its turns really took,
the longest turn, and the bytes that it sent.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

from chronik.assembly import build_quorum
from chronik.cluster.controller import Controller
from chronik.cluster.lead_permission import LeadPermission
from chronik.cluster.node_identity import link_identity
from chronik.cluster.operations import ClusterOperations
from chronik.cluster.peer_links import PeerAddress, PeerLinks
from chronik.cluster.placement import Slot, place
from chronik.cluster.presence import Presence
from chronik.cluster.registration import Registration
from chronik.cluster.transport import METADATA, RAFT
from chronik.config import Address, Peer, Settings
from chronik.links.connections import Acceptor
from chronik.metadata import events as e
from chronik.metadata.commands import CreateTopic
from chronik.metadata.store import MetadataStore
from chronik.model import NodeId, TopicPartition
from chronik.replication.isr import MetadataIsrProposals
from chronik.replication.manager import ReplicaManager
from chronik.replication.partitions import Partitions
from chronik.replication.replica import Replica
from chronik.sim.disk import DiskView, SimDisk
from chronik.sim.loop import EPOCH_MS, SimLoop
from chronik.sim.network import SimNetwork
from chronik.sim.process import Process
from chronik.sim.transport import SimTransport
from chronik.sim.world import World
from chronik.storage.recovery import open_store
from chronik.storage.store import StoreOptions

__all__ = ["LargeCluster", "LeanNode", "Loss", "Spent", "run_large"]

T = TypeVar("T")

VOTERS: Final = 3
PARTITIONS_A_TOPIC: Final = 100
REPLICATION_FACTOR: Final = 3
LATENCY_SECONDS: Final = 0.0005
JITTER_SECONDS: Final = 0.0002
LOOK_SECONDS: Final = 0.005
WAIT_SECONDS_MAX: Final = 60.0
SECONDS_MAX: Final = 3_600.0
STEPS_MAX: Final = 2_000_000_000
TOPICS_AT_ONCE: Final = 20


class Spent(NamedTuple):
    """What a node has used since it started."""

    cpu_seconds: float
    """Real processor time of its turns of the event loop."""
    sent_bytes: int


@dataclass(slots=True)
class _ProcessCosts:
    cpu_seconds: float = 0.0
    longest_turn_seconds: float = 0.0
    sent_bytes: int = 0


class _MeteredLoop(SimLoop):
    """Knows what the turns of each process cost. Nothing in the world depends on it."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._ran: _ProcessCosts | None = None

    def meter(self, process: Process) -> _ProcessCosts:
        meter = _ProcessCosts()
        process.on_turn = partial(self._note, meter)
        return meter

    def _note(self, meter: _ProcessCosts) -> None:
        self._ran = meter

    def _turn(self) -> None:
        self._ran = None
        began = time.thread_time()
        super()._turn()
        if self._ran is not None:
            spent = time.thread_time() - began
            self._ran.cpu_seconds += spent
            self._ran.longest_turn_seconds = max(self._ran.longest_turn_seconds, spent)


class _EmptyPartition:
    """The part of a led partition that ISR proposals read."""

    def __init__(
        self, node_id: NodeId, metadata: MetadataStore, tp: TopicPartition, isr: tuple[NodeId, ...]
    ) -> None:
        """`isr` is proposed."""
        found = metadata.state.partition(tp)
        assert found is not None
        self._node_id = node_id
        self._metadata = metadata
        self.tp = tp
        self.topic_id = metadata.state.topics[tp.topic].topic_id
        self.leader_epoch = found.leader_epoch
        self.pending_isr: tuple[NodeId, ...] | None = isr

    @property
    def is_leader(self) -> bool:
        found = self._metadata.state.partition(self.tp)
        return found is not None and found.leader == self._node_id

    @property
    def isr(self) -> tuple[NodeId, ...]:
        found = self._metadata.state.partition(self.tp)
        return () if found is None else found.isr

    def isr_proposal_settled(self, _isr: tuple[NodeId, ...]) -> None:
        self.pending_isr = None


class _EmptyReplicas:
    """Leads partitions without records: every live replica is in sync, and the leader says so."""

    def __init__(self, node_id: NodeId, metadata: MetadataStore) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self.proposals = MetadataIsrProposals(metadata)
        self._is_active = False

    def activate(self) -> None:
        self._is_active = True

    def on_event(self, event: e.Event) -> None:
        if not self._is_active:
            return
        match event:
            case e.PartitionAssigned() if event.previous is not None:
                self._expand(event.tp)
            case e.LeaderChanged() if event.leader == self._node_id:
                self._expand(event.tp)
            case e.BrokerUnfenced():
                for topic in self._metadata.state.topics.values():
                    for one in topic.partitions:
                        if one.leader == self._node_id and event.broker_id in one.replicas:
                            self._expand(TopicPartition(topic.name, one.partition))
            case _:
                pass

    def _expand(self, tp: TopicPartition) -> None:
        state = self._metadata.state
        found = state.partition(tp)
        if found is None or found.leader != self._node_id:
            return
        isr = tuple(one for one in found.replicas if one in found.isr or state.is_alive(one))
        if isr != found.isr:
            partition = _EmptyPartition(self._node_id, self._metadata, tp, isr)
            self.proposals.propose(cast(Replica, partition), isr)


class LeanNode:
    """A node without records, clients and data links; the rest is real."""

    def __init__(self, world: World, loop: _MeteredLoop, settings: Settings) -> None:
        self.settings = settings
        self.node_id = settings.node_id
        self._rng = world.rng(f"node {settings.node_id}")
        self._loop = loop
        self.process = world.process(f"n{settings.node_id}", settings.bind)
        self.meter = loop.meter(self.process)
        self._view = DiskView(SimDisk(self._rng), self.process, loop, lambda _why: None)
        world.views.append(self._view)
        self.is_registered = False
        self.metadata: MetadataStore
        self.operations: ClusterOperations

    def start(self) -> None:
        self._loop.spawn(self.process, self._live())

    async def _live(self) -> None:
        settings, rng = self.settings, self._rng
        store, _ = open_store(self._view, Path(settings.data_dir), StoreOptions())
        quorum = build_quorum(settings, store, rng, Partitions())
        self.metadata, self.raft, transport = quorum.metadata, quorum.raft, quorum.transport
        metadata, raft = self.metadata, self.raft
        presence = Presence(
            disconnected_since=transport.disconnected_since, state=lambda: metadata.state, now=self._loop.time
        )
        identity = link_identity(settings, self._view, lambda: metadata.state, rng.randbytes)
        links = PeerLinks(
            identity=identity,
            configured={
                peer.id: PeerAddress(
                    (peer.wal.host, peer.wal.port or 0), (peer.raft.host, peer.raft.port or 0)
                )
                for peer in settings.peers
            },
            handlers={RAFT: quorum.receiver, METADATA: quorum.receiver},
            state=lambda: metadata.state,
            quorum=lambda: raft.members,
            on_refused=presence.refused,
            rng=rng,
        )
        ports = Acceptor(identity, {METADATA: quorum.receiver}), Acceptor(identity, {RAFT: quorum.receiver})
        self._held = links, ports
        self.operations = ClusterOperations(
            node_id=self.node_id, metadata=metadata, quorum=lambda: raft.membership, voters=settings.voters
        )
        controller = Controller(
            node_id=self.node_id,
            driver=raft,
            transport=transport,
            presence=presence,
            metadata=metadata,
            voters=settings.voters,
            voter_replace_seconds=settings.voter_replace_ms / 1000,
            now_ms=self._now_ms,
        )
        replicas = _EmptyReplicas(self.node_id, metadata)
        registration = Registration(
            settings=settings,
            store=store,
            metadata=metadata,
            raft=raft,
            transport=transport,
            common_level=quorum.status.common_level,
            replicas=cast(ReplicaManager, replicas),
            lead_permission=LeadPermission(raft),
            new_uuid=lambda: uuid.UUID(int=rng.getrandbits(128), version=4),
        )
        for listener in (replicas.on_event, links.on_event, presence.on_event, registration.on_event):
            metadata.bus.listen(listener)
        await raft.start()
        for port, number in zip(ports, (settings.wal_port, settings.raft_port), strict=True):
            await port.start(settings.bind, number)
        links.start()
        controller.start()
        store.start()
        await registration.register(settings.kafka_port, 0)
        self.is_registered = True

    def _now_ms(self) -> int:
        return EPOCH_MS + int(self._loop.now * 1000)

    def spent(self) -> Spent:
        return Spent(self.meter.cpu_seconds, self.meter.sent_bytes)


class Loss(NamedTuple):
    """What it took until every partition had a live leader again, as every live node sees it."""

    seconds: float
    """Virtual time since the loss."""
    controller: Spent
    others_mean: Spent


class LargeCluster:
    def __init__(self, world: World, loop: _MeteredLoop, nodes: int, racks: int) -> None:
        self._world = world
        self._loop = loop
        self._racks = racks
        self.nodes: list[LeanNode] = []
        world.network = SimNetwork(
            loop,
            world.rng("network"),
            latency_s=LATENCY_SECONDS,
            jitter_s=JITTER_SECONDS,
            fragment_probability=0.0,
        )
        world.network.tap = self._count
        self._meters: dict[Process, _ProcessCosts] = {}
        for _ in range(nodes):
            self._prepare()

    def _count(self, transport: SimTransport, data: bytes) -> bytes:
        meter = self._meters.get(transport.process)
        if meter is not None:
            meter.sent_bytes += len(data)
        return data

    def _prepare(self) -> LeanNode:
        node_id = len(self.nodes) + 1
        voters = [_peer(number) for number in range(1, VOTERS + 1)]
        own = _peer(node_id)
        node = LeanNode(
            self._world,
            self._loop,
            Settings(
                node_id=node_id,
                data_dir=Path("/data"),
                bind=own.kafka.host,
                rack=f"rack-{node_id % self._racks}",
                cluster_id="sim",
                insecure=True,
                join=node_id > VOTERS,
                peers=tuple(voters if node_id <= VOTERS else [*voters, own]),
            ),
        )
        self._meters[node.process] = node.meter
        self.nodes.append(node)
        return node

    # --- what is there -------------------------------------------------------------------------------

    def live(self) -> list[LeanNode]:
        return [node for node in self.nodes if node.process.alive]

    def controller(self) -> LeanNode | None:
        leaders = [node for node in self.live() if node.is_registered and node.raft.is_leader]
        return max(leaders, key=lambda node: node.raft.core.term, default=None)

    def leaders_are_live(self, dead: Iterable[LeanNode]) -> bool:
        """Whether no dead node leads anything, in the eyes of every live node."""
        gone = {node.node_id for node in dead}
        live = self.live()
        if any(node.metadata.state.is_alive(one) for node in live for one in gone):
            return False  # whoever is fenced leads nothing any more: no need to look at each partition
        return all(
            node.metadata.state.is_alive(one.leader)
            for node in live
            for topic in node.metadata.state.topics.values()
            for one in topic.partitions
        )

    async def until(self, holds: Callable[[], bool], seconds_max: float = WAIT_SECONDS_MAX) -> float:
        """Virtual seconds until it holds."""
        began = self._loop.now
        while not holds():
            if self._loop.now - began > seconds_max:
                raise TimeoutError(f"not so within {seconds_max} virtual seconds")
            await asyncio.sleep(LOOK_SECONDS)
        return self._loop.now - began

    async def pause(self, seconds: float) -> None:
        """Let virtual time pass in which nothing happens."""
        await asyncio.sleep(seconds)

    def call(self, node: LeanNode, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._loop.spawn(node.process, work)

    # --- what happens --------------------------------------------------------------------------------

    async def start(self, nodes: Sequence[LeanNode] | None = None) -> float:
        """Virtual seconds until all are registered and hear of each other."""
        started = self.nodes if nodes is None else nodes
        for node in started:
            node.start()
        return await self.until(self._all_know_all)

    def _all_know_all(self) -> bool:
        return all(
            node.is_registered and len(node.metadata.state.live_brokers()) == len(self.live())
            for node in self.live()
        )

    async def create(self, partitions: int) -> float:
        """Virtual seconds until all nodes have the topics."""
        began = self._loop.now
        node = self.nodes[0]
        slots = [Slot(one.node_id, one.settings.rack) for one in self.live()]
        left = partitions
        commands = []
        for number in range(-(-partitions // PARTITIONS_A_TOPIC)):
            count = min(left, PARTITIONS_A_TOPIC)
            left -= count
            placed = place(
                slots, count, min(REPLICATION_FACTOR, len(slots)), start=number * PARTITIONS_A_TOPIC
            )
            commands.append(
                CreateTopic(
                    name=f"topic-{number}", topic_id=uuid.UUID(int=1_000 + number), assignments=placed
                )
            )
        for first in range(0, len(commands), TOPICS_AT_ONCE):
            some = commands[first : first + TOPICS_AT_ONCE]
            await asyncio.gather(*(self.call(node, node.metadata.submit(one)) for one in some))
        count = len(commands)
        await self.until(lambda: all(len(one.metadata.state.topics) == count for one in self.live()))
        return self._loop.now - began

    async def lose(self, gone: Sequence[LeanNode], *, power_lost: bool) -> Loss:
        """These nodes are killed, or their hosts lose power, all at the same moment."""
        for node in gone:
            self._world.bury(node.process, power_lost=power_lost)
        before = {node: node.spent() for node in self.live()}
        seconds = await self.until(lambda: self.leaders_are_live(gone))
        used = {
            node: Spent(now.cpu_seconds - then.cpu_seconds, now.sent_bytes - then.sent_bytes)
            for node, then in before.items()
            for now in [node.spent()]
        }
        controller = self.controller()
        assert controller is not None
        others = [spent for node, spent in used.items() if node is not controller]
        mean = Spent(
            sum(spent.cpu_seconds for spent in others) / len(others),
            sum(spent.sent_bytes for spent in others) // len(others),
        )
        return Loss(seconds, used[controller], mean)

    async def add(self, count: int) -> float:
        """Virtual seconds until so many more nodes belong to the cluster."""
        return await self.start([self._prepare() for _ in range(count)])


def _peer(number: int) -> Peer:
    host = f"10.0.{number // 250}.{number % 250 + 1}"
    return Peer(id=number, kafka=Address(host, 9092), wal=Address(host, 9291), raft=Address(host, 5001))


def run_large(
    work: Callable[[LargeCluster], Coroutine[Any, Any, T]], *, nodes: int, racks: int, seed: int = 1
) -> T:
    """Run `work` with a cluster that has not been started."""
    world = World(seed, loop_type=_MeteredLoop)
    assert isinstance(world.loop, _MeteredLoop)
    cluster = LargeCluster(world, world.loop, nodes, racks)
    return world.run(work(cluster), seconds_max=SECONDS_MAX, steps_max=STEPS_MAX)
