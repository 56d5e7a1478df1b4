"""An attacker on the network between the nodes: listens, replays, alters frames, and knows the cluster's
secret.

- A wiretap records what nodes say on the WAL and Raft ports, and now and then repeats, changes, swaps or
  swallows what is on its way. A link that this happened to must end.
- A stranger opens connections and says again what he recorded, in order or not. He may not be welcomed.
- One who knows the secret passes for a known node: he may not be welcomed. In his own name he is, as a node
  that may join: but then he may not change the metadata, neither by a command nor as a leader or candidate.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from chronik.cluster.transport import FORWARD_HEAD, FORWARDED_HEAD, METADATA, QuorumFrame
from chronik.links.handshake import Handshake, LinkIdentity, NodeKey, ProvenPeer
from chronik.metadata.commands import CommandEntry, DeleteTopic, RegisterBroker, encode_entry
from chronik.model import PeerError
from chronik.raft import Membership, Snapshot, encode
from chronik.raft.messages import (
    AppendEntries,
    AppendResponse,
    Heartbeat,
    InstallSnapshot,
    Message,
    TimeoutNow,
    VoteRequest,
)
from chronik.sim.cluster import SimCluster
from chronik.sim.process import Process
from chronik.sim.transport import SimTransport
from chronik.sim.world import SimNode, World

HOST: Final = "10.0.2.1"
STRANGER_ID: Final = 99
TOUCHED_MAX: Final = 6
TOUCH_CHANCE: Final = 0.002
_SHAKEN: Final = 4
"""How many chunks an end has sent when the handshake is complete."""
_CHUNKS_MAX: Final = 40
_CONVERSATIONS_MAX: Final = 60
_PATIENCE_SECONDS: Final = 1.0
_TAG_BYTES: Final = 16


class _Touched(NamedTuple):
    receiver: SimTransport
    how: str


class _Line(asyncio.Protocol):
    """The stranger's end of a connection."""

    def __init__(self) -> None:
        self._heard = bytearray()
        self.is_closed = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True

    def say(self, frame: bytes) -> None:
        assert self.transport is not None
        self.transport.write(len(frame).to_bytes(4, "big") + frame)

    def frames(self) -> list[bytes]:
        """All that came so far."""
        found, place = [], 0
        while place + 4 <= len(self._heard):
            end = place + 4 + int.from_bytes(self._heard[place : place + 4], "big")
            if end > len(self._heard):
                break
            found.append(bytes(self._heard[place + 4 : end]))
            place = end
        return found

    async def hear(self, number: int) -> bytes | None:
        """The frame with this number; None if it does not come."""
        waited = 0.0
        while len(self.frames()) <= number and not self.is_closed and waited < _PATIENCE_SECONDS:
            await asyncio.sleep(0.02)
            waited += 0.02
        heard = self.frames()
        return heard[number] if len(heard) > number else None


class Stranger:
    def __init__(self, world: World, cluster: SimCluster, rng: random.Random, secret: bytes) -> None:
        self._world = world
        self._cluster = cluster
        self._rng = rng
        self._secret = secret
        first = cluster.nodes[0].settings
        self._ports = (first.wal_port, first.raft_port)
        self._said: dict[SimTransport, list[bytes]] = {}
        """What dialers of nodes said, by connection."""
        self._held: dict[SimTransport, bytes] = {}
        self._touched: list[_Touched] = []
        self._tries = 0
        self.is_stopping = False
        self.failures: list[str] = []
        world.network.tap = self.passing

    # --- on the wire -------------------------------------------------------------------------------

    def passing(self, sender: SimTransport, chunk: bytes) -> bytes:
        """The bytes that are carried when a node sends `chunk`."""
        to_node = sender.get_extra_info("peername")[1] in self._ports
        from_node = sender.get_extra_info("sockname")[1] in self._ports
        if HOST in (sender.get_extra_info("peername")[0], sender.process.host) or not (to_node or from_node):
            return chunk
        if to_node:
            self._record(sender, chunk)
        if sender in self._held:
            return chunk + self._held.pop(sender)
        if (
            self.is_stopping
            or len(self._touched) >= TOUCHED_MAX
            or sender.sent_count < _SHAKEN
            or self._rng.random() >= TOUCH_CHANCE
        ):
            return chunk
        return self._touch(sender, chunk)

    def _record(self, sender: SimTransport, chunk: bytes) -> None:
        said = self._said.setdefault(sender, [])
        if len(said) < _CHUNKS_MAX:
            said.append(chunk)
        if len(self._said) > _CONVERSATIONS_MAX:
            del self._said[next(iter(self._said))]

    def _touch(self, sender: SimTransport, chunk: bytes) -> bytes:
        how = self._rng.choice(("repeated", "changed", "swallowed", "swapped"))
        self._touched.append(_Touched(sender.peer, how))
        self._world.trace.fault("stranger", "network", f"{how} {len(chunk)} bytes of {sender}")
        match how:
            case "repeated":
                return chunk + chunk
            case "changed":
                touched = bytearray(chunk)
                place = self._rng.randint(1, min(_TAG_BYTES + 1, len(chunk) - 4))
                touched[-place] ^= 1 << self._rng.randrange(8)
                return bytes(touched)
            case "swapped":
                self._held[sender] = chunk
        return b""

    def survivors(self) -> list[str]:
        """Links that stayed open although their frames were altered."""
        return [
            f"a link stays open though something was {how} on it: {receiver}"
            for receiver, how in self._touched
            if receiver.process.alive and not (receiver.is_over or receiver.is_closing())
        ]

    # --- at the door -------------------------------------------------------------------------------

    async def work(self) -> None:
        """Attack the ports until told to stop."""
        while not self.is_stopping:
            await asyncio.sleep(0.05 + 0.3 * self._rng.random())
            serving = self._cluster.serving()
            if serving:
                attempt = self._rng.choice(
                    (self._replay, self._replay, self._impersonate, self._intrude, self._usurp)
                )
                await self._try(attempt, self._rng.choice(serving))

    async def _try(self, attempt: Callable[..., object], node: SimNode) -> None:
        line = _Line()
        self._tries += 1
        port = node.settings.wal_port if attempt != self._replay else self._rng.choice(self._ports)
        try:
            async with asyncio.timeout(2 * _PATIENCE_SECONDS):
                await self._world.loop.create_connection(lambda: line, node.host, port)
                await attempt(line, node, port)  # type: ignore[misc]
        except (OSError, TimeoutError):
            pass
        finally:
            if line.transport is not None:
                line.transport.abort()

    async def _replay(self, line: _Line, node: SimNode, port: int) -> None:
        """Replay a recorded conversation of a node with this port, as it was or in another order."""
        fitting = [
            said
            for sender, said in self._said.items()
            if sender.get_extra_info("peername")[1] == port and len(said) > 1
        ]
        if not fitting:
            return
        words = list(self._rng.choice(fitting))
        if self._rng.random() < 0.5:
            first, *rest = words
            words = [first, *self._rng.choices(rest, k=len(rest))]
        assert line.transport is not None
        for word in words:
            line.transport.write(word)
        if await line.hear(1) is not None:
            self.failures.append(f"{node.name} takes a recorded conversation for a node")

    async def _impersonate(self, line: _Line, node: SimNode, port: int) -> None:
        """Claim to be a node that this one knows, with the secret but a key of its own."""
        if node.node is None:
            return
        known = sorted(set(node.node.parts.metadata.state.node_keys) - {node.settings.node_id})
        if not known:
            return
        name = self._rng.choice(known)
        key = self._rng.choice((None, NodeKey(self._rng.randbytes(32))))
        if await self._shake(line, node, LinkIdentity(name, (self._secret,), self._rng.randbytes, key)):
            self.failures.append(f"{node.name} takes a holder of the secret for node {name}")

    async def _enter(self, line: _Line, node: SimNode) -> ProvenPeer | None:
        """Connect with the secret and an unused id, as a node that may join does."""
        key = NodeKey(self._rng.randbytes(32))
        identity = LinkIdentity(STRANGER_ID, (self._secret,), self._rng.randbytes, key)
        return await self._shake(line, node, identity)

    async def _usurp(self, line: _Line, node: SimNode, port: int) -> None:
        """Send messages of a leader or candidate of a term that no member has reached."""
        peer = await self._enter(line, node)
        if peer is None or peer.sealing is None or node.node is None:
            return
        raft = node.node.parts.raft
        if not raft.is_open:
            return
        status = raft.status()
        term, last = status.term + 1_000_000, status.last_index
        common: dict[str, Any] = {"sender": STRANGER_ID, "to": node.settings.node_id, "term": term}
        snapshot = Snapshot(last + 1, term, Membership(voters=(STRANGER_ID,)), b"")
        harm: Message = self._rng.choice(
            (
                AppendEntries(**common, prev_index=status.commit, prev_term=0, commit=status.commit),
                Heartbeat(**common, commit=0, round=0),
                InstallSnapshot(**common, snapshot=snapshot),
                TimeoutNow(**common),
                VoteRequest(**common, last_index=last + 1, last_term=term, transfer=True),
                AppendResponse(**common, index=last),
            )
        )
        question = FORWARD_HEAD.pack(QuorumFrame.QUERY, 1)
        for frame in (bytes([QuorumFrame.MESSAGE]) + encode(harm), question):
            line.say(frame + peer.sealing.tag(frame))
        # Frames of a link are taken in order: after the answer the message was taken, or was not.
        if await line.hear(2) is not None and raft.is_open and raft.status().term >= term:
            self.failures.append(f"{node.name} takes {type(harm).__name__} from a stranger")

    async def _intrude(self, line: _Line, node: SimNode, port: int) -> None:
        """A node that may join may register, and nothing else before it has."""
        peer = await self._enter(line, node)
        if peer is None or peer.sealing is None or peer.opening is None or node.node is None:
            return
        topics = sorted(topic.topic_id for topic in node.node.parts.metadata.state.topics.values())
        harm = self._rng.choice(
            (
                DeleteTopic(topic_id=self._rng.choice(topics) if topics else UUID(int=1)),
                RegisterBroker(broker_id=STRANGER_ID - 1, incarnation=UUID(int=1), endpoints={}),
            )
        )
        kind = self._rng.choice((QuorumFrame.FORWARD, QuorumFrame.ASK))
        frame = FORWARD_HEAD.pack(kind, 1) + encode_entry(CommandEntry(1, self._tries, harm))
        line.say(frame + peer.sealing.tag(frame))
        number = 2  # after the challenge and the welcome
        while (heard := await line.hear(number)) is not None:
            content = peer.opening.opened(memoryview(heard))
            number += 1
            if len(content) >= FORWARDED_HEAD.size and FORWARDED_HEAD.unpack_from(content)[2] >= 0:
                self.failures.append(f"{node.name} lets a stranger write {type(harm).__name__}")

    async def _shake(self, line: _Line, node: SimNode, identity: LinkIdentity) -> ProvenPeer | None:
        """Who is there if this identity was welcomed."""
        shaking = Handshake(identity, dial=(node.settings.node_id, METADATA))
        line.say(msgspec.msgpack.encode(shaking.hello()))
        challenge = await line.hear(0)
        if challenge is None:
            return None
        try:
            line.say(msgspec.msgpack.encode(shaking.received(memoryview(challenge))))
            welcome = await line.hear(1)
            if welcome is None or shaking.peer is None or shaking.peer.opening is None:
                return None
            shaking.received(shaking.peer.opening.opened(memoryview(welcome)))
        except PeerError:
            return None  # another process answers there by now
        return shaking.peer


def start(world: World, cluster: SimCluster, process: Process, secret: bytes) -> Stranger:
    stranger = Stranger(world, cluster, world.rng("stranger"), secret)
    world.loop.spawn(process, stranger.work())
    return stranger
