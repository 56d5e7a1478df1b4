"""What a peer may have done in the cluster's name."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from chronik.cluster.known_nodes import KnownNodes
from chronik.cluster.receiver import RaftReceiver
from chronik.cluster.transport import FORWARD_HEAD, FORWARDED_HEAD, QuorumFrame
from chronik.metadata.commands import (
    Command,
    CommandEntry,
    DeleteTopic,
    RegisterBroker,
    RemoveNode,
    encode_entry,
)
from chronik.metadata.state import ClusterState
from chronik.model import ErrorCode, PeerError, Unavailable
from chronik.raft import encode
from chronik.raft.messages import AppendEntries, Message

MEMBER, BROKER, REMOVED, STRANGER = 2, 3, 4, 9


class Raft:
    members = (1, MEMBER)

    def __init__(self) -> None:
        self.proposed: list[bytes] = []
        self.taken: list[Message] = []
        self.room = asyncio.Event()
        self.room.set()

    def step(self, message: Message) -> None:
        self.taken.append(message)

    def has_room(self, data: bytes) -> bool:
        return self.room.is_set()

    def propose(self, data: bytes) -> int:
        self.proposed.append(data)
        return 7

    async def append(self, data: bytes, *, may_ask: bool) -> int:
        await self.room.wait()
        return self.propose(data)


class Link:
    def __init__(self, peer_id: int) -> None:
        self.peer_id = peer_id
        self.outbox = self
        self.sent: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)


class Metadata:
    def __init__(self) -> None:
        self.state = ClusterState()
        for number, node_id in enumerate((BROKER, REMOVED)):
            self.state.apply(registration(node_id), number + 1)
        self.state.apply(RemoveNode(broker_id=REMOVED), 3)


def registration(node_id: int) -> RegisterBroker:
    return RegisterBroker(broker_id=node_id, incarnation=UUID(int=node_id), endpoints={})


def receiver_of(raft: Raft) -> RaftReceiver:
    metadata = Metadata()
    quorum: Any = SimpleNamespace(ruling_members=Raft.members, leader_id=2, term=1, applied_index=3)
    known = KnownNodes(
        configured=(), quorum=quorum, state=lambda: metadata.state, connected=list, ask=cast(Any, None)
    )
    transport: Any = type("Transport", (), {"heard": lambda _self, _link: None})()
    return RaftReceiver(
        node_id=1,
        transport=transport,
        raft=cast(Any, raft),
        metadata=cast(Any, metadata),
        known=known,
        status=lambda: b"",
    )


def submit(peer: int, kind: int, data: bytes) -> tuple[list[bytes], int, int]:
    """What came into the log, and the answer's index and error code."""
    raft, link = Raft(), Link(peer)

    async def main() -> None:
        receiver = receiver_of(raft)
        receiver.on_frame(cast(Any, link), memoryview(FORWARD_HEAD.pack(kind, 5) + data))
        await receiver._tasks.finished()

    asyncio.run(main())
    _, _, index, code = FORWARDED_HEAD.unpack_from(link.sent[0])
    return raft.proposed, index, code


def entry(command: Command) -> bytes:
    return encode_entry(CommandEntry(1, 1, command))


@pytest.mark.parametrize("kind", [QuorumFrame.FORWARD, QuorumFrame.ASK])
class TestMembership:
    deletion = entry(DeleteTopic(topic_id=UUID(int=1)))

    @pytest.mark.parametrize("peer", [MEMBER, BROKER])
    def test_members_change_the_metadata(self, kind: int, peer: int) -> None:
        assert submit(peer, kind, self.deletion) == ([self.deletion], 7, 0)

    def test_others_do_not(self, kind: int) -> None:
        proposed, index, _ = submit(STRANGER, kind, self.deletion)
        assert (proposed, index) == ([], -1)

    def test_a_new_node_may_register_itself(self, kind: int) -> None:
        own = entry(registration(STRANGER))
        assert submit(STRANGER, kind, own) == ([own], 7, 0)

    def test_but_nobody_else(self, kind: int) -> None:
        proposed, index, _ = submit(STRANGER, kind, entry(registration(BROKER)))
        assert (proposed, index) == ([], -1)

    def test_a_removed_node_is_told_so(self, kind: int) -> None:
        proposed, index, code = submit(REMOVED, kind, entry(registration(REMOVED)))
        assert (proposed, index, code) == ([], -1, ErrorCode.invalid_registration)

    def test_what_is_no_command_ends_the_link(self, kind: int) -> None:
        with pytest.raises(PeerError):
            submit(STRANGER, kind, b"\xff")


@pytest.mark.parametrize(
    ("peer", "is_taken"), [(MEMBER, True), (BROKER, True), (STRANGER, False), (REMOVED, False)]
)
async def test_raft_messages_are_taken_from_nodes_of_the_cluster_alone(peer: int, is_taken: bool) -> None:
    """Whoever may send AppendEntries can replace users, ACLs and keys of nodes."""
    raft, message = Raft(), AppendEntries(sender=peer, to=1, term=9, prev_index=0, prev_term=0, commit=0)
    receiver = receiver_of(raft)
    frame = bytes([QuorumFrame.MESSAGE]) + encode(message)
    receiver.on_frame(cast(Any, Link(peer)), memoryview(frame))
    await receiver.stop()
    assert bool(raft.taken) is is_taken


async def test_a_command_that_finds_no_room_waits_and_is_not_refused() -> None:
    """S04: the metadata log has as much to commit as it may."""
    raft, link = Raft(), Link(MEMBER)
    raft.room.clear()
    receiver = receiver_of(raft)
    command = entry(DeleteTopic(topic_id=UUID(int=1)))
    receiver.on_frame(cast(Any, link), memoryview(FORWARD_HEAD.pack(QuorumFrame.FORWARD, 5) + command))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (raft.proposed, link.sent) == ([], [])
    raft.room.set()
    await receiver._tasks.finished()
    assert raft.proposed == [command]
    assert FORWARDED_HEAD.unpack_from(link.sent[0])[1:] == (5, 7, 0)


def test_who_has_no_status_now_answers_with_nothing() -> None:
    """While the metadata log is loaded again after a failed write. The link must not break, and the asker
    must not wait (shards 7)."""
    link, receiver = Link(MEMBER), receiver_of(Raft())

    def status() -> bytes:
        raise Unavailable("the metadata log of this node is not open now")

    receiver._status = status
    receiver.on_frame(cast(Any, link), memoryview(FORWARD_HEAD.pack(QuorumFrame.QUERY, 5)))
    assert link.sent == [FORWARD_HEAD.pack(QuorumFrame.ANSWER, 5)]
