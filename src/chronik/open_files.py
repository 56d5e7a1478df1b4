"""File descriptors: a process takes all it may have, and no kind of connection may use up those of another.

A node that runs out of descriptors can neither write its segments nor answer `/health`, so the number of
connections follows from the system's limit: half for Kafka clients, an eighth for HTTP, a sixteenth for
strangers on each of the two ports between nodes, an eighth for segment files. What is left, an eighth at
least, is for peers and other files.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Final

__all__ = ["FileBudget", "raise_file_limit"]

LIMIT_MAX: Final = 1024 * 1024
"""Some systems allow a billion: no node needs that, and children that close all of them take minutes."""
HTTP_CONNECTIONS_MAX: Final = 500
SEGMENTS_MAX: Final = 65_536
STRANGERS_MAX: Final = 512
"""More than the links that a hundred peers open at the same moment."""


def raise_file_limit() -> tuple[int, int]:
    """Take what the system allows; the limit as it was and as it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return soft, _limit()


def _limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LIMIT_MAX if soft == resource.RLIM_INFINITY else min(soft, LIMIT_MAX)


@dataclass(frozen=True, slots=True)
class FileBudget:
    """How a process divides `limit` descriptors."""

    limit: int

    @staticmethod
    def of_process() -> FileBudget:
        return FileBudget(_limit())

    @property
    def kafka_connections(self) -> int:
        return max(1, self.limit // 2)

    @property
    def http_connections(self) -> int:
        return min(HTTP_CONNECTIONS_MAX, max(4, self.limit // 8))

    def segments(self, wanted: int | None) -> int:
        """Segment files that are open at a time; what is `wanted` unless that is more than our share."""
        share = min(SEGMENTS_MAX, max(8, self.limit // 8))
        return share if wanted is None else min(wanted, share)

    @property
    def strangers(self) -> int:
        """Connections to one port between nodes on which nobody has proven to be a node yet."""
        return min(STRANGERS_MAX, max(4, self.limit // 16))
