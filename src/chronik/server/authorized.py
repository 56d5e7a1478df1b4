"""The operations that responses list as authorized (KIP-430).

Without ACLs everything that makes sense on a resource is allowed.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CLUSTER_OPERATIONS", "GROUP_OPERATIONS", "NOT_REQUESTED", "TOPIC_OPERATIONS"]

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = 3, 4, 5, 6, 7, 8
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 9, 10, 11, 12


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


NOT_REQUESTED: Final = -(2**31)
TOPIC_OPERATIONS: Final = _bits(
    _READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS
)
CLUSTER_OPERATIONS: Final = _bits(
    _CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE
)
GROUP_OPERATIONS: Final = _bits(_READ, _DELETE, _DESCRIBE)
