"""Who may connect to the HTTP port when many do.

- Some connections at the end are kept back for probes (`/health`, `/ready`), half of them for all that this
  machine asks.
- One address has half of the others at most. This machine has them all: behind a proxy on it, everybody
  comes from here.
- Where there is no room, the connection that has sent nothing for longest makes some, of the same address
  if that is what has too many. Those for which something is being done stay.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Protocol, TypeVar

from chronik.config import is_loopback

__all__ = ["Admission", "admit", "kept_for_probes"]


class OpenConnection(Protocol):
    """A connection that is open."""

    @property
    def host(self) -> str: ...
    @property
    def is_probe(self) -> bool:
        """Whether it was let in for a probe only."""

    @property
    def waits_for_client(self) -> bool: ...
    @property
    def silent_since(self) -> float: ...


G = TypeVar("G", bound=OpenConnection)


class Admission(enum.Enum):
    ADMITTED = enum.auto()
    PROBE = enum.auto()
    """May ask how the node is, nothing else."""
    REFUSED = enum.auto()


def kept_for_probes(connections_max: int) -> int:
    return max(1, min(8, connections_max // 8))


def admit(connections: Iterable[G], host: str, connections_max: int) -> tuple[Admission, G | None]:
    """Whether a new connection is admitted, and which open one is closed for it."""
    present = list(connections)
    kept = kept_for_probes(connections_max)
    ordinary = [one for one in present if not one.is_probe]
    is_here = is_loopback(host)
    of_host = [one for one in ordinary if one.host == host]
    ordinary_max = connections_max - kept
    has_too_many = not is_here and len(of_host) >= max(1, ordinary_max // 2)
    if len(ordinary) < ordinary_max and not has_too_many:
        return Admission.ADMITTED, None
    quiet = _quietest(of_host if has_too_many else ordinary)
    if quiet is not None:
        return Admission.ADMITTED, quiet
    if is_here and len(present) < connections_max - (kept + 1) // 2:
        return Admission.ADMITTED, None
    if len(present) - len(ordinary) < kept:
        return Admission.PROBE, None
    quiet = _quietest(one for one in present if one.is_probe)
    return (Admission.REFUSED, None) if quiet is None else (Admission.PROBE, quiet)


def _quietest(connections: Iterable[G]) -> G | None:
    idle = [one for one in connections if one.waits_for_client]
    return min(idle, key=lambda one: one.silent_since, default=None)
