"""The WAL and Raft ports: frames of strangers, and of somebody who knows the secret and talks nonsense.

What a node with the secret says on purpose is believed: it may lead, vote and change the metadata.
So open links get damaged frames, frames of wrong ids, epochs and terms, frames twice and out of order, and
commands of which only some kinds are well-formed: none deposes the node or changes what others rest on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final
from uuid import UUID

import msgspec

from chronik.cluster.transport import QuorumFrame
from chronik.links import frames
from chronik.links.frames import FrameType, LogPosition, Start
from chronik.links.handshake import PROTOCOL, Challenge, Hello, Proof, Welcome
from chronik.metadata import commands as c
from chronik.metadata.commands import FORMAT_VERSION
from chronik.raft import encode
from chronik.raft import messages as raft
from chronik.raft.entries import Entry, EntryKind, Membership, Snapshot
from tests.fuzz.inputs import Input, Piece
from tests.fuzz.records_door import hostile_batch
from tests.fuzz.typed_bodies import TypedBodies
from tests.fuzz.values import damaged, integer, text

NODE_ID: Final = 1
PURPOSES: Final = {"wal": ("data", "metadata"), "raft": ("raft",)}
COMMANDS: Final = (
    c.Noop,
    c.ChangePartition,
    c.Reassign,
    c.AddPartitions,
    c.SetRemoteLog,
    c.PutCredential,
    c.RemoveCredential,
    c.AddAcls,
    c.RemoveAcls,
    c.PutToken,
    c.RemoveToken,
    c.RemoveApiKey,
)
"""Kinds that are handed on well-formed; the rest `file_readers` applies to a state of its own."""
MESSAGE, FORWARD, FORWARDED, ASK, QUERY, ANSWER = QuorumFrame


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def inputs(pick: random.Random, topic_ids: list[UUID]) -> Iterator[Input]:
    while True:
        port = pick.choice(("wal", "wal", "raft"))
        yield _stranger(pick, port) if pick.random() < 0.4 else _peer(pick, port, topic_ids)


# --- before the handshake ---------------------------------------------------------------------------


def _stranger(pick: random.Random, port: str) -> Input:
    said = [_said(pick) for _ in range(pick.choice((1, 1, 2, 4)))]
    data = b"".join(framed(each) for each in said)
    data = damaged(pick, data) if pick.random() < 0.3 else data
    data = pick.randbytes(pick.choice((1, 4, 100))) if pick.random() < 0.1 else data
    pieces = tuple(Piece(number, data) for number in range(pick.choice((1, 1, 3))))
    return Input(what="stranger", port=port, pieces=pieces)


def _said(pick: random.Random) -> bytes:
    nonce = pick.randbytes(pick.choice((32, 32, 32, 0, 31, 3_000)))
    purpose = pick.choice(("data", "metadata", "raft", "", "x" * 300))
    node_id = pick.choice((2, 3, NODE_ID, 0, -1, 2**31, 2**62))
    to = pick.choice((NODE_ID, NODE_ID, NODE_ID, 2, -1))
    hello = Hello(pick.choice((PROTOCOL, PROTOCOL, "x")), node_id, to, purpose, nonce)
    body = msgspec.msgpack.encode(
        pick.choice((hello, hello, hello, Challenge(node_id, nonce, nonce), Proof(nonce), Welcome()))
    )
    if pick.random() < 0.15:
        body = pick.choice(
            (b"\x81\xa4type\xa5hello", b"\xdf\xff\xff\xff\xff", b"\x91" * 3000, b"\xc1", body[:5])
        )
    return damaged(pick, body) if pick.random() < 0.3 else body


# --- after it ---------------------------------------------------------------------------------------


def _peer(pick: random.Random, port: str, topic_ids: list[UUID]) -> Input:
    purpose = pick.choice(PURPOSES[port]) if pick.random() < 0.95 else pick.choice(("x", "raft", "data"))
    make = _replication if purpose == "data" else _metadata
    said = [make(pick, topic_ids) for _ in range(pick.choice((1, 3, 10, 30)))]
    if pick.random() < 0.3:
        said += pick.sample(said, len(said))  # again, in another order
    data = b"".join(framed(each or b"\x00") for each in said)
    if purpose == "data" and pick.random() < 0.1:
        data = damaged(pick, data)  # of a metadata link this could make a message that is believed
    login = (pick.choice((2, 2, 2, 3, 77, 2**31 - 1)), purpose)
    return Input(what=f"{purpose} link", port=port, pieces=(Piece(0, data),), login=login)


def _replication(pick: random.Random, topic_ids: list[UUID]) -> bytes:
    topic = pick.choice(topic_ids).bytes if pick.random() < 0.8 else pick.randbytes(16)
    type_ = pick.choice(list(FrameType))
    head = frames.head(
        type_, topic, pick.choice((0, 0, 1, -1, 2**31 - 1)), pick.choice((0, 0, 1, -1, 2**31 - 1))
    )
    offset, other = integer(pick, 64), integer(pick, 64)
    match type_:
        case FrameType.OPEN:
            body = frames.encode_opening(integer(pick, 32))
        case FrameType.STATE:
            body = frames.encode_position(
                LogPosition(offset, other, [(integer(pick, 32), offset)] * pick.choice((0, 1, 50)))
            )
        case FrameType.START:
            body = frames.encode_start(Start(offset, pick.random() < 0.5))
        case FrameType.DATA:
            body = frames._DATA.pack(offset, other, 0) + hostile_batch(pick, may_be_large=False)
        case _:
            body = frames._BOUNDS.pack(offset, other) + pick.choice((b"", bytes(8), pick.randbytes(8)))
    frame = head + body
    if pick.random() < 0.3:
        frame = damaged(pick, frame)
    return bytes([pick.randrange(8, 256)]) + frame[1:] if pick.random() < 0.05 else frame


def _metadata(pick: random.Random, topic_ids: list[UUID]) -> bytes:
    kind = pick.choice(
        (0, MESSAGE, MESSAGE, MESSAGE, FORWARD, FORWARDED, ASK, QUERY, ANSWER, pick.randrange(256))
    )
    number = pick.choice((0, 1, 2, 2**64 - 1)).to_bytes(8, "big")
    match kind:
        case 1:
            return bytes([MESSAGE]) + _raft(pick)
        case 2 | 4 if pick.random() < 0.7:
            return bytes([kind]) + number + _command(pick, topic_ids)
        case 2 | 4:
            return (
                bytes([kind])
                + number
                + pick.choice((b"", b"\x00", b"\x01", b"\x01\x90", b"\xff", text(pick).encode()))
            )
        case 3:
            return bytes([kind]) + number + pick.randbytes(pick.choice((0, 9, 10))) + text(pick).encode()
        case _:
            return bytes([kind]) + number + pick.randbytes(pick.choice((0, 1, 40)))


def _command(pick: random.Random, topic_ids: list[UUID]) -> bytes:
    """An entry of the metadata log that a node hands on to the leader."""
    made = TypedBodies(pick, in_msgpack=True)
    some = [made.value(pick.choice(COMMANDS)) for _ in range(pick.choice((1, 1, 1, 3)))]
    for one in some:
        if "topic_id" in one and pick.random() < 0.5:
            one["topic_id"] = str(pick.choice(topic_ids))
    command = some[0] if len(some) == 1 else {"type": "batch", "commands": some}
    version = FORMAT_VERSION if pick.random() < 0.95 else pick.randrange(256)
    entry = [pick.choice((2, 1, -1, 2**63)), pick.choice((0, 1, 1, 2**63)), command]
    body = bytes((version,)) + msgspec.msgpack.encode(entry)
    return damaged(pick, body, start=1) if pick.random() < 0.3 else body


def _members(pick: random.Random) -> Membership:
    return Membership(voters=(1, 2, pick.choice((3, -1, 2**62))), learners=(4,))


def _raft(pick: random.Random) -> bytes:
    """A message of an old term, in somebody else's name, or damaged until it is no message."""
    sender, to = pick.choice((2, 2, 3, NODE_ID, -1)), pick.choice((NODE_ID, NODE_ID, 2))
    about = {"sender": sender, "to": to, "term": pick.choice((0, 0, -1, -(2**63)))}
    number = integer(pick, 63)
    made = pick.choice(
        (
            raft.PreVoteRequest(**about, last_index=number, last_term=number),
            raft.VoteRequest(**about, last_index=number, last_term=number, transfer=True),
            raft.VoteResponse(**about, granted=True),
            raft.AppendEntries(**about, prev_index=number, prev_term=0, commit=number),
            raft.AppendEntries(
                **about,
                prev_index=number,
                prev_term=0,
                commit=number,
                entries=tuple(
                    Entry(integer(pick, 63), number + n, pick.choice(list(EntryKind)), pick.randbytes(20))
                    for n in range(pick.choice((1, 5, 300)))
                ),
            ),
            raft.InstallSnapshot(**about, snapshot=Snapshot(number, 0, _members(pick), pick.randbytes(100))),
            raft.AppendResponse(**about, index=number, rejected=pick.random() < 0.5, hint_index=-number),
            raft.Heartbeat(**about, commit=number, round=number, sent=float("nan"), lease=-1.0),
            raft.HeartbeatResponse(**about, round=number, question=float("inf")),
            raft.InstallSnapshotResponse(**about, index=number),
            raft.TimeoutNow(**about),
            raft.Fence(**about),
        )
    )
    body = encode(made)
    return body[: pick.randrange(len(body))] + b"\xc1" if pick.random() < 0.4 else body
