"""A connection that remembers how requests begin answers with the same bytes as one that does not.

Two nodes get the same requests over one connection each; one of them forgets what it knows before each.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from chronik.metadata.commands import CreateTopic, DeleteTopic
from chronik.model import ErrorCode, RequestError, StorageError
from chronik.records.compression import Compression
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.replication.partition import ACKS_ALL, Partition
from chronik.server.call import KnownRequests
from chronik.wire.api import ApiKey
from chronik.wire.schema import encode_request
from tests.unit.server.live import Live, live
from tests.unit.server.test_known_requests import Wire

NOW_MS = 1_700_000_000_000
IDS = {name: UUID(int=number) for number, name in enumerate(("plain", "compacted", "small", "stamped"), 101)}
CONFIGS = {
    "compacted": {"cleanup.policy": "compact"},
    "small": {"max.message.bytes": "200"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
}
FAULTS = ("not leader", "fails later", "never acked", "disk", "bug")


@dataclasses.dataclass(frozen=True)
class Asked:
    """One produce request, and what happens to the node while it is under way."""

    version: int
    topic: str
    partition: int
    acks: int
    kind: str
    fault: str
    transactional_id: str | None
    more: tuple[tuple[str, int, str], ...] = ()
    """Further batches of the request: topic, partition and kind of each."""


topics = st.sampled_from(("plain", "plain", "plain", "compacted", "small", "stamped", "nowhere"))
partitions = st.sampled_from((0, 0, 0, 1, 9))
batches = (
    *("one", "one", "one", "many", "nokey", "harmed", "gzip", "zstd", "sequence", "sequence"),
    *("transactional", "empty", "null", "twice", "old"),
)
asked = st.builds(
    Asked,
    version=st.sampled_from((1, 3, 4, 7, 8, 9, 11, 12, 13)),
    topic=topics,
    partition=partitions,
    acks=st.sampled_from((ACKS_ALL, ACKS_ALL, 1, 0, 5)),
    kind=st.sampled_from((*batches, "cut", "tagged")),
    fault=st.sampled_from(("none",) * 8 + FAULTS),
    transactional_id=st.sampled_from((None, None, None, "x")),
    more=st.one_of(
        st.just(()),
        st.just(()),
        st.lists(st.tuples(topics, partitions, st.sampled_from(batches)), min_size=1, max_size=3).map(tuple),
    ),
)


def batch_of(kind: str, number: int) -> bytes | None:
    key = None if kind == "nokey" else b"k"
    records = [Record(key=key, value=b"%d" % number, timestamp_ms=NOW_MS)] * (20 if kind == "many" else 1)
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


def frame_of(one: Asked, number: int) -> bytes:
    listed: list[dict[str, Any]] = []
    for name, partition, kind in ((one.topic, one.partition, one.kind), *one.more):
        if not listed or listed[-1]["name"] != name:  # a topic may be named twice in one request
            listed.append({"name": name, "topic_id": IDS.get(name, UUID(int=199)), "partition_data": []})
        listed[-1]["partition_data"].append({"index": partition, "records": batch_of(kind, number)})
    timeout_ms = 1 if one.fault == "never acked" else 60_000
    fields = {"acks": one.acks, "timeout": timeout_ms, "topic_data": listed}
    if one.version >= 3:
        fields["transactional_id"] = one.transactional_id
    version = max(one.version, 3)
    frame = bytearray(encode_request(ApiKey.PRODUCE, version, number, "client", fields))
    if one.version < 3:  # the schemas begin with 3: before that there was no transactional id
        at = 4 + 8 + 2 + len("client")
        frame[6:8] = one.version.to_bytes(2, "big")
        del frame[at : at + 2 + len(one.transactional_id or "")]
    if one.kind == "cut":
        del frame[-2:]
    elif one.kind == "tagged" and one.version >= 9:
        frame[-1:] = b"\x01\x05\x01x"
    frame[:4] = (len(frame) - 4).to_bytes(4, "big")
    return bytes(frame)


class Side:
    """A node, and a connection to it that is opened again when the node closes it."""

    def __init__(self, node: Live, remembers: bool) -> None:
        self._node = node
        self._remembers = remembers
        self._wire = Wire(node)
        self._made = 0

    async def answer(self, one: Asked, number: int) -> bytes | None:
        """The answer's bytes; None if the connection was closed; nothing if none is due."""
        if not self._remembers:
            self._wire._connection.peer.known.forget()
        # Only acks=all has a time-out.
        with self._fault("none" if one.fault == "never acked" and one.acks != ACKS_ALL else one.fault):
            self._wire.send(frame_of(one, number))
            found = await self._wire.frame_or_end(is_due=one.acks != 0)
        if found is None:
            self._wire = Wire(self._node)
            return None
        # An answer that names the leader tells its port, which is another one for each node.
        return found.replace(self._node.node.kafka_port.to_bytes(4, "big"), b"port")

    def _fault(self, fault: str) -> AbstractContextManager[object]:
        def refused(*_: object) -> None:
            raise RequestError(ErrorCode.not_leader_or_follower, "planted")

        def later(_partition: Partition, _next: int, _acks: int, callback: Callable[..., None]) -> None:
            asyncio.get_running_loop().call_soon(
                callback, RequestError(ErrorCode.kafka_storage_error, "gone")
            )

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

    async def change_metadata(self) -> None:
        metadata = self._node.node.parts.metadata
        topic = metadata.state.topics["small"]
        await metadata.submit(DeleteTopic(topic_id=topic.topic_id))
        self._made += 1
        await create(self._node, "small", UUID(int=1000 + self._made))

    def close(self) -> None:
        self._wire.close()


async def create(node: Live, name: str, topic_id: UUID) -> None:
    assignments = ((node.node.settings.node_id,),) * 2
    await node.node.parts.metadata.submit(
        CreateTopic(name=name, topic_id=topic_id, assignments=assignments, configs=CONFIGS.get(name, {}))
    )


@asynccontextmanager
async def side(remembers: bool) -> AsyncIterator[Side]:
    with tempfile.TemporaryDirectory() as folder:
        async with live(Path(folder), now_ms=lambda: NOW_MS, auto_create_topics=False) as node:
            for name, topic_id in IDS.items():
                await create(node, name, topic_id)
            await node.find("x", key_type=1)
            made = Side(node, remembers)
            yield made
            made.close()


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # an example takes two nodes: too dear to shrink
)
@given(st.lists(st.tuples(asked, st.integers(1, 3), st.booleans()), min_size=20, max_size=60))
async def test_who_remembers_answers_the_same(requests: list[tuple[Asked, int, bool]]) -> None:
    recalled = 0
    recall = KnownRequests.recall

    def counted(*given: object) -> object:
        nonlocal recalled
        found = recall(*given)  # type: ignore[arg-type]
        recalled += found is not None
        return found

    with mock.patch.object(KnownRequests, "recall", counted):
        async with side(True) as one, side(False) as other:
            number = 0
            by_id = Asked(13, "small", 0, ACKS_ALL, "one", "none", None)
            # Begins as a request for one partition does that is known by now.
            several = dataclasses.replace(by_id, more=(("small", 1, "one"), ("plain", 0, "harmed")))
            first = [(by_id, 2, False), (several, 2, False), (by_id, 1, True), (several, 1, False)]
            for request, times, changes in [*first, *requests]:
                if changes:
                    await one.change_metadata()
                    await other.change_metadata()
                for _ in range(times):
                    number += 1
                    answers = await one.answer(request, number), await other.answer(request, number)
                    assert answers[0] == answers[1], (request, number)
            # Whatever was asked, the last of these is put together from what is known.
            plain = Asked(12, "plain", 0, ACKS_ALL, "one", "none", None)
            before = recalled
            for _ in range(2):
                number += 1
                assert await one.answer(plain, number) == await other.answer(plain, number)
            assert recalled > before
