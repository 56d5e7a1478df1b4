"""Features of a cluster: what each node supports, at which level the cluster is, and raising it (KIP-584)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chronik.client.apis import API_VERSIONS, UPDATE_FEATURES
from chronik.client.cluster import Cluster
from chronik.model import ErrorCode, NodeId, RequestError

__all__ = ["Features", "features_of", "raise_feature"]

_UPGRADE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The features that one node supports, as it says."""

    supported: Mapping[str, tuple[int, int]]
    finalized: Mapping[str, int]


async def features_of(cluster: Cluster, node_id: NodeId) -> Features:
    fields = {"client_software_name": "chronik", "client_software_version": "1"}
    answer = await cluster.retry().run(lambda: cluster.send(node_id, API_VERSIONS, fields))
    return Features(
        supported={one.name: (one.min_version, one.max_version) for one in answer.supported_features},
        finalized={one.name: one.max_version_level for one in answer.finalized_features},
    )


async def raise_feature(cluster: Cluster, name: str, level: int, *, validate_only: bool = False) -> None:
    """Raises RequestError with the node's sentence if the cluster cannot be at this level."""
    update = {"feature": name, "max_version_level": level, "upgrade_type": _UPGRADE}
    fields = {
        "timeout": cluster.options.request_timeout_ms,
        "feature_updates": [update],
        "validate_only": validate_only,
    }
    answer = await cluster.retry().run(lambda: cluster.send_controller(UPDATE_FEATURES, fields))
    if answer.error_code != ErrorCode.none:
        raise RequestError(answer.error_code, answer.error_message)
