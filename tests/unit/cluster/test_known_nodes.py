"""Whose Raft messages a node takes: a message of a leader can replace all metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, cast
from uuid import UUID

import pytest

from chronik.cluster.known_nodes import KnownNodes
from chronik.metadata.commands import AdmitNode, RegisterBroker, RemoveNode
from chronik.metadata.state import ClusterState
from chronik.model import NodeId, PeerError, Unavailable
from chronik.raft.messages import AppendEntries, Message, TimeoutNow

VOTER, BROKER, CONFIGURED, REMOVED, REMOVED_VOTER, NEW, STRANGER = 2, 3, 4, 5, 6, 7, 99


class Told(NamedTuple):
    last_applied_index: int
    cluster_nodes: tuple[NodeId, ...]


class Quorum:
    ruling_members = (1, VOTER, REMOVED_VOTER)
    leader_id: NodeId | None = VOTER
    term = 5
    applied_index = 10


class World:
    def __init__(self, answers: dict[NodeId, Told | Exception] | None = None) -> None:
        self.quorum = Quorum()
        self.state = ClusterState()
        for number, node_id in enumerate((BROKER, REMOVED, REMOVED_VOTER)):
            self.state.apply(
                RegisterBroker(broker_id=node_id, incarnation=UUID(int=node_id), endpoints={}), number + 1
            )
        self.state.apply(RemoveNode(broker_id=REMOVED), 4)
        self.state.apply(RemoveNode(broker_id=REMOVED_VOTER), 5)
        self.answers = answers or {}
        self.asked: list[NodeId] = []
        self.known = KnownNodes(
            configured=(1, CONFIGURED, REMOVED),
            quorum=self.quorum,
            state=lambda: self.state,
            connected=lambda: sorted(self.answers),
            ask=self.ask,
        )

    async def ask(self, node_id: NodeId) -> Any:
        self.asked.append(node_id)
        answer = self.answers[node_id]
        if isinstance(answer, Exception):
            raise answer
        return cast(Any, answer)

    def admits(self, sender: NodeId) -> bool:
        return self.known.admits(append(sender))

    async def admits_later(self, sender: NodeId) -> bool:
        """Whether it takes the second message: after the first, others were asked."""
        assert not self.admits(sender)
        await self.known._tasks.finished()
        return self.admits(sender)


def append(sender: NodeId, term: int = 6) -> Message:
    return AppendEntries(sender=sender, to=1, term=term, prev_index=0, prev_term=0, commit=0)


def in_loop(check: Callable[[World], bool], world: World | None = None) -> bool:
    async def main() -> bool:
        made = world or World()
        found = check(made)
        await made.known.stop()
        return found

    return asyncio.run(main())


@pytest.mark.parametrize("sender", [VOTER, BROKER, CONFIGURED])
def test_nodes_of_the_cluster_are_listened_to(sender: NodeId) -> None:
    assert in_loop(lambda world: world.admits(sender))


@pytest.mark.parametrize("sender", [STRANGER, REMOVED])
def test_strangers_and_removed_nodes_are_not(sender: NodeId) -> None:
    """A removed node is named in `peers` of others still, and its key and certificate are good."""
    assert not in_loop(lambda world: world.admits(sender))


def test_a_removed_node_that_the_quorum_has_not_let_go_may_lead_it() -> None:
    assert in_loop(lambda world: world.admits(REMOVED_VOTER))


@pytest.mark.parametrize(("sender", "term", "taken"), [(99, 5, True), (99, 6, False), (98, 5, False)])
def test_the_last_word_of_a_leader_that_removed_itself_is_heard(
    sender: NodeId, term: int, taken: bool
) -> None:
    """Its removal may be committed here when it names its successor. It gets no other term for that."""

    def check(world: World) -> bool:
        world.quorum.leader_id = 99
        return world.known.admits(TimeoutNow(sender=sender, to=1, term=term))

    assert in_loop(check) is taken


async def test_a_node_that_was_down_learns_of_the_new_leader_from_those_it_knows() -> None:
    world = World({VOTER: Told(12, (1, VOTER, NEW))})
    assert await world.admits_later(NEW)
    world.quorum.applied_index = 12
    assert world.admits(NEW)
    world.quorum.applied_index = 13
    assert not world.admits(NEW), "from now on its own metadata decides"


async def test_a_node_that_came_back_after_its_removal_is_vouched_for() -> None:
    assert await World({VOTER: Told(10, (1, VOTER, REMOVED))}).admits_later(REMOVED)


@pytest.mark.parametrize(
    "answers",
    [
        {VOTER: Told(9, (1, VOTER, NEW))},  # its metadata is older: it may not know of a removal
        {VOTER: Told(12, (1, VOTER))},
        {VOTER: Unavailable("no answer"), BROKER: PeerError("nonsense")},
        {STRANGER: Told(12, (1, NEW, STRANGER)), REMOVED: Told(12, (NEW,))},
        {},
    ],
)
async def test_who_cannot_vouch(answers: dict[NodeId, Told | Exception]) -> None:
    world = World(answers)
    assert not await world.admits_later(NEW)
    assert STRANGER not in world.asked
    assert REMOVED not in world.asked


async def test_questions_are_asked_once_in_a_while_whoever_sends() -> None:
    world = World({VOTER: Told(12, (1, VOTER))})
    for stranger in range(100, 200):
        assert not world.admits(stranger)
    await world.known._tasks.finished()
    assert world.asked == [VOTER]
    assert not world.known._vouched.keys() & set(range(100, 200))


def test_a_node_that_was_let_in_again_must_register_first() -> None:
    def check(world: World) -> bool:
        world.state.apply(AdmitNode(broker_id=REMOVED), 6)
        return world.admits(REMOVED)

    assert in_loop(check), "it is configured here"
