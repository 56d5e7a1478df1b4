"""The port itself: slow clients, many clients, malformed requests, a port that is taken."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

from chronik import open_files
from chronik.admin import app, server
from chronik.config import Settings
from chronik.node import Node
from tests.unit.admin.support import HOST, Http, with_node


def test_a_client_that_never_finishes_its_head_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEADER_SECONDS_MAX", 0.05)

    async def work(node: Node, http: Http) -> None:
        assert await http.raw(b"GET /health HTTP/1.1\r\nhost: 127") == b""
        assert await http.raw(b"") == b""

    with_node(tmp_path, work)


def test_nor_may_it_be_slow_with_its_second_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEADER_SECONDS_MAX", 0.05)

    async def work(node: Node, http: Http) -> None:
        reader, writer = await asyncio.open_connection(HOST, http.port)
        head = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
        for _ in range(2):
            writer.write(head)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line[16:]) for line in answer.split(b"\r\n") if line.startswith(b"content-length:")
            )
            await reader.readexactly(length)
        writer.write(head[:20])
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()

    with_node(tmp_path, work)


def test_a_client_that_does_not_take_its_answer_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "UNREAD_SECONDS_MAX", 1.0)

    async def work(node: Node, http: Http) -> None:
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(lazy, (HOST, http.port))
            request = b"GET /openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
            await loop.sock_sendall(lazy, request * 200)
            connections = node._http._server._state.connections  # type: ignore[union-attr]

            def unread() -> int:
                return sum(one.transport.get_write_buffer_size() for one in connections)

            async with asyncio.timeout(60):
                while not unread():
                    await http.get("/health")
                while unread():
                    await http.get("/health")

    with_node(tmp_path, work)


def test_a_client_that_never_finishes_its_body_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "BODY_SECONDS_MAX", 0.05)

    async def work(node: Node, http: Http) -> None:
        head = b"POST /admin/create-topic HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{"
        answer = await http.raw(head)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"body_too_slow" in answer

    with_node(tmp_path, work)


def test_an_endless_body_is_cut_off(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        head = b"POST /admin/create-topic HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        answer = await http.raw(head + chunk * 20)
        assert answer.startswith(b"HTTP/1.1 413 ")

    with_node(tmp_path, work)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno header\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_400_or_nothing(tmp_path: Path, request_bytes: bytes) -> None:
    async def work(node: Node, http: Http) -> None:
        answer = await http.raw(request_bytes)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
        assert b"\r\n\r\n" not in answer or json.loads(answer.split(b"\r\n\r\n", 1)[1])["code"]
        assert (await http.get("/health")).status == 200

    with_node(tmp_path, work)


def test_a_page_of_another_site_gets_nothing(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        body = {"name": "planted"}
        refused = await http.post("/admin/create-topic", body, origin="https://evil.example")
        assert (refused.status, refused.json["code"]) == (403, "foreign_origin")
        assert (await http.get("/admin/topics")).json == []

    with_node(tmp_path, work)


def test_the_key_is_asked_for_and_accepted(tmp_path: Path) -> None:
    async def work(node: Node, http: Http) -> None:
        refused = await http.post("/admin/create-topic", {"name": "a"})
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        allowed = await http.post("/admin/create-topic", {"name": "a"}, authorization="Bearer swordfish")
        assert allowed.status == 200
        assert (await http.get("/admin/topics/a/messages")).status == 401
        assert (await http.get("/metrics")).status == 200

    with_node(tmp_path, work, admin_api_key="swordfish")


def test_who_is_refused_before_the_body_came_reads_the_answer(tmp_path: Path) -> None:
    """A socket that is closed with something unread is reset, and the client may lose what it was told."""

    async def work(node: Node, http: Http) -> None:
        size = 8_000_000
        head = b"POST /admin/create-topic HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        answer = await http.raw(head + b"content-length: %d\r\n\r\n" % size + b" " * size)
        assert answer.startswith(b"HTTP/1.1 401 ")

    with_node(tmp_path, work, admin_api_key="swordfish")


async def test_a_taken_port_is_one_clear_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        node = Node(Settings(data_dir=tmp_path, kafka_port=0, http_port=port, wal_port=0, raft_port=0))
        with pytest.raises(OSError, match=f"HTTP cannot listen on 127.0.0.1:{port}: address already in use"):
            await node.start()


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A stranger must not be able to fill the log with stack traces."""

    async def work(node: Node, http: Http) -> None:
        for _ in range(3):
            _, writer = await asyncio.open_connection(HOST, http.port)
            writer.write(
                b"POST /admin/create-topic HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 99\r\n\r\n{"
            )
            await writer.drain()
            await http.get("/health")  # it is being read by now
            writer.transport.abort()
        server_state = node._http._server._state  # type: ignore[union-attr]
        async with asyncio.timeout(20):
            while server_state.tasks:
                await asyncio.wait(server_state.tasks)

    with_node(tmp_path, work)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize(
    "begin",
    [b"", b"GET /he", b"POST /admin/create-topic HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{"],
)
def test_silent_clients_make_room_for_those_that_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    monkeypatch.setattr(open_files, "HTTP_CONNECTIONS_MAX", 20)

    async def work(node: Node, http: Http) -> None:
        opened = [await asyncio.open_connection(HOST, http.port) for _ in range(30)]
        for _, writer in opened:
            writer.write(begin)
        for _ in range(30):
            assert (await http.get("/health")).status == 200
        assert len(node._http._server._state.connections) <= 20  # type: ignore[union-attr]
        text = (await http.get("/metrics")).body.decode()
        refused = next(line for line in text.splitlines() if 'refused_total{limit="http"}' in line)
        assert float(refused.split()[1]) >= 10
        for _, writer in opened:
            writer.close()

    with_node(tmp_path, work)


def test_nonsense_after_an_early_answer_closes_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(node: Node, http: Http) -> None:
        reader, writer = await asyncio.open_connection(HOST, http.port)
        writer.write(
            b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n"
        )
        assert b" 404 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"no chunk\r\n")
        assert b" 400 " not in await asyncio.wait_for(reader.read(), 20)
        writer.close()

    with_node(tmp_path, work)
    assert "data_received" not in caplog.text
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("method", [b"HEAD", b"GET", b"POST"])
def test_a_body_that_breaks_off_is_answered_once_and_quietly(
    tmp_path: Path, method: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    head = method + b" /_search HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
    problems: list[dict[str, object]] = []

    async def work(node: Node, http: Http) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: problems.append(context))
        reader, writer = await asyncio.open_connection(HOST, http.port)
        writer.write(head + b"5\r\nabc\r\n0\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1
        assert answer.endswith(b"\r\n\r\n") == (method == b"HEAD")
        assert (await http.get("/health")).status == 200

    with_node(tmp_path, work)
    assert not problems
    assert not [line for line in caplog.records if line.exc_info]
