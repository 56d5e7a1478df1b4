"""A connection that remembers how requests begin answers with the same bytes as one that does not.

Two nodes get the same requests over connections of their own: one for a client that may do everything, one
for a principal with ACLs. The connections of one node remember nothing. Requests come one by one or several
at once; faults, batches for an I/O thread, quotas, and changes of topics and ACLs come between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chronik.metadata.commands import AddAcls, CreateTopic, DeleteTopic, RemoveAcls, SetQuota
from chronik.model import ErrorCode, RequestError, StorageError, TopicPartition
from chronik.records.compression import Compression
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.replication import admission
from chronik.replication.partition import ACKS_ALL, Partition
from chronik.security.acls import AclBinding, Operation, ResourceType
from chronik.security.quotas import PRODUCER_RATE
from chronik.server import connection
from chronik.server.access import Authorizer
from chronik.server.known_requests import KnownRequests
from chronik.server.throttling import throttle
from chronik.wire.api import ApiKey
from chronik.wire.schema import encode_request
from tests.unit.server.live import Live, live
from tests.unit.server.test_known_requests import Wire

NOW_MS = 1_700_000_000_000
NAMES = ("plain", "compacted", "small", "stamped")
CONFIGS = {
    "compacted": {"cleanup.policy": "compact"},
    "small": {"max.message.bytes": "200"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
}
FAULTS = ("not leader", "fails later", "never acked", "disk", "bug")
LOOP_RECORDS_MAX = 10
"""So that a batch of twenty records is one for an I/O thread, where its records are looked at."""
MAY_WRITE = tuple(
    AclBinding(
        resource_type=ResourceType.TOPIC,
        resource_name=name,
        principal="User:alice",
        operation=Operation.WRITE,
    )
    for name in ("plain", "compacted")
)
ANY_CLIENT = (("client-id", None),)


@dataclasses.dataclass(frozen=True)
class Asked:
    """One produce request."""

    version: int
    topic: str
    partition: int
    acks: int
    kind: str
    transactional_id: str | None
    more: tuple[tuple[str, int, str], ...] = ()
    """Further batches of the request: topic, partition and kind of each."""


topics = st.sampled_from(("plain", "plain", "plain", "compacted", "small", "stamped", "nowhere"))
partitions = st.sampled_from((0, 0, 0, 1, 9))
batches = (
    *(
        "one",
        "one",
        "one",
        "many",
        "many",
        "many without a key",
        "nokey",
        "harmed",
        "gzip",
        "zstd",
        "sequence",
        "sequence",
    ),
    *("transactional", "empty", "null", "twice", "old"),
)
asked = st.builds(
    Asked,
    version=st.sampled_from((1, 3, 4, 7, 8, 9, 11, 12, 13)),
    topic=topics,
    partition=partitions,
    acks=st.sampled_from((ACKS_ALL, ACKS_ALL, 1, 0, 5)),
    kind=st.sampled_from((*batches, "cut", "tagged")),
    transactional_id=st.sampled_from((None, None, None, "x")),
    more=st.one_of(
        st.just(()),
        st.just(()),
        st.lists(st.tuples(topics, partitions, st.sampled_from(batches)), min_size=1, max_size=3).map(tuple),
    ),
)


@dataclasses.dataclass(frozen=True)
class Step:
    """Requests of one connection, sent `times` times, and what happens to the node before and meanwhile."""

    asked: tuple[Asked, ...]
    times: int = 1
    at_once: bool = False
    """All are sent before the first answer is waited for."""
    principal: str = ""
    fault: str = "none"
    change: str = "none"


steps = st.builds(
    Step,
    asked=st.lists(asked, min_size=1, max_size=3).map(tuple),
    times=st.integers(1, 3),
    at_once=st.booleans(),
    principal=st.sampled_from(("", "", "User:alice")),
    fault=st.sampled_from(("none",) * 8 + FAULTS),
    change=st.sampled_from(("none",) * 6 + ("topic", "grant", "revoke", "quota", "no quota")),
)


def batch_of(kind: str, number: int) -> bytes | None:
    key = None if kind in ("nokey", "many without a key") else b"k"
    count = 2 * LOOP_RECORDS_MAX if kind.startswith("many") else 1
    records = [Record(key=key, value=b"%d" % number, timestamp_ms=NOW_MS)] * count
    match kind:
        case "null":
            return None
        case "empty":
            return b""
        case "gzip" | "zstd":
            return bytes(build_batch(records, compression=Compression[kind.upper()]))
        case "sequence" | "transactional":
            producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": number % 3}
            return bytes(build_batch(records, is_transactional=kind == "transactional", **producer))
        case "twice":
            return bytes(build_batch(records)) * 2
    batch = bytearray(build_batch(records))
    if kind == "harmed":
        batch[-1] ^= 1
    elif kind == "old":
        batch[16] = 1  # the message format
    return bytes(batch)


def frame_of(one: Asked, number: int, ids: dict[str, UUID], client_id: str, timeout_ms: int) -> bytes:
    listed: list[dict[str, Any]] = []
    for name, partition, kind in ((one.topic, one.partition, one.kind), *one.more):
        if not listed or listed[-1]["name"] != name:  # a topic may be named twice in one request
            listed.append({"name": name, "topic_id": ids.get(name, UUID(int=1)), "partition_data": []})
        listed[-1]["partition_data"].append({"index": partition, "records": batch_of(kind, number)})
    fields = {"acks": one.acks, "timeout": timeout_ms, "topic_data": listed}
    if one.version >= 3:
        fields["transactional_id"] = one.transactional_id
    version = max(one.version, 3)
    frame = bytearray(encode_request(ApiKey.PRODUCE, version, number, client_id, fields))
    if one.version < 3:  # the schemas begin with 3: before that there was no transactional id
        at = 4 + 8 + 2 + len(client_id)
        frame[6:8] = one.version.to_bytes(2, "big")
        del frame[at : at + 2 + len(one.transactional_id or "")]
    if one.kind == "cut":
        del frame[-2:]
    elif one.kind == "tagged" and one.version >= 9:
        frame[-1:] = b"\x01\x05\x01x"
    frame[:4] = (len(frame) - 4).to_bytes(4, "big")
    return bytes(frame)


class Forgetful(KnownRequests):
    """What a connection knows that remembers nothing."""

    __slots__ = ()

    def recall(self, *_: object) -> None:
        return None

    def remember(self, *_: object) -> None:
        return None


class Remembering(KnownRequests):
    """Counts what was recalled."""

    __slots__ = ("recalled",)

    def __init__(self) -> None:
        super().__init__()
        self.recalled = 0

    def recall(self, *given: Any) -> Any:
        found = super().recall(*given)
        self.recalled += found is not None
        return found


def planted(fault: str) -> AbstractContextManager[object]:
    def refused(*_: object) -> None:
        raise RequestError(ErrorCode.not_leader_or_follower, "planted")

    def later(_partition: Partition, _next: int, _acks: int, callback: Callable[..., None]) -> None:
        asyncio.get_running_loop().call_soon(callback, RequestError(ErrorCode.kafka_storage_error, "gone"))

    acked = Partition.when_acked

    def never(one: Partition, next_offset: int, acks: int, callback: Callable[..., None]) -> None:
        if acks != ACKS_ALL:
            acked(one, next_offset, acks, callback)

    match fault:
        case "not leader":
            return mock.patch.object(Partition, "require_leader", refused)
        case "fails later":
            return mock.patch.object(Partition, "when_acked", later)
        case "never acked":
            return mock.patch.object(Partition, "when_acked", never)
        case "disk":
            return mock.patch.object(Partition, "append", side_effect=StorageError("planted"))
        case "bug":
            return mock.patch.object(Partition, "append", side_effect=KeyError("planted"))
    return contextlib.nullcontext()


class Side:
    """A node with topics of its own for each example, and a connection to it for each principal."""

    def __init__(self, node: Live, remembers: bool) -> None:
        self._node = node
        self._metadata = node.node.parts.metadata
        self._authorizer = Authorizer(self._metadata)
        self._remembers = remembers
        self._wires: dict[str, Wire] = {}
        self._new_ids: Iterator[UUID] = iter(())
        self._client_id = ""
        self._ids: dict[str, UUID] = {}
        self.recalled = 0

    async def begin(self, example: int) -> None:
        """Nothing that an earlier example left is seen by the next one."""
        self.close()
        for topic in [self._metadata.state.topics[name] for name in self._ids]:
            await self._metadata.submit(DeleteTopic(topic_id=topic.topic_id))
        self._new_ids = (UUID(int=1_000 * example + number) for number in itertools.count())
        self._client_id = f"client{example:06}"
        self._ids = {}
        for name in NAMES:
            self._ids[name] = await self._create(name)
        await self.change("revoke")
        await self.change("no quota")

    async def _create(self, name: str) -> UUID:
        topic_id, assignments = next(self._new_ids), ((self._node.node.settings.node_id,),) * 2
        configs = CONFIGS.get(name, {})
        await self._metadata.submit(
            CreateTopic(name=name, topic_id=topic_id, assignments=assignments, configs=configs)
        )
        return topic_id

    async def change(self, change: str) -> None:
        match change:
            case "topic":  # requests go on naming the id that it had first
                await self._metadata.submit(
                    DeleteTopic(topic_id=self._metadata.state.topics["small"].topic_id)
                )
                await self._create("small")
            case "grant":
                await self._metadata.submit(AddAcls(bindings=MAY_WRITE))
            case "revoke":
                await self._metadata.submit(RemoveAcls(bindings=MAY_WRITE))
            case "quota" | "no quota":
                rate = 100.0 if change == "quota" else None
                await self._metadata.submit(SetQuota(entity=ANY_CLIENT, values={PRODUCER_RATE: rate}))

    def _wire(self, principal: str) -> Wire:
        wire = self._wires.get(principal)
        if wire is None or wire.is_closing():
            wire = self._wires[principal] = Wire(self._node)
            peer = wire._connection.peer
            peer.known = Remembering() if self._remembers else Forgetful()
            if principal:
                peer.access = self._authorizer.access(principal, peer.peer_host)
        return wire

    async def answers(self, step: Step, first: int) -> tuple[list[bytes], bool]:
        """The frames that were answered, and whether the connection was closed."""
        wire, frames = self._wire(step.principal), []
        timeout_ms = 1 if step.fault == "never acked" else 60_000
        waits_for: list[Asked] = []
        with planted(step.fault):
            for number, one in enumerate(step.asked * step.times, first):
                wire.send(frame_of(one, number, self._ids, self._client_id, timeout_ms))
                waits_for.append(one)
                if not step.at_once:
                    frames += await self._received(wire, waits_for)
                if wire.is_closing():
                    break
            frames += await self._received(wire, waits_for)
            # Where a request closed the connection, others may still wait for their turn: the last place is
            # behind them, and the fault lasts until they are through.
            async with wire._connection.peer.produce_queue.take_place():
                pass
        known = wire._connection.peer.known
        if isinstance(known, Remembering):
            self.recalled, known.recalled = self.recalled + known.recalled, 0
        return frames, wire.is_closing()

    async def _received(self, wire: Wire, waits_for: list[Asked]) -> list[bytes]:
        """The answers to these, up to the end of the connection; all is done then."""
        frames = []
        for _ in range(sum(one.acks != 0 for one in waits_for)):
            if (found := await wire.frame_or_end()) is None:
                break
            # An answer that names the leader tells its port, which is another one for each node.
            frames.append(found.replace(self._node.node.kafka_port.to_bytes(4, "big"), b"port"))
        waits_for.clear()
        assert not await wire.frame_or_end(is_due=False), "an answer that nobody asked for"
        return frames

    async def stored(self) -> dict[TopicPartition, bytes]:
        """The logs of all topics."""
        found = {}
        for tp in (TopicPartition(name, index) for name in NAMES for index in range(2)):
            partition = self._node.node.parts.replicas.leader(tp)
            read = await partition.read(0, 1 << 20, partition.log_end_offset)
            found[tp] = b"".join(read.buffers)
        return found

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()


@pytest.fixture
async def sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Side, Side]]:
    def at_one_moment(*given: Any) -> Any:
        return throttle(*given[:-1], 0.0)

    monkeypatch.setattr(admission, "LOOP_RECORDS_MAX", LOOP_RECORDS_MAX)
    monkeypatch.setattr(connection, "throttle", at_one_moment)  # what is owed does not depend on the clock
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for remembers in (True, False):
            folder = tmp_path / str(remembers)
            folder.mkdir()
            node = await stack.enter_async_context(
                live(folder, now_ms=lambda: NOW_MS, auto_create_topics=False)
            )
            await node.find("x", key_type=1)
            made.append(Side(node, remembers))
            stack.callback(made[-1].close)
        yield made[0], made[1]


EXAMPLES = itertools.count(1)


async def same(one: Side, other: Side, asked: list[Step]) -> None:
    """Both sides answer all steps with the same bytes, and have the same logs afterwards."""
    example, number = next(EXAMPLES), 0
    await one.begin(example)
    await other.begin(example)
    for step in asked:
        await one.change(step.change)
        await other.change(step.change)
        (ours, is_closed), (theirs, is_other_closed) = [
            await side.answers(step, number) for side in (one, other)
        ]
        number += len(step.asked) * step.times
        # What was still on its way when a connection was closed may be lost.
        common = min(len(ours), len(theirs)) if is_closed and is_other_closed else None
        assert (is_closed, ours[:common]) == (is_other_closed, theirs[:common]), step
    assert await one.stored() == await other.stored()


PLAIN = Asked(12, "plain", 0, ACKS_ALL, "one", None)
BY_ID = Asked(13, "small", 0, ACKS_ALL, "one", None)
SEVERAL = dataclasses.replace(BY_ID, more=(("small", 1, "one"), ("plain", 0, "harmed")))
"""Begins as a request for one partition does that is known by now."""
KEYED = dataclasses.replace(PLAIN, topic="compacted")
LARGE = dataclasses.replace(KEYED, kind="many")


@pytest.mark.parametrize(
    "asked",
    [
        [Step((BY_ID,), 2), Step((SEVERAL,), 2), Step((BY_ID,), change="topic"), Step((SEVERAL,))],
        [Step((KEYED,)), Step((LARGE, LARGE, KEYED, PLAIN), 3, at_once=True)],
        [
            Step((PLAIN,), 3, principal="User:alice", change="grant"),
            Step((PLAIN, LARGE), 2, at_once=True, principal="User:alice", change="revoke"),
        ],
        [Step((PLAIN,), 3), Step((PLAIN, LARGE), 3, at_once=True, change="quota"), Step((PLAIN,), 3)],
    ],
    ids=["by id", "for an I/O thread", "ACLs", "quota"],
)
async def test_who_remembers_answers_the_same_in_chosen_cases(
    sides: tuple[Side, Side], asked: list[Step]
) -> None:
    await same(*sides, asked)
    assert sides[0].recalled


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(asked=st.lists(steps, min_size=5, max_size=30))
async def test_who_remembers_answers_the_same(sides: tuple[Side, Side], asked: list[Step]) -> None:
    # Whatever was asked, the last of these is put together from what is known.
    before = sides[0].recalled
    await same(*sides, [*asked, Step((PLAIN,), 3)])
    assert sides[0].recalled > before
