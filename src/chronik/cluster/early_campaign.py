"""Replaces a dead metadata leader sooner than the election time-out would.

A leader whose link broke and that is also silent is taken for dead, and so is one that was silent for longer
(`raft_driver.SILENT_TICKS`) on an open link: its host may have lost power. Then all survivors forget it, so
that they may vote for others, and campaign in turn, so that votes do not split.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from chronik.model import NodeId
from chronik.raft import RaftCore

QUIET_SECONDS: Final = 0.15
"""A leader whose link broke and that is silent for this long (longer than a heartbeat) is taken for dead."""
CAMPAIGN_SECONDS: Final = 0.1
"""The pause between the campaigns of one survivor and the next."""
CAMPAIGNS_MAX: Final = 4
"""How often a survivor campaigns, with growing pauses, before it leaves that to the election time-out."""


class EarlyCampaign:
    def __init__(
        self,
        core: Callable[[], RaftCore | None],
        on_change: Callable[[], None],
        *,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
    ) -> None:
        """`core` is None while the log is not open. `on_change` performs what the core then has ready."""
        self._core = core
        self._on_change = on_change
        self._loop = loop
        self._rng = rng
        self._leader_heard = loop.time()

    def heard_leader(self) -> None:
        """A message of the leader came in. It may be old: only a hint that the leader lives."""
        self._leader_heard = self._loop.time()

    def lost(self, peer: NodeId) -> None:
        """The link to `peer` broke."""
        core = self._core()
        if core is not None and core.leader_id == peer:
            self.leader_is_silent()

    def leader_is_silent(self) -> None:
        """The leader said nothing for too long, though its link is open."""
        core = self._core()
        if core is not None and core.leader_id is not None and not core.is_leader:
            self._forget_if_silent(core.leader_id, core.term)

    def _forget_if_silent(self, leader: NodeId, term: int) -> None:
        core = self._core()
        if core is None or core.leader_id != leader or core.term != term:
            return
        wait = self._leader_heard + QUIET_SECONDS - self._loop.time()
        if wait > 0:
            self._loop.call_later(wait, self._forget_if_silent, leader, term)
            return
        core.forget_leader()
        self._on_change()
        voters = sorted(voter for voter in core.log.membership.voters if voter != leader)
        if core.node_id in voters:
            turn = (voters.index(core.node_id) + term) % len(voters)
            delay = CAMPAIGN_SECONDS * (turn + 0.5 * self._rng.random())
            self._loop.call_later(delay, self._campaign, term, 1)

    def _campaign(self, term: int, attempt: int) -> None:
        """Campaign, and again soon while nobody leads.

        On a busy machine survivors may campaign at the same moment and split the votes, or ask a node that
        has not noticed the death yet. Waiting for the election time-out would then take one to two seconds.
        """
        core = self._core()
        if core is None or core.leader_id is not None:
            return
        if core.term == term or attempt > 1:
            core.campaign()
            self._on_change()
        if attempt < CAMPAIGNS_MAX:
            delay = CAMPAIGN_SECONDS * 2**attempt * (0.5 + self._rng.random())
            self._loop.call_later(delay, self._campaign, term, attempt + 1)
