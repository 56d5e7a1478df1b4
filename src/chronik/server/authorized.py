"""The operations that responses list as authorized (KIP-430)."""

from __future__ import annotations

from typing import Final

from chronik.security.acls import CLUSTER_NAME, Operation, ResourceType
from chronik.server.access import Access

__all__ = ["NOT_REQUESTED", "cluster_operations", "group_operations"]

NOT_REQUESTED: Final = -(2**31)


def cluster_operations(access: Access, requested: bool) -> int:
    """None for a principal that may not see the cluster, as in Kafka."""
    if not requested:
        return NOT_REQUESTED
    if not access.on_cluster(Operation.DESCRIBE):
        return 0
    return access.operations(ResourceType.CLUSTER, CLUSTER_NAME)


def group_operations(access: Access, group_id: str, requested: bool) -> int:
    return access.operations(ResourceType.GROUP, group_id) if requested else NOT_REQUESTED
