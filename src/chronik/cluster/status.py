"""How the metadata log stands on this node, as values that people and tools read."""

from __future__ import annotations

import asyncio

import msgspec

from chronik.cluster.load import LoadMeter, NodeLoad
from chronik.cluster.raft_driver import RaftDriver
from chronik.cluster.transport import Carried, ClusterTransport
from chronik.config import Settings
from chronik.metadata.levels import LEVEL_FIRST, OWN_LEVELS, UNREPORTED_LEVELS
from chronik.metadata.store import MetadataStore
from chronik.metrics import WriteStages
from chronik.model import NO_LEADER, NodeId, PeerError, Unavailable
from chronik.raft import RoleName, Status

__all__ = ["ClusterStatus", "MemberStatus", "RaftStatus", "WriteTimes"]


class MemberStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the leader knows about another member."""

    node_id: NodeId
    match_index: int
    """Last entry the follower is known to have."""
    lag_entries: int
    last_contact_ms: int | None = None
    """How long ago it was last heard of."""
    is_voter: bool = True


class WriteTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long writes take from submission until they are applied here. Each value is the upper end of the
    bucket in which that share ends."""

    count: int
    p50: float
    p99: float


class RaftStatus(msgspec.Struct, frozen=True, kw_only=True):
    node_id: NodeId
    role: str
    """leader, follower, candidate, observer (follows the metadata log and does not vote), or single for a
    node that is a cluster by itself."""
    term: int
    leader_id: NodeId
    """-1 while nobody leads."""
    last_log_index: int
    last_committed_index: int
    last_applied_index: int
    last_snapshot_index: int = 0
    """Last entry that the newest snapshot on this node's disk covers; 0 without one."""
    apply_queue_depth: int = 0
    """Entries that are committed and not applied here yet."""
    event_bus_depth: int = 0
    """Events that the slowest subscriber has yet to take."""
    write_ms: dict[str, WriteTimes] = {}
    """How long metadata writes submitted here took, by command."""
    elections: int = 0
    """Elections this node took part in since it started."""
    fast_path: bool = True
    """False when metadata travels on the Raft port's ticks."""
    fast_messages: int = 0
    """Appends and their answers that took the metadata link."""
    fallback_messages: int = 0
    """Appends and their answers that waited for a tick and took the Raft port."""
    waits: int = 0
    """How often a command had to wait here because too much metadata was on its way already."""
    carried: dict[str, Carried] = {}
    """What was sent of them, by link: `metadata` on the replication port, `raft` on the Raft port."""
    followers: tuple[MemberStatus, ...] = ()
    cluster_nodes: tuple[NodeId, ...] = ()
    """Members of the quorum and registered brokers, as this node knows them."""
    level: int = LEVEL_FIRST
    """The cluster's level, as this node has applied it."""
    levels: tuple[int, int] = UNREPORTED_LEVELS
    """The lowest and the highest level that this node's release can work at."""
    load: NodeLoad | None = None
    """What the partitions led by this node carry; only in what is sent to other nodes."""


class ClusterStatus:
    """Asks this node's part of the quorum, or the leader's."""

    def __init__(
        self,
        *,
        settings: Settings,
        raft: RaftDriver,
        transport: ClusterTransport,
        metadata: MetadataStore,
        load: LoadMeter,
    ) -> None:
        self._load = load
        self._settings = settings
        self._raft = raft
        self._transport = transport
        self._metadata = metadata
        self._loop = asyncio.get_running_loop()

    def controller_id(self) -> NodeId:
        leader = self._raft.leader_id
        return leader if leader is not None else self._settings.node_id

    def local(self) -> RaftStatus:
        found = self._raft.status()
        now = self._loop.time()
        followers = tuple(
            MemberStatus(
                node_id=peer,
                match_index=one.match,
                lag_entries=found.last_index - one.match,
                last_contact_ms=int((now - self._transport.last_heard.get(peer, now)) * 1000),
                is_voter=not one.is_learner,
            )
            for peer, one in sorted(found.followers.items())
            if peer != self._settings.node_id
        )
        return RaftStatus(
            node_id=self._settings.node_id,
            role=_role(found) if self._settings.peers else "single",
            term=found.term,
            leader_id=NO_LEADER if found.leader_id is None else found.leader_id,
            last_log_index=found.last_index,
            last_committed_index=found.commit,
            last_applied_index=found.applied,
            last_snapshot_index=self._raft.snapshot_index,
            apply_queue_depth=found.commit - found.applied,
            event_bus_depth=self._metadata.bus.depth,
            write_ms=_write_times(self._metadata.stages),
            elections=self._raft.elections,
            fast_path=not self._settings.disable_metadata_wal,
            fast_messages=self._transport.fast_count,
            fallback_messages=self._transport.fallback_count,
            waits=self._raft.waits + self._transport.waiting.waits,
            carried=self._transport.carried,
            followers=followers,
            cluster_nodes=tuple(sorted({*self._raft.ruling_members, *self._metadata.state.brokers})),
            level=self._metadata.state.level,
            levels=OWN_LEVELS,
        )

    def encoded(self) -> bytes:
        """The status as it is sent to other nodes."""
        return msgspec.msgpack.encode(msgspec.structs.replace(self.local(), load=self._load.report()))

    async def of_leader(self) -> RaftStatus:
        """The same from the leader, who alone knows how far the others are."""
        leader = self._raft.leader_id
        if leader is None:
            raise Unavailable("the cluster has no leader now")
        if leader == self._settings.node_id:
            return self.local()
        return await self.of(leader)

    async def of(self, node_id: NodeId) -> RaftStatus:
        """The same from another node. Raises Unavailable, or PeerError for an answer that is no status."""
        answer = await self._transport.ask_status(node_id)
        if not answer:
            raise Unavailable(f"the metadata log of node {node_id} is not open now")
        try:
            return msgspec.msgpack.decode(answer, type=RaftStatus)
        except ValueError as error:  # UnicodeDecodeError is no DecodeError
            raise PeerError(f"node {node_id} sent an answer that cannot be read") from error

    async def levels_of(self, node_id: NodeId) -> tuple[int, int] | None:
        """The levels that a node can work at, asked now; None if it does not answer."""
        if node_id == self._settings.node_id:
            return OWN_LEVELS
        try:
            return (await self.of(node_id)).levels
        except (Unavailable, PeerError):
            return None

    async def load_of(self, node_id: NodeId) -> NodeLoad | None:
        """What the partitions led by a node carry. Raises Unavailable or PeerError as `of` does."""
        return self._load.report() if node_id == self._settings.node_id else (await self.of(node_id)).load

    async def common_level(self) -> int:
        """The highest level that this node and all that are connected can work at."""
        asked = await asyncio.gather(*map(self.levels_of, self._transport.connected_peers()))
        return min([OWN_LEVELS.high, *(levels[1] for levels in asked if levels is not None)])


def _role(status: Status) -> str:
    is_observer = status.role is RoleName.FOLLOWER and status.node_id in status.membership.learners
    return "observer" if is_observer else status.role.value


def _write_times(stages: WriteStages) -> dict[str, WriteTimes]:
    return {
        command: WriteTimes(
            count=seconds.count,
            p50=round((seconds.quantile(0.5) or 0.0) * 1000, 3),
            p99=round((seconds.quantile(0.99) or 0.0) * 1000, 3),
        )
        for command, seconds in sorted(stages.by_command.items())
    }
