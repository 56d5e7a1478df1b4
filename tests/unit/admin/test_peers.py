"""Other nodes over HTTP: whatever one answers, the asking part of this node goes on."""

from __future__ import annotations

import asyncio
import importlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chronik.admin import audit_writer
from chronik.admin.audit_writer import AuditWriter
from chronik.admin.client_pushes import PushesQuery, gather
from chronik.admin.peers import AnswerBudget, HttpPeers
from chronik.admin.scatter import believed
from chronik.metadata.commands import Endpoint
from chronik.model import Unavailable
from chronik.query.request import SearchRequest
from chronik.server.audit import CALLER_DENIALS_MAX, MORE, WINDOW_MS, AuditEntry, AuditTrail

ROUTES = ("doctor", "explain", "verify")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{",
        b'HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"\xff"',
        b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n" + b"[" * 90_000,
        b"nonsense\r\n\r\n",
        b"",
    ],
)
async def test_an_answer_that_makes_no_sense(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        broker = SimpleNamespace(broker_id=2, endpoints={"http": Endpoint(host="127.0.0.1", port=port)})
        state = SimpleNamespace(live_brokers=lambda: [broker])
        peers = HttpPeers(1, lambda: cast(Any, state))
        with pytest.raises(Unavailable):
            await peers.ask(2, "GET", "/_node/indices", timeout_s=20)


@pytest.mark.parametrize(("length", "is_taken"), [(1_000, True), (1_001, False)])
async def test_an_answer_beyond_its_limit_is_not_read(length: int, is_taken: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'"' + b"x" * (length - 2) + b'"'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length + body)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        broker = SimpleNamespace(broker_id=2, endpoints={"http": Endpoint(host="127.0.0.1", port=port)})
        peers = HttpPeers(1, lambda: cast(Any, SimpleNamespace(live_brokers=lambda: [broker])))
        asked = peers.ask(2, "GET", "/_node/indices", timeout_s=20, answer_bytes_max=1_000)
        if is_taken:
            assert len(await asked) == length - 2
            return
        with pytest.raises(Unavailable, match="too long"):
            await asked


async def test_an_answer_of_another_kind_is_that_nodes_trouble_alone() -> None:
    async def ask(*_asked: object, **_how: object) -> object:
        return {"clients": 7, "findings": 7}

    context = SimpleNamespace(node_id=1, peers=SimpleNamespace(ask=ask))
    call = SimpleNamespace(context=context, authorization=None)
    said = "node 2 sent an answer that cannot be read"
    routes = {name: importlib.import_module(f"chronik.admin.routes.{name}") for name in ROUTES}
    (finding,) = await routes["doctor"]._look_at_node(call, 2)
    assert said in finding.message
    verified = await routes["verify"]._ask(call, 2, None)
    assert said in verified.problem
    facts, problem = await routes["explain"]._ask(context, 2, None, None)
    assert facts is None
    assert said in problem
    pushes = await gather(cast(Any, context), PushesQuery(), [2], None)
    assert said in pushes.silent_nodes["2"]


HIT = {"_index": "t", "partition": 0, "offset": 5, "_score": 1.0, "sort": [5]}


@pytest.mark.parametrize(
    ("hostile", "said"),
    [
        ({"hits": [7]}, "cannot be read"),
        ({"hits": [{**HIT, "offset": "x"}]}, "cannot be read"),
        ({"hits": [{**HIT, "_score": "high"}]}, "cannot be read"),
        ({"hits": [{**HIT, "sort": []}]}, "a hit in t-0"),
        ({"hits": [{**HIT, "_index": "secret"}]}, "a hit in secret-0"),
        ({"hits": [{**HIT, "partition": 9}]}, "a hit in t-9"),
        ({"hits": [HIT] * 4}, "more than it was asked for"),
        ({"searched": 3}, "more than it was asked for"),
        ({"failures": [{}] * 3}, "more than it was asked for"),
        ({"total": -1}, "cannot be read"),
        ({"total": "many"}, "cannot be read"),
        ({"lag": None}, "cannot be read"),
    ],
)
def test_a_search_believes_only_what_it_asked_for(hostile: dict[str, Any], said: str) -> None:
    request = SearchRequest(size=3, sort=["_offset"])
    good = {"total": 1, "searched": 2, "hits": [HIT], "failures": [], "reached": {}, "lag": 0}
    assert believed(2, good, request, {"t": [0, 1]})["hits"] == [HIT]
    with pytest.raises(Unavailable, match=said):
        believed(2, {**good, **hostile}, request, {"t": [0, 1]})


def test_all_answers_to_a_search_have_one_budget() -> None:
    budget = AnswerBudget(10)
    budget.take(6)
    with pytest.raises(OSError, match="too long"):
        budget.take(5)
    budget.take(4)


async def test_a_node_that_answers_too_much_takes_no_others_room() -> None:
    """One node could have all of the room, and the answers of all others were given up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 900)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        broker = SimpleNamespace(broker_id=2, endpoints={"http": Endpoint(host="127.0.0.1", port=port)})
        peers = HttpPeers(1, lambda: cast(Any, SimpleNamespace(live_brokers=lambda: [broker])))
        budget = AnswerBudget(1_000)
        for length_max in (10_000, 500):  # a connection that ends in between, and an answer beyond its limit
            with pytest.raises(Unavailable):
                await peers.ask(2, "GET", "/", timeout_s=20, answer_bytes_max=length_max, budget=budget)
        budget.take(1_000)


async def test_the_audit_log_goes_on_after_any_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GATHER_SECONDS", "AGAIN_SECONDS"):
        monkeypatch.setattr(audit_writer, name, 0.0)
    audit = AuditTrail(node_id=1, now_ms=lambda: 1, is_on=True, with_changes=True)
    writer = AuditWriter(cast(Any, None), audit, cast(Any, None))
    failures: list[Exception] = [KeyError("topics"), ValueError("nonsense"), Unavailable("not now")]
    written: asyncio.Future[list[AuditEntry]] = asyncio.get_running_loop().create_future()

    async def write(entries: list[AuditEntry]) -> None:
        if failures:
            raise failures.pop()
        written.set_result(entries)

    monkeypatch.setattr(writer, "_write", write)
    writer.start()
    audit.login_failed("10.0.0.1", "wrong")
    async with asyncio.timeout(20):
        (entry,) = await written
    assert entry.host == "10.0.0.1"
    assert not failures
    await writer.close()


async def test_a_sum_is_written_though_nothing_else_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GATHER_SECONDS", "SUMS_SECONDS"):
        monkeypatch.setattr(audit_writer, name, 0.0)
    now_ms = 0
    audit = AuditTrail(node_id=1, now_ms=lambda: now_ms, is_on=True, with_changes=True)
    writer = AuditWriter(cast(Any, None), audit, cast(Any, None))
    written: asyncio.Queue[AuditEntry] = asyncio.Queue()

    async def write(entries: list[AuditEntry]) -> None:
        for entry in entries:
            written.put_nowait(entry)

    monkeypatch.setattr(writer, "_write", write)
    writer.start()
    for n in range(CALLER_DENIALS_MAX + 7):
        audit.denied("User:mallory", "h", "kafka", "READ", f"topic {n}")
    async with asyncio.timeout(20):
        for _ in range(CALLER_DENIALS_MAX):
            assert (await written.get()).action == "READ"
        assert written.empty()
        now_ms = WINDOW_MS
        last = await written.get()
    assert (last.action, last.count) == (MORE, 7)
    await writer.close()
