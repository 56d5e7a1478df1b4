"""Produce requests that begin alike are not read again: their clients must not be able to tell."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from chronik.metadata.commands import DeleteTopic
from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.records.reader import Record, read_all_records
from chronik.records.writer import build_batch
from chronik.replication.partition import AckCallback, Partition
from chronik.server.connection import KafkaConnection
from chronik.server.listener import Door
from chronik.storage.disk import RealDisk
from chronik.wire.api import ApiKey
from chronik.wire.schema import decode_response, encode_request
from tests.unit.server.live import Live, live
from tests.unit.storage.support import too_many_files

VERSIONS = (9, 12, 13)


class Wire:
    """A client's end of a connection to the node: what it sends is there at once."""

    def __init__(self, node: Live) -> None:
        self._connection = KafkaConnection(node.node.parts.listener, Door())
        self._received = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self._connection.connection_made(self)  # type: ignore[arg-type]  # as much of a transport as it needs

    def send(self, *frames: bytes) -> None:
        data = memoryview(b"".join(frames))
        while data:
            space = self._connection.get_buffer(-1)
            size = min(len(space), len(data))
            space[:size] = data[:size]
            self._connection.buffer_updated(size)
            data = data[size:]

    async def answer(self, version: int) -> tuple[int, Any]:
        """Correlation id and the answer for the only partition."""
        frame = await self.frame_or_end()
        assert frame is not None
        correlation_id, response = decode_response(ApiKey.PRODUCE, version, frame, 4)
        return correlation_id, response.responses[0].partition_responses[0]

    async def frame_or_end(self, *, is_due: bool = True) -> bytes | None:
        """The next answer, None if the connection was closed; nothing if all is done and none `is_due`."""
        async with asyncio.timeout(60):
            while len(self._received) < 4 or len(self._received) < 4 + self._next_bytes():
                if self._closed:
                    return None
                if not is_due and self._connection.is_idle:
                    return b""
                self._waiter = asyncio.get_running_loop().create_future()
                if is_due:
                    await self._waiter
                else:
                    await asyncio.sleep(0)
        end = 4 + self._next_bytes()
        frame = bytes(self._received[:end])
        del self._received[:end]
        return frame

    @property
    def knows_requests(self) -> bool:
        return bool(self._connection.peer.known._known)

    def _next_bytes(self) -> int:
        return int.from_bytes(self._received[:4], "big")

    def write(self, data: bytes) -> None:
        self._received += data
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def writelines(self, buffers: list[bytes]) -> None:
        self.write(b"".join(buffers))

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def is_closing(self) -> bool:
        return self._closed

    def pause_reading(self) -> None:
        """What is sent is there anyway: these tests decide themselves when a client goes on."""

    resume_reading = pause_reading

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._connection.connection_lost(None)
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    abort = close


def request(
    node: Live,
    number: int,
    version: int,
    value: bytes,
    *,
    acks: int = 1,
    topic: str = "t",
    sequence: int | None = None,
    timeout_ms: int = 60_000,
) -> bytes:
    found = node.node.parts.metadata.state.topics.get(topic)
    record = Record(key=None, value=value, timestamp_ms=node.node.parts.services.now_ms())
    batch = bytearray(
        build_batch([record])
        if sequence is None
        else build_batch([record], producer_id=7, producer_epoch=0, base_sequence=sequence)
    )
    if value == b"harmed":
        batch[-1] ^= 1
    data = {"index": 0, "records": bytes(batch)}
    topic_data = {"name": topic, "topic_id": found.topic_id if found else None, "partition_data": [data]}
    fields = {"acks": acks, "timeout": timeout_ms, "topic_data": [topic_data]}
    return encode_request(ApiKey.PRODUCE, version, number, "client", fields)


def partition(node: Live) -> Partition:
    return node.node.parts.services.replicas.leader(TopicPartition("t", 0))


async def values(node: Live, offset: int = 0) -> list[bytes | None]:
    one = partition(node)
    found = await one.read(offset, 1 << 20, one.log_end_offset)
    return [record.value for record in read_all_records(b"".join(found.buffers))]


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", VERSIONS)
async def test_each_request_gets_its_own_offset_and_answer(tmp_path: Path, version: int, acks: int) -> None:
    async with live(tmp_path) as node:
        await node.topic("t")
        wire = Wire(node)
        sent = [b"value %d" % number for number in range(20)]
        wire.send(*(request(node, 100 + n, version, value, acks=acks) for n, value in enumerate(sent)))
        for number in range(len(sent)):
            correlation_id, answer = await wire.answer(version)
            assert (correlation_id, answer.error_code, answer.base_offset) == (100 + number, 0, number)
            assert (answer.log_append_time, answer.log_start_offset) == (None, 0)
        assert wire.knows_requests
        assert await values(node) == sent
        assert partition(node).log.durable_end_offset == len(sent)
        wire.close()


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_harmed_batch_among_sound_ones_is_refused_alone(tmp_path: Path, version: int) -> None:
    async with live(tmp_path) as node:
        await node.topic("t")
        wire = Wire(node)
        sent = [b"a", b"b", b"harmed", b"c"]
        wire.send(*(request(node, n, version, value) for n, value in enumerate(sent)))
        codes = [(await wire.answer(version))[1].error_code for _ in sent]
        assert codes == [0, 0, ErrorCode.corrupt_message, 0]
        assert await values(node) == [b"a", b"b", b"c"]
        wire.close()


async def test_files_that_cannot_be_opened_are_a_storage_error_until_they_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log opens its files with the first batch after a start."""
    async with live(tmp_path) as node:
        await node.topic("t")
        wire = Wire(node)
        wire.send(request(node, 0, 12, b"a"))
        assert (await wire.answer(12))[1].error_code == 0
        wire.close()
    async with live(tmp_path) as node:
        wire = Wire(node)
        with monkeypatch.context() as patched:
            patched.setattr(RealDisk, "list", too_many_files)
            wire.send(request(node, 1, 12, b"refused"), request(node, 2, 12, b"refused"))
            refused = [(await wire.answer(12))[1] for _ in range(2)]
        assert {answer.error_code for answer in refused} == {ErrorCode.kafka_storage_error}
        assert "t-0 cannot be opened" in refused[0].error_message
        wire.send(request(node, 3, 12, b"b"))
        _, answer = await wire.answer(12)
        assert (answer.error_code, answer.base_offset) == (0, 1)
        assert (await values(node, 0))[0] == b"a"
        assert await values(node, 1) == [b"b"]
        wire.close()


async def test_acks_all_waits_no_longer_than_the_client_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody acknowledges the second record; what comes of it after the answer changes nothing."""
    async with live(tmp_path) as node:
        await node.topic("t")
        wire = Wire(node)
        wire.send(request(node, 0, 12, b"a", acks=-1, timeout_ms=10_000))
        assert (await wire.answer(12))[1].error_code == 0
        late: list[AckCallback] = []
        with monkeypatch.context() as patched:
            patched.setattr(Partition, "when_acked", lambda _, __, ___, callback: late.append(callback))
            wire.send(request(node, 1, 12, b"b", acks=-1, timeout_ms=10))
            correlation_id, answer = await wire.answer(12)
        assert (correlation_id, answer.error_code) == (1, ErrorCode.request_timed_out)
        late[0](None)
        wire.send(request(node, 2, 12, b"c", acks=-1))
        correlation_id, answer = await wire.answer(12)
        assert (correlation_id, answer.error_code, answer.base_offset) == (2, 0, 2)
        wire.close()


@pytest.mark.parametrize("acks", [1, -1])
async def test_a_producer_that_repeats_itself_gets_the_first_offset_again(tmp_path: Path, acks: int) -> None:
    """Sequence numbers are looked at, known request or not (idempotent producers)."""
    async with live(tmp_path) as node:
        await node.topic("t")
        wire = Wire(node)
        for number, sequence in enumerate((0, 1, 1, 3)):
            wire.send(request(node, number, 12, b"value", acks=acks, sequence=sequence))
        answers = [(await wire.answer(12))[1] for _ in range(4)]
        assert [answer.base_offset for answer in answers] == [0, 1, 1, -1]
        assert answers[3].error_code == ErrorCode.out_of_order_sequence_number
        assert partition(node).log_end_offset == 2
        wire.close()


async def test_other_requests_between_them_are_answered_in_their_turn(tmp_path: Path) -> None:
    """Another topic, acks=all, acks=0, another version: none of them is taken for one of its neighbours."""
    async with live(tmp_path) as node:
        await node.topic("t")
        await node.topic("u")
        wire = Wire(node)
        wire.send(
            request(node, 0, 12, b"0"),
            request(node, 1, 12, b"1"),
            request(node, 2, 12, b"u", topic="u"),
            request(node, 3, 12, b"2"),
            request(node, 4, 12, b"3", acks=-1),
            request(node, 5, 12, b"4", acks=0),
            request(node, 6, 12, b"5"),
        )
        answers = [await wire.answer(12) for _ in range(6)]
        assert [number for number, _ in answers] == [0, 1, 2, 3, 4, 6]
        assert [answer.base_offset for _, answer in answers] == [0, 1, 0, 2, 3, 5]
        wire.send(request(node, 7, 9, b"6"))
        assert (await wire.answer(9))[1].base_offset == 6
        assert await values(node) == [b"%d" % number for number in range(7)]
        wire.close()


@pytest.mark.parametrize(("version", "code"), [(12, ErrorCode.none), (13, ErrorCode.unknown_topic_id)])
async def test_a_topic_that_was_made_anew_is_another_one(
    tmp_path: Path, version: int, code: ErrorCode
) -> None:
    """By name the records go to the new topic; by id the client hears that its topic is gone."""
    async with live(tmp_path, auto_create_topics=False) as node:
        await node.topic("t")
        wire = Wire(node)
        old = [request(node, n, version, b"old") for n in range(3)]
        wire.send(*old[:2])
        assert [(await wire.answer(version))[1].base_offset for _ in range(2)] == [0, 1]
        metadata = node.node.parts.metadata
        await metadata.submit(DeleteTopic(topic_id=metadata.state.topics["t"].topic_id))
        wire.send(old[2])
        gone = ErrorCode.unknown_topic_or_partition if version == 12 else ErrorCode.unknown_topic_id
        assert (await wire.answer(version))[1].error_code == gone
        await node.topic("t")
        wire.send(old[2])
        answer = (await wire.answer(version))[1]
        assert answer.error_code == code
        assert await values(node) == ([b"old"] if version == 12 else [])
        wire.close()


@pytest.mark.parametrize("version", VERSIONS)
async def test_who_waits_for_the_disk_hears_that_it_failed(tmp_path: Path, version: int) -> None:
    async with live(tmp_path) as node:
        await node.topic("t")
        wire = Wire(node)
        wire.send(request(node, 0, version, b"a"))
        await wire.answer(version)
        wire.send(request(node, 1, version, b"b"), request(node, 2, version, b"c"))
        one = partition(node)
        one._fail_waiters(RequestError(ErrorCode.not_leader_or_follower, "another one leads"))
        for number in (1, 2):
            correlation_id, answer = await wire.answer(version)
            assert correlation_id == number
            assert (answer.error_code, answer.base_offset) == (ErrorCode.not_leader_or_follower, -1)
        wire.send(request(node, 3, version, b"d"))
        assert (await wire.answer(version))[1].error_code == 0
        wire.close()
