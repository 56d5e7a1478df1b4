"""The shards of one machine: which nodes it runs, and where they keep what.

A shard is a whole node with an id, ports and a data directory of its own (`shard-N`), one per core. Shards of
a machine share its rack, so that replicas of a partition go to other machines while there are any. Clients
bootstrap at the first shard's port and are told of all shards: they ask the right one by themselves, and no
byte goes from shard to shard.

Without `[[peers]]` the shards are a cluster by themselves, with the next ids and ports each. With `[[peers]]`
the shards of this machine are the entries with the host and the rack of the node that `node_id` names.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from chronik.config import Settings, table
from chronik.config_file import Address, Peer
from chronik.local.layout import (
    CONFIG_NAME,
    SHARDS,
    ClusterLayout,
    FirstPorts,
    LayoutError,
    machine_of,
    peer_at,
)
from chronik.model import NodeId

__all__ = ["holds_shards", "shard_count", "shard_layout"]

SHARDS_MAX: Final = 256
_OWN: Final = frozenset(
    {"data_dir", "node_id", "kafka_port", "http_port", "wal_port", "raft_port", "advertise", "rack", "shards"}
)
"""What each shard has of its own; the file says it in `[[peers]]`."""
_DIVIDED: Final = (
    "memory_bytes_max",
    "search_memory_bytes_max",
    "sql_memory_bytes_max",
    "sql_columns_bytes_max",
    "client_state_bytes_max",
    "cleaner_bytes_per_second",
)
"""What is meant for the whole machine: each shard gets its share."""


def shard_count(text: str, cores: int | None = None) -> int:
    """`auto` is one shard a core that this process may use."""
    if text == "auto":
        return min(SHARDS_MAX, cores or len(os.sched_getaffinity(0)))
    if not text.isdecimal() or not 1 <= int(text) <= SHARDS_MAX:
        raise LayoutError(f"--shards: {text} is neither auto nor a number from 1 to {SHARDS_MAX}")
    return int(text)


def holds_shards(data_dir: Path) -> bool:
    return (data_dir / CONFIG_NAME).exists() and SHARDS in ClusterLayout.read(data_dir).settings


def shard_layout(
    settings: Settings, origins: Mapping[str, str], count: int
) -> tuple[ClusterLayout, list[NodeId]]:
    """The cluster that the shards belong to, and which of its nodes are shards of this machine."""
    folder = settings.data_dir
    if (folder / "wal").exists():
        raise LayoutError(
            f"{folder} holds the data of a single node: start shards in another directory and copy the topics"
        )
    known = ClusterLayout.read(folder) if holds_shards(folder) else None
    if settings.peers:
        peers: Sequence[Peer] = settings.peers
        own = next(peer for peer in peers if peer.id == settings.node_id)
        ids = [peer.id for peer in peers if machine_of(peer) == machine_of(own)]
    else:
        peers = known.peers if known is not None else _peers(settings, count)
        ids = [peer.id for peer in peers]
    if len(ids) != count:
        where = "[[peers]] lists" if settings.peers else f"{folder} holds"
        raise LayoutError(f"{where} {len(ids)} shards of this machine, not {count}: say --shards {len(ids)}")
    values = _values(settings, origins, count)
    if settings.cluster_secret is None:
        made = known or ClusterLayout.new(folder, 1, FirstPorts())
        values["cluster_secret"] = made.settings["cluster_secret"]
    return ClusterLayout(folder=folder, peers=tuple(peers), settings=values), ids


def _peers(settings: Settings, count: int) -> tuple[Peer, ...]:
    ports = FirstPorts(
        kafka=settings.kafka_port, wal=settings.wal_port, raft=settings.raft_port, http=settings.http_port
    )
    if 0 in (ports.kafka, ports.wal, ports.raft, ports.http):
        raise LayoutError("shards need ports that stay the same: port 0 is for single nodes")
    rack = settings.rack or socket.gethostname()
    advertised = settings.advertised(kafka_port=ports.kafka)
    found = []
    for number in range(1, count + 1):
        peer = peer_at(number, ports, rack, host=settings.reachable_here)
        kafka = Address(advertised.host, (advertised.port or ports.kafka) + number - 1)
        found.append(replace(peer, id=settings.node_id + number - 1, kafka=kafka))
    return tuple(found)


def _values(settings: Settings, origins: Mapping[str, str], count: int) -> dict[str, object]:
    """What was set in a file or by a flag; variables reach the shards as they are."""
    values: dict[str, object] = {}
    for name in table():
        if name not in _OWN and origins[name] != "default" and not origins[name].startswith("environment"):
            value = getattr(settings, name)
            values[name] = value.resolve() if isinstance(value, Path) else value
    for name in _DIVIDED:
        if (whole := getattr(settings, name)) is not None:
            values[name] = max(table()[name].rule.minimum or 1, whole // count)
    values[SHARDS] = str(count)
    return values
