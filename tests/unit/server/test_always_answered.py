"""Whatever fails on the way of a request, it is answered or its connection is closed.

Answers leave in the order of the requests: one that never came would hold up all that follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from chronik.model import Limits
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.replication.partition import Partition
from chronik.server import connection, dispatch
from chronik.server.dispatch import Handler, Reply, RequestContext, handles, reply
from chronik.server.gate import NOTHING
from chronik.server.handlers import fetch as fetch_handler
from chronik.server.handlers import produce as produce_handler
from chronik.server.listener import KafkaListener
from chronik.wire.api import ApiKey
from chronik.wire.schema import encode_request
from tests.unit.server.harness import Harness
from tests.unit.server.live import live
from tests.unit.server.test_known_requests import Wire


def planted(*_: object, **__: object) -> Any:
    raise KeyError("planted")


async def broken(_request: Any, _ctx: RequestContext) -> Reply:
    raise KeyError("planted")


def heartbeat(function: Callable[..., Any], **more: Any) -> Handler[Any]:
    return handles(ApiKey.HEARTBEAT, versions=(0, 4), needs=NOTHING, **more)(function)


async def fine(_request: Any, _ctx: RequestContext) -> Reply:
    return reply(error_code=0)


def frames_until_end(handler: Handler[Any]) -> tuple[int, bool]:
    """Two requests at once: how many answers come, and whether the connection is closed then."""
    return asyncio.run(_frames_until_end(Harness(handlers=[handler])))


async def _frames_until_end(harness: Harness) -> tuple[int, bool]:
    listener = KafkaListener(dispatcher=harness.dispatcher, limits=Limits(), pressures=())
    port = await listener.bind("127.0.0.1", 0)
    await listener.serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.writelines(encode_request(ApiKey.HEARTBEAT, 4, n, "c", {"group_id": "g"}) for n in (1, 2))
    answers = 0
    try:
        async with asyncio.timeout(20):
            while answers < 2:
                size = await reader.readexactly(4)
                await reader.readexactly(int.from_bytes(size, "big"))
                answers += 1
        return answers, False
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return answers, True
    finally:
        writer.close()
        await listener.stop()


def test_a_request_that_cannot_be_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "decode_request", planted)
    assert frames_until_end(heartbeat(fine)) == (0, True)


def test_a_handler_that_fails_is_answered() -> None:
    assert frames_until_end(heartbeat(broken)) == (2, False)


def test_an_error_reply_that_fails() -> None:
    assert frames_until_end(heartbeat(broken, on_error=planted)) == (0, True)


def test_an_answer_that_cannot_be_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "encode_response", planted)
    assert frames_until_end(heartbeat(fine)) == (0, True)


def produce(
    number: int, *, acks: int = 1, transactional_id: str | None = None, timeout_ms: int = 60_000
) -> bytes:
    batch = build_batch(
        [Record(key=None, value=b"v", timestamp_ms=1)],
        producer_id=1,
        producer_epoch=0,
        base_sequence=number - 1,
        is_transactional=transactional_id is not None,
    )
    data = [{"name": "t", "partition_data": [{"index": 0, "records": bytes(batch)}]}]
    fields = {"acks": acks, "timeout": timeout_ms, "topic_data": data, "transactional_id": transactional_id}
    return encode_request(ApiKey.PRODUCE, 12, number, "c", fields)


def fetch(wait_ms: int = 0) -> bytes:
    wanted = [{"topic": "t", "partitions": [{"partition": 0, "fetch_offset": 0}]}]
    fields = {"replica_id": -1, "max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1 << 20, "topics": wanted}
    return encode_request(ApiKey.FETCH, 12, 9, "c", fields)


@pytest.mark.parametrize(
    ("target", "name", "request_of"),
    [
        (produce_handler, "decode_produce", lambda: produce(1)),
        (produce_handler, "missing_topics", lambda: produce(1)),
        (produce_handler, "encode_produce_response", lambda: produce(1)),
        (produce_handler, "encode_produce_response", lambda: produce(1, acks=5)),
        (produce_handler, "create_missing_topics", lambda: produce(1, transactional_id="x")),
        (fetch_handler, "decode_fetch", fetch),
        (fetch_handler, "encode_fetch_response", fetch),
        (fetch_handler, "encode_fetch_response", lambda: fetch(10)),
    ],
)
async def test_a_hot_request_that_fails_closes_its_connection(
    tmp_path: Path, target: Any, name: str, request_of: Callable[[], bytes]
) -> None:
    """In each stage: read, handled at once, handled in a task, answered at once, answered after a wait."""
    async with live(tmp_path) as node:
        await node.topic("t")
        wire = Wire(node)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, _context: None)  # a task that fails is told there
        with mock.patch.object(target, name, planted):
            wire.send(request_of())
            assert await wire.frame_or_end() is None
        loop.set_exception_handler(None)


async def test_a_known_request_whose_answer_fails_closes_its_connection(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        await node.topic("t")
        wire = Wire(node)
        wire.send(produce(1))
        assert await wire.frame_or_end() is not None
        with mock.patch.object(produce_handler, "AnswerTemplate", planted):
            wire.send(produce(2))
            assert await wire.frame_or_end() is None


async def test_answers_that_cannot_be_charged_close_their_connection(tmp_path: Path) -> None:
    """Those gathered for one write were lost, and the connection stayed."""
    async with live(tmp_path) as node:
        await node.topic("t")
        entity = [{"entity_type": "client-id", "entity_name": None}]
        quota = {"entity": entity, "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}]}
        altered = await node.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[quota], validate_only=False)
        assert altered.entries[0].error_code == 0
        for name in ("throttle", "tell_throttle_time"):
            wire = Wire(node)
            with mock.patch.object(connection, name, planted):
                wire.send(produce(1), fetch())
                assert await wire.frame_or_end() is None


async def test_a_login_that_fails_inside_closes_its_connection(tmp_path: Path) -> None:
    """In the form without Kafka's header (SaslHandshake version 0)."""
    async with live(tmp_path) as node:
        session, client, responder = mock.Mock(), mock.Mock(), mock.Mock()
        session.authenticate = broken_login
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, _context: None)  # a task that fails is told there
        closed = loop.create_future()
        responder.close = lambda: closed.set_result(None)
        node.node.parts.listener.authenticate_bare(session, memoryview(b"secret"), client, responder)
        await asyncio.wait_for(closed, 20)
        responder.respond.assert_not_called()
        loop.set_exception_handler(None)


async def broken_login(_message: bytes) -> Any:
    raise KeyError("planted")


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_time_out_that_fails_closes_its_connection(tmp_path: Path, is_known: bool) -> None:
    async with live(tmp_path) as node:
        await node.topic("t")
        wire = Wire(node)
        if is_known:
            wire.send(produce(1, acks=-1))
            assert await wire.frame_or_end() is not None
        with (
            mock.patch.object(produce_handler, "_is_on_its_way", planted),
            mock.patch.object(Partition, "when_acked"),
        ):
            wire.send(produce(2, acks=-1, timeout_ms=1))
            assert await wire.frame_or_end() is None
