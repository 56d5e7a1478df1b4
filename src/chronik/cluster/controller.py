"""The controller: the Raft leader's duty to say who is alive, who leads, and who belongs to the quorum.

It acts only while this node leads and has applied an entry of its own term, so that its picture is
complete. What it decides are commands like anybody's; the state machine elects leaders out of the ISR.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from chronik.cluster.leadership import preferred_changes
from chronik.cluster.presence import Presence
from chronik.cluster.raft_driver import RaftDriver
from chronik.cluster.transport import ClusterTransport
from chronik.metadata.commands import Batch, FenceBroker
from chronik.metadata.state import ClusterState
from chronik.metadata.store import MetadataStore
from chronik.model import ChronikError, NodeId, RequestError, Unavailable
from chronik.raft import ChangeKind, ConfigChange, Membership

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 0.1
MISSING_CHECK_SECONDS: Final = 0.02
"""While somebody is missing whom the cluster counts on."""
SILENCE_SECONDS_MAX: Final = 2.0
"""A broker that is connected but says nothing for this long is fenced."""
DEAD_SECONDS_MAX: Final = 0.2
"""A broker whose process is gone is fenced so long after its connections broke."""
LEASE_SECONDS: Final = 1.5
"""A node leads for so long from the start of its lease (`lease`), and is not fenced before that ended."""
CUT_OFF_SECONDS_MAX: Final = 1.6
"""A broker without any connection that may be alive is fenced so long after its last word. Its lease began
before that, or before this node was the controller: it is over, also where its clock is slower."""
BALANCE_SECONDS: Final = 5.0


def quorum_changes(state: ClusterState, membership: Membership) -> list[ConfigChange]:
    """What the quorum's membership lacks to be that of the cluster; pure."""
    removals = [
        ConfigChange(ChangeKind.REMOVE, node)
        for node in membership.members
        if node in state.removed and membership.voters != (node,)
    ]
    additions = [
        ConfigChange(
            ChangeKind.PROMOTE if broker.broker_id in membership.learners else ChangeKind.ADD_LEARNER,
            broker.broker_id,
        )
        for broker in state.live_brokers()
        if broker.broker_id not in membership.voters and not broker.draining
    ]
    return removals + additions


def is_gone(*, now: float, heard: float, gone_since: float | None, is_dead: bool) -> bool:
    """Whether others must lead in a node's place, and may: it serves no more. Pure.

    `heard` is its last word to this controller, or when this one took over. `gone_since` is when its last
    connection broke, None while there is one; `is_dead` says that there is no such process any more.
    """
    if gone_since is None:
        return now - heard >= SILENCE_SECONDS_MAX
    if is_dead:
        return now - gone_since >= DEAD_SECONDS_MAX
    return now - heard >= CUT_OFF_SECONDS_MAX


class Controller:
    def __init__(
        self,
        *,
        node_id: NodeId,
        driver: RaftDriver,
        transport: ClusterTransport,
        presence: Presence,
        metadata: MetadataStore,
    ) -> None:
        self._node_id = node_id
        self._driver = driver
        self._transport = transport
        self._presence = presence
        self._metadata = metadata
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._leading_since: float | None = None
        self._term = 0
        self._stable_since = self._loop.time()
        self.fence_count = 0

    def start(self) -> None:
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(MISSING_CHECK_SECONDS if self._misses_somebody() else CHECK_SECONDS)
            if not self._is_in_charge():
                self._leading_since = None
                continue
            term = self._driver.core.term
            if self._leading_since is None or self._term != term:
                log.info("node %d is the controller, term %d", self._node_id, term)
                self._leading_since = self._stable_since = self._loop.time()
                self._term = term
            try:
                await self._look()
            except ChronikError as error:
                log.warning("controller: %s", error)

    def _is_in_charge(self) -> bool:
        return self._driver.is_leader and self._driver.applied_term == self._driver.core.term

    async def _look(self) -> None:
        """Fence who is gone. Who comes back says so itself: only it knows in which life it is.

        Between the look and the proposal nothing comes in: no lease can begin there.
        """
        commands: list[FenceBroker] = []
        for broker in list(self._metadata.state.brokers.values()):
            alive = self._is_alive(broker.broker_id)
            if not alive and not broker.fenced:
                log.warning("node %d is gone: fenced", broker.broker_id)
                self.fence_count += 1
                commands.append(FenceBroker(broker_id=broker.broker_id, broker_epoch=broker.epoch))
        if commands:
            self._stable_since = self._loop.time()
            await self._metadata.submit(Batch(commands=tuple(commands)), timeout_s=5.0)
        self._align_quorum()
        if self._loop.time() - self._stable_since > BALANCE_SECONDS:
            self._stable_since = self._loop.time()
            await self.balance()

    def _is_alive(self, broker_id: NodeId) -> bool:
        if broker_id == self._node_id:
            return True
        now = self._loop.time()
        # A new controller gives everybody the time to make themselves heard.
        heard = max(self._transport.last_heard.get(broker_id, 0.0), self._leading_since or now)
        return not is_gone(
            now=now,
            heard=heard,
            gone_since=self._transport.gone_since(broker_id),
            is_dead=self._presence.is_dead(broker_id),
        )

    def _misses_somebody(self) -> bool:
        return any(
            not broker.fenced and self._transport.gone_since(broker.broker_id) is not None
            for broker in self._metadata.state.brokers.values()
        )

    def _align_quorum(self) -> None:
        """One step at a time: who was removed goes, who registered first learns, then votes."""
        status = self._driver.status()
        if status.is_config_pending or status.transferee is not None:
            return
        for change in quorum_changes(self._metadata.state, status.membership):
            try:
                self._driver.propose_config(change)
            except (Unavailable, RequestError) as error:
                # It lags, or is not even there: others need not wait for it.
                log.debug("node %d: %s is not possible yet: %s", change.node_id, change.kind.value, error)
                continue
            log.info("node %d: %s", change.node_id, change.kind.value.replace("_", " "))
            return

    async def balance(self) -> int:
        """Give leadership back to preferred replicas that are in sync. Returns how many moved."""
        changes = preferred_changes(self._metadata.state)
        if changes:
            log.info("%d partitions go back to their preferred leaders", len(changes))
            await self._metadata.submit(Batch(commands=tuple(changes)), timeout_s=5.0)
        return len(changes)
