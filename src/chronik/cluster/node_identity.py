"""What this node proves to others on the links between them: the cluster's secret, and its own key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from chronik.config import ConfigError, Settings
from chronik.links.certificates import NodeTls
from chronik.links.handshake import NO_SECRET, LinkIdentity, NodeKey
from chronik.metadata.state import ClusterState
from chronik.storage.disk import Disk, read_whole, write_atomically

KEY_FILE: Final = "node.key"
KEY_BYTES: Final = 32


def own_key(disk: Disk, root: Path, random_bytes: Callable[[int], bytes]) -> NodeKey:
    """This node's key, drawn once and kept in its data directory. Blocking."""
    path = root / KEY_FILE
    seed = read_whole(disk, path)
    if seed is None or len(seed) != KEY_BYTES:
        seed = random_bytes(KEY_BYTES)
        disk.make_directory(root)
        write_atomically(disk, path, seed)
    return NodeKey(seed)


def link_secrets(settings: Settings) -> tuple[bytes, ...]:
    """The secrets of the links: first the one that this node proves, then others that it accepts."""
    other = settings.cluster_secret_accepted
    proven = NO_SECRET if settings.cluster_secret is None else settings.cluster_secret.encode()
    if other is None:
        return (proven,)
    return proven, NO_SECRET if other == "none" else other.encode()


def link_identity(
    settings: Settings, disk: Disk, state: Callable[[], ClusterState], random_bytes: Callable[[int], bytes]
) -> LinkIdentity:
    secrets = link_secrets(settings)
    key = own_key(disk, Path(settings.data_dir), random_bytes) if any(secrets) and settings.peers else None
    return LinkIdentity(
        settings.node_id,
        secrets,
        random_bytes,
        key,
        lambda node_id: state().node_keys.get(node_id),
        node_tls(settings),
    )


def node_tls(settings: Settings) -> NodeTls | None:
    """TLS of the links; None if it is off. ConfigError if the settings contradict each other."""
    if settings.node_tls_cert is None:
        return None
    if settings.node_tls_ca is None:
        raise ConfigError("node_tls_cert needs node_tls_ca: whose certificates of other nodes are believed")
    tls = NodeTls(
        node_id=settings.node_id,
        cert=settings.node_tls_cert,
        key=settings.node_tls_key,
        ca=settings.node_tls_ca,
        is_required=settings.node_tls == "required",
    )
    if settings.cluster_id not in (None, tls.cluster_id):
        raise ConfigError(
            f"cluster_id is {settings.cluster_id}, but the certificate in {settings.node_tls_cert} is of "
            f"cluster {tls.cluster_id}"
        )
    return tls
