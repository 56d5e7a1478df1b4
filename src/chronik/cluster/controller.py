"""The controller: the Raft leader's duty to say who is alive, who leads, and who belongs to the quorum.

It acts only while this node leads and has applied an entry of its own term, so that its picture is
complete. What it decides are commands like anybody's; the state machine elects leaders out of the ISR.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from chronik.cluster.lease import LEASE_SECONDS
from chronik.cluster.preferred_leaders import preferred_changes
from chronik.cluster.presence import Presence
from chronik.cluster.raft_driver import RaftDriver
from chronik.cluster.transport import ClusterTransport
from chronik.cluster.voters import quorum_changes
from chronik.log_lines import RepeatingLine
from chronik.metadata.commands import Batch, FenceBroker, RemoveToken
from chronik.metadata.store import MetadataStore
from chronik.model import ChronikError, NodeId, RequestError, Unavailable
from chronik.security.tokens import tokens_to_remove
from chronik.tasks import Tasks

log = logging.getLogger(__name__)
_failed: Final = RepeatingLine(log, logging.WARNING, "controller: %s")

CHECK_SECONDS: Final = 0.1
BUSY_CHECK_SECONDS: Final = 0.02
"""The same while the quorum changes, or a broker that is not fenced has no connection or is silent."""
SILENCE_SECONDS_MAX: Final = 1.8
"""A broker that is connected but silent for this long is fenced. Its host may have lost power, which nobody
sees otherwise: with `CHECK_SECONDS` and the commit, its partitions have leaders within two seconds."""
DEAD_SECONDS_MAX: Final = 0.2
"""A broker whose process has ended is fenced this long after its last connection broke."""
CUT_OFF_SECONDS_MAX: Final = 1.6
"""A broker that is cut off, and may be alive, is fenced this long after it was last heard. Its lease began
before that, or an earlier controller granted it (`Lease.former_start_max`), so it has expired even where its
clock is slower."""
ANSWER_SECONDS_MAX: Final = 0.4
"""A new controller has asked every broker for a sign of life, and gives it this long to answer."""
BALANCE_SECONDS: Final = 5.0
TOKEN_CHECK_SECONDS: Final = 10.0
TOKENS_REMOVED_MAX: Final = 1_000
"""Expired delegation tokens that one entry of the metadata log removes."""


def is_gone(
    *, now: float, heard: float, asked: float, disconnected_since: float | None, is_dead: bool
) -> bool:
    """Whether a node no longer serves, so that others may lead in its place. Pure.

    `heard` is when it last said something to this controller, or when an earlier one can have granted it its
    last lease if that is later. `asked` is when this controller took over. `disconnected_since` is when its
    last connection broke, None while there is one. `is_dead` says that its process is known to have ended.
    """
    if disconnected_since is not None and is_dead:
        return now - disconnected_since >= DEAD_SECONDS_MAX
    silence_max = SILENCE_SECONDS_MAX if disconnected_since is None else CUT_OFF_SECONDS_MAX
    return now - heard >= silence_max and now - asked >= ANSWER_SECONDS_MAX


class Controller:
    def __init__(
        self,
        *,
        node_id: NodeId,
        driver: RaftDriver,
        transport: ClusterTransport,
        presence: Presence,
        metadata: MetadataStore,
        voters: int,
        voter_replace_seconds: float,
        now_ms: Callable[[], int],
    ) -> None:
        """`voters` is how many are wanted; one that is gone for `voter_replace_seconds` is replaced."""
        self._voters = voters
        self._voter_replace_seconds = voter_replace_seconds
        self._fenced_since: dict[NodeId, float] = {}
        """Since when this controller has found a voter fenced or not registered."""
        self._outside: dict[NodeId, float] = {}
        """When each broker was last found outside the quorum. It gets no heartbeats there, so it cannot be
        heard."""
        self._is_aligning = False
        """Whether the last check changed the quorum: there may be more to change."""
        self._node_id = node_id
        self._driver = driver
        self._transport = transport
        self._presence = presence
        self._metadata = metadata
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._tokens_checked = -TOKEN_CHECK_SECONDS
        self._tasks = Tasks("controller")
        self._leading_since: float | None = None
        self._term = 0
        self._stable_since = self._loop.time()
        self.fence_count = 0

    def start(self) -> None:
        self._tasks.spawn(self._run(), "looking after the brokers")

    async def stop(self) -> None:
        await self._tasks.close()

    async def _run(self) -> None:
        while True:
            is_busy = self._is_aligning or self._misses_somebody()
            await asyncio.sleep(BUSY_CHECK_SECONDS if is_busy else CHECK_SECONDS)
            if not self.is_in_charge():
                self._leading_since = None
                self._is_aligning = False
                continue
            term = self._driver.core.term
            if self._leading_since is None or self._term != term:
                log.info("node %d is the controller, term %d", self._node_id, term)
                self._leading_since = self._stable_since = self._loop.time()
                self._fenced_since.clear()
                self._outside.clear()
                self._term = term
            try:
                await self._look()
            except ChronikError as error:
                _failed(str(error), error)

    def is_in_charge(self) -> bool:
        return self._driver.is_leader and self._driver.applied_term == self._driver.core.term

    async def _look(self) -> None:
        """Fence brokers that are gone. A broker that comes back asks to be unfenced itself: only it knows its
        incarnation.

        There is no await between the check and the proposal, so no lease can begin in between.
        """
        commands: list[FenceBroker] = []
        members = self._driver.members
        self._outside.update(
            (one, self._loop.time()) for one in self._metadata.state.brokers if one not in members
        )
        for broker in list(self._metadata.state.brokers.values()):
            alive = self._is_alive(broker.broker_id)
            if not alive and not broker.fenced:
                log.warning("node %d is gone: fencing it", broker.broker_id)
                self.fence_count += 1
                commands.append(FenceBroker(broker_id=broker.broker_id, broker_epoch=broker.epoch))
        if commands:
            self._stable_since = self._loop.time()
            await self._metadata.submit(Batch(commands=tuple(commands)), timeout_s=5.0)
        self._align_quorum()
        if self._loop.time() - self._stable_since > BALANCE_SECONDS:
            self._stable_since = self._loop.time()
            await self.balance()
        if self._loop.time() - self._tokens_checked >= TOKEN_CHECK_SECONDS:
            self._tokens_checked = self._loop.time()
            await self._remove_expired_tokens()

    def _is_alive(self, broker_id: NodeId) -> bool:
        if broker_id == self._node_id:
            return True
        now = self._loop.time()
        return not is_gone(
            now=now,
            heard=self._heard(broker_id),
            asked=self._leading_since or now,
            disconnected_since=self._transport.disconnected_since(broker_id),
            is_dead=self._presence.is_dead(broker_id),
        )

    def _heard(self, broker_id: NodeId) -> float:
        """The latest moment from which a broker may hold a lease.

        One that was let into the quorum counts as heard then: many that join at once wait for that longer
        than a broker may be silent.
        """
        return max(
            self._transport.last_heard.get(broker_id, 0.0),
            self._driver.lease.former_start_max(self._term, otherwise=self._loop.time()),
            self._outside.get(broker_id, 0.0),
        )

    def _misses_somebody(self) -> bool:
        """Whether a broker that is not fenced has no connection, or is silent and about to be fenced."""
        leads = self._leading_since is not None
        oldest = self._loop.time() - LEASE_SECONDS
        return any(
            not broker.fenced
            and broker.broker_id != self._node_id
            and (
                self._transport.disconnected_since(broker.broker_id) is not None
                or (leads and self._heard(broker.broker_id) < oldest)
            )
            for broker in self._metadata.state.brokers.values()
        )

    def _align_quorum(self) -> None:
        """Make one change at a time. Registered nodes become observers (learners), as many of them voters as
        are wanted; removed nodes leave."""
        status = self._driver.status()
        if status.is_config_pending or status.transferee is not None:
            return
        self._is_aligning = False
        gone = self._gone_for_good(status.membership.voters)
        for change in quorum_changes(
            self._metadata.state, status.membership, wanted=self._voters, gone=gone, leader=self._node_id
        ):
            try:
                self._driver.propose_config(change)
            except (Unavailable, RequestError) as error:
                # It lags or is not connected: the next change need not wait for it.
                log.debug("node %d: %s is not possible yet: %s", change.node_id, change.kind.value, error)
                continue
            log.info("node %d: %s", change.node_id, change.kind.value.replace("_", " "))
            self._is_aligning = True
            return

    def _gone_for_good(self, voters: Iterable[NodeId]) -> set[NodeId]:
        now, is_alive = self._loop.time(), self._metadata.state.is_alive
        before = self._fenced_since
        self._fenced_since = {node: before.get(node, now) for node in voters if not is_alive(node)}
        replace_seconds = self._voter_replace_seconds
        return {node for node, since in self._fenced_since.items() if now - since >= replace_seconds}

    async def balance(self) -> int:
        """Give leadership back to preferred replicas that are in sync. Returns how many moved."""
        changes = preferred_changes(self._metadata.state)
        if changes:
            log.info("%d partitions go back to their preferred leaders", len(changes))
            await self._metadata.submit(Batch(commands=tuple(changes)), timeout_s=5.0)
        return len(changes)

    async def _remove_expired_tokens(self) -> None:
        """Tokens that nobody can use any more would otherwise count against the limits for ever."""
        tokens = self._metadata.state.security.tokens.values()
        expired = tokens_to_remove(tokens, self._now_ms(), TOKENS_REMOVED_MAX)
        if expired:
            log.info("%d delegation tokens expired and are removed", len(expired))
            removals = tuple(RemoveToken(token_id=token_id) for token_id in expired)
            await self._metadata.submit(Batch(commands=removals), timeout_s=5.0)
