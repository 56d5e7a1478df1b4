"""Where a local cluster keeps what: one configuration file, one directory a node."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from chronik.config_file import CLUSTER, Address, ConfigFile, Peer, parse_peers
from chronik.model import ChronikError, NodeId
from chronik.private_files import make_private, open_private

CONFIG_NAME: Final = "cluster.toml"
HOST: Final = "127.0.0.1"
REPLICAS_MAX: Final = 3
SHARDS: Final = "shards"
"""The setting by which the file of a machine's shards is known; it says how many there are."""
_PORT_MAX: Final = 65_535
_LISTENERS: Final = ("kafka", "wal", "raft", "http")


class LayoutError(ChronikError):
    """The folder holds no such cluster; the message is one sentence for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPorts:
    """Ports of the first node; each next node takes the next ones."""

    kafka: int = 9092
    wal: int = 9291
    raft: int = 5001
    http: int = 10001


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    """A node's addresses and files."""

    peer: Peer
    folder: Path
    config: Path
    flags: tuple[str, ...] = ()
    """What its command line says beside the file."""

    @property
    def id(self) -> NodeId:
        return self.peer.id

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    @property
    def log_file(self) -> Path:
        return self.folder / "node.log"

    @property
    def pid_file(self) -> Path:
        return self.folder / "node.pid"

    @property
    def joined_file(self) -> Path:
        """Exists if the node joined a cluster that others had founded."""
        return self.folder / "joined"

    def mark_joined(self) -> None:
        make_private(self.folder)
        open_private(self.joined_file, "wb").close()

    def start_arguments(self) -> list[str]:
        data_dir = str(self.data_dir.resolve())
        config = str(self.config.resolve())
        return [
            "start",
            *("--config", config, "--node-id", str(self.id), "--data-dir", data_dir),
            *(("--join", "true") if self.joined_file.exists() else ()),
            *self.flags,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLayout:
    """All nodes of a cluster in one folder."""

    folder: Path
    peers: tuple[Peer, ...]
    settings: Mapping[str, object] = field(default_factory=dict)
    """What the file says beside the peers."""

    @staticmethod
    def new(
        folder: Path, nodes: int, ports: FirstPorts, racks: Sequence[str] = (), /, **settings: object
    ) -> ClusterLayout:
        """A cluster that nobody has started yet, with a secret of its own. Nodes take the racks in turn."""
        replicas = min(nodes, REPLICAS_MAX)
        return ClusterLayout(
            folder=folder,
            peers=tuple(
                peer_at(number, ports, racks[(number - 1) % len(racks)] if racks else None)
                for number in range(1, nodes + 1)
            ),
            settings={
                "cluster_secret": secrets.token_urlsafe(32),
                "replication_factor": replicas,
                "min_insync_replicas": replicas // 2 + 1,
                **settings,
            },
        )

    @staticmethod
    def read(folder: Path) -> ClusterLayout:
        path = folder / CONFIG_NAME
        if not path.exists():
            raise LayoutError(
                f"{folder}: there is no cluster here: `chronik cluster up --data-dir {folder}` makes one"
            )
        file = ConfigFile.read(path)
        values = dict(file.values)
        peers = parse_peers(file, values.pop(CLUSTER, []))
        if not peers:
            raise LayoutError(f"{path} names no [[peers]]")
        return ClusterLayout(folder=folder, peers=peers, settings=values)

    @property
    def path(self) -> Path:
        return self.folder / CONFIG_NAME

    @property
    def nodes(self) -> tuple[LocalNode, ...]:
        return tuple(self._local(peer) for peer in self.peers)

    @property
    def bootstrap(self) -> str:
        return ",".join(str(peer.kafka) for peer in self.peers)

    def node(self, node_id: NodeId) -> LocalNode:
        for peer in self.peers:
            if peer.id == node_id:
                return self._local(peer)
        listed = ", ".join(str(peer.id) for peer in self.peers)
        raise LayoutError(
            f"{self.folder}: there is no node {node_id} in this cluster, its nodes are {listed}"
        )

    def write(self) -> None:
        """Write the file; only its owner may read it, since it holds the secret."""
        make_private(self.folder)
        write_config(self.path, self.settings, self.peers)

    def with_node(self, peer: Peer) -> ClusterLayout:
        return replace(self, peers=(*self.peers, peer))

    def without_node(self, node_id: NodeId) -> ClusterLayout:
        return replace(self, peers=tuple(peer for peer in self.peers if peer.id != node_id))

    def next_peer(self) -> Peer:
        """Addresses for one more node: the next id, the next port of each kind."""
        last = max(self.peers, key=lambda peer: peer.id)
        taken = {port for peer in self.peers for port in ports_of(peer).values()}
        found = {}
        for listener in _LISTENERS:
            address = getattr(last, listener) or last.kafka
            port = (address.port or 0) + 1
            while port in taken:
                port += 1
            taken.add(port)
            found[listener] = Address(address.host, port)
        racks = [peer.rack for peer in self.peers]
        return Peer(id=last.id + 1, **found, rack=min(racks, key=racks.count))

    def _local(self, peer: Peer) -> LocalNode:
        if SHARDS in self.settings:  # each is a single node, whatever the file says
            folder, flags = self.folder / f"shard-{peer.id}", (f"--{SHARDS}", "1")
            return LocalNode(peer=peer, folder=folder, config=self.path, flags=flags)
        return LocalNode(peer=peer, folder=self.folder / f"node{peer.id}", config=self.path)


def machine_of(peer: Peer) -> tuple[str, str]:
    """Nodes of the same host and rack are shards of one machine; a node without a rack is alone."""
    return peer.kafka.host, peer.rack if peer.rack is not None else f"node {peer.id}"


def peer_at(number: int, ports: FirstPorts, rack: str | None = None, *, host: str = HOST) -> Peer:
    addresses = {}
    for listener in _LISTENERS:
        port = getattr(ports, listener) + number - 1
        if port > _PORT_MAX:
            raise LayoutError(f"the {listener} port of node {number} would be {port}, beyond {_PORT_MAX}")
        addresses[listener] = Address(host, port)
    return Peer(id=number, **addresses, rack=rack)


def ports_of(peer: Peer) -> dict[str, int]:
    addresses = {listener: getattr(peer, listener) for listener in _LISTENERS}
    return {name: address.port for name, address in addresses.items() if address is not None}


def write_config(path: Path, settings: Mapping[str, object], peers: Sequence[Peer]) -> None:
    with open_private(path, "wb") as file:
        file.write("".join(_toml(settings, peers)).encode())


def _toml(settings: Mapping[str, object], peers: Sequence[Peer]) -> Iterable[str]:
    for name, value in settings.items():
        yield f"{name} = {_value(value)}\n"
    for peer in peers:
        yield f"\n[[{CLUSTER}]]\nid = {peer.id}\n"
        for listener in _LISTENERS:
            if (address := getattr(peer, listener)) is not None:
                yield f"{listener} = {_value(str(address))}\n"
        if peer.rack is not None:
            yield f"rack = {_value(peer.rack)}\n"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def taken_port(peers: Iterable[Peer]) -> tuple[Peer, str, int] | None:
    """The first port that somebody else listens on."""
    for peer in peers:
        for listener, port in ports_of(peer).items():
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((HOST, port))
                except OSError:
                    return peer, listener, port
    return None
