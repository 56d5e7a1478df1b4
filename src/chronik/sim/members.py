"""An operator who changes the members of a cluster that works and breaks: one more, even shares, one fewer.

Asks like people do, through some node that serves, and asks another one when that node dies, stops or takes
too long. A node is switched off as soon as the cluster says that it can be.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from chronik.cluster.operations import ClusterOperations
from chronik.config import Settings
from chronik.model import ChronikError, ErrorCode, NodeId, RequestError
from chronik.sim.workload import Recorder

if TYPE_CHECKING:
    from chronik.sim.cluster import SimCluster

_HEALED_SECONDS_MAX: Final = 90.0
"""How long a change may take when nothing is broken any more."""
_PATIENCE_SECONDS: Final = (2.0, 30.0)

_Wish: TypeAlias = Callable[[ClusterOperations], Awaitable[Any]]


class Operator:
    def __init__(self, cluster: SimCluster, recorder: Recorder, rng: random.Random) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._rng = rng

    async def work(self, settings: Settings) -> None:
        """Let one node in, spread the replicas, take one out: as far as this comes before everything ends."""
        cluster, rng, recorder = self._cluster, self._rng, self._recorder
        await asyncio.sleep(2.0 * rng.random())
        if recorder.stopping:
            return
        own = next(peer for peer in settings.peers if peer.id == settings.node_id)
        entry = {"node_id": own.id, "kafka": str(own.kafka), "wal": str(own.wal), "raft": str(own.raft)}
        await self._insist("add a node", lambda node: node.add_node(entry))
        newcomer = cluster.join(settings)
        cluster.trace.fault("node joins", newcomer.name, "joins")
        await cluster.comes(lambda: newcomer.is_serving or recorder.stopping, 5.0)
        if rng.random() < 0.7 and not recorder.stopping:
            await self._ask("rebalance", lambda node: node.rebalance())
        await asyncio.sleep(rng.random())
        if recorder.stopping or rng.random() < 0.2:
            return
        victim = rng.choice(cluster.nodes)
        cluster.leaving = victim
        cluster.trace.fault("node leaves", victim.name, "is to leave")
        await self._insist("remove a node", lambda node: node.remove_node(victim.settings.node_id))
        await cluster.retire(victim, is_killed=rng.random() < 0.5)

    async def change_voters(self) -> None:
        """Say of one node after the other that it should vote, or should not."""
        rng, recorder = self._rng, self._recorder
        while not recorder.stopping:
            await asyncio.sleep(rng.random())
            node = rng.choice(self._cluster.nodes)
            number, is_up = node.settings.node_id, rng.random() < 0.5
            self._cluster.trace.fault("vote given" if is_up else "vote taken", node.name, "by an operator")
            await self._ask("promote a node" if is_up else "demote a node", partial(_vote, number, is_up))

    async def keep_even(self) -> None:
        """Have replicas and leaders spread over machines again and again, the last time for sure."""
        while not self._recorder.stopping:
            await asyncio.sleep(0.5 + 2.0 * self._rng.random())
            await self._ask("rebalance", lambda node: node.rebalance())
        await self._insist("rebalance", lambda node: node.rebalance())

    async def _insist(self, what: str, wish: _Wish) -> None:
        """Ask until it is done. Commands say where things should be in the end: asking twice does no harm."""
        deadline: float | None = None
        while not await self._ask(what, wish):
            if deadline is None and self._recorder.stopping:
                deadline = self._cluster.loop.now + _HEALED_SECONDS_MAX
            if deadline is not None and self._cluster.loop.now > deadline:
                raise TimeoutError(f"{_HEALED_SECONDS_MAX:.0f} s after everything was healed: cannot {what}")
            await asyncio.sleep(0.2)

    async def _ask(self, what: str, wish: _Wish) -> bool:
        """Ask one node; False if nobody knows whether it was done."""
        serving = self._cluster.serving()
        if not serving:
            return False
        node = self._rng.choice(serving)
        assert node.node is not None
        request = node.serve(_answer(wish, node.node.parts.operations))
        process = node.process
        assert process is not None
        await self._cluster.comes(
            lambda: request.done() or not process.alive, self._rng.choice(_PATIENCE_SECONDS)
        )
        if not request.done():
            request.cancel()
            return False
        error = None if request.cancelled() else request.result()
        self._cluster.trace.tell(node.name, f"was asked to {what}: {error or 'done'}")
        return not request.cancelled() and (error is None or _is_done_already(error))


def _vote(node_id: NodeId, is_up: bool, operations: ClusterOperations) -> Awaitable[str]:
    return operations.promote(node_id) if is_up else operations.demote(node_id)


async def _answer(wish: _Wish, operations: ClusterOperations) -> ChronikError | None:
    try:
        await wish(operations)
    except ChronikError as error:
        return error
    return None


def _is_done_already(error: ChronikError) -> bool:
    return isinstance(error, RequestError) and error.code in (
        ErrorCode.duplicate_broker_registration,
        ErrorCode.broker_id_not_registered,
    )
