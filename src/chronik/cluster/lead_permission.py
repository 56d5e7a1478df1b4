"""Whether this node may serve: it is registered, not removed, and its lease has not expired."""

from __future__ import annotations

import asyncio

from chronik.cluster.lease import LEASE_SECONDS
from chronik.cluster.raft_driver import RaftDriver


class LeadPermission:
    """Asked at every request. The registration tells it how this node stands."""

    __slots__ = ("_is_member", "_lease", "_now", "_raft", "is_removed")

    def __init__(self, raft: RaftDriver) -> None:
        self._raft = raft
        self._lease = raft.lease
        self._now = asyncio.get_running_loop().time
        self._is_member = False
        self.is_removed = False
        """The cluster took this node out while it ran: it serves nobody any more."""

    @property
    def is_registered(self) -> bool:
        """Whether this node registered since it started."""
        return self._is_member or self.is_removed

    def registered(self) -> None:
        self._is_member = True

    def removed(self) -> None:
        self._is_member = False
        self.is_removed = True

    def may_lead(self) -> bool:
        """The only voter needs no lease: nobody leads its partitions before it has agreed. So it can be read
        while its disk is full, though it is no controller then."""
        is_leased = self._now() - self._lease.start < LEASE_SECONDS
        return self._is_member and (is_leased or self._raft.is_only_voter)

    def hears_controller(self) -> bool:
        return self._now() - self._lease.start < LEASE_SECONDS or self._raft.leads_alone
