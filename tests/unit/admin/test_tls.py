"""HTTP over TLS, with a certificate that signs itself."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from chronik import open_files
from chronik.admin import server
from chronik.admin.peers import HttpPeers, request_json
from chronik.admin.tls import client_context
from chronik.config import Settings
from chronik.node import Node, _peer_tls
from chronik.server import tls_stream
from tests.tls import make_certificate
from tests.unit.admin.support import HOST, Http, with_node


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_only_tls_is_spoken_and_the_certificate_is_checked(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate

    async def work(node: Node, http: Http) -> None:
        status, answer = await request_json(HOST, http.port, "GET", "/health", None, {}, client_context(cert))
        assert (status, answer["status"]) == (200, "ok")
        with pytest.raises(ssl.SSLCertVerificationError):
            await request_json(HOST, http.port, "GET", "/health", None, {}, client_context())
        assert not (await http.raw(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")).startswith(b"HTTP/")

    with_node(tmp_path, work, http_tls_cert=cert, http_tls_key=key)


def test_nodes_ask_each_other_over_tls(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate

    async def work(node: Node, http: Http) -> None:
        # Another node's view of this one: it believes the certificate that it shows itself.
        peers = HttpPeers(99, lambda: node.parts.metadata.state, _peer_tls(node.settings))
        assert (await peers.ask(1, "GET", "/admin/node", timeout_s=30))["node_id"] == 1

    with_node(tmp_path, work, http_tls_cert=cert, http_tls_key=key)


@pytest.mark.parametrize("broken", ["missing", "garbage"])
def test_bad_files_are_one_clear_sentence(
    tmp_path: Path, certificate: tuple[Path, Path], broken: str
) -> None:
    _, key = certificate
    bad = tmp_path / "bad.pem"
    if broken == "garbage":
        bad.write_text("no certificate")
    settings = Settings(
        data_dir=tmp_path / "data",
        **dict.fromkeys(("kafka_port", "http_port", "wal_port", "raft_port"), 0),
        http_tls_cert=bad,
        http_tls_key=key,
    )
    with pytest.raises(OSError, match=r"HTTP cannot use .*bad.pem"):
        asyncio.run(Node(settings).start())


def test_a_new_certificate_is_shown_without_a_restart_or_a_dropped_connection(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)

    async def work(node: Node, http: Http) -> None:
        assert node._http is not None
        tls = node._http._server._tls
        assert tls is not None
        peers = HttpPeers(99, lambda: node.parts.metadata.state, _peer_tls(node.settings))
        reader, writer = await asyncio.open_connection(HOST, http.port, ssl=client_context(cert))
        assert not tls.reload(), "nothing changed"
        old = client_context(cert)
        cert.write_bytes(b"no certificate")
        assert not tls.reload()
        assert (await request_json(HOST, http.port, "GET", "/health", None, {}, old))[0] == 200
        make_certificate(tmp_path)
        assert tls.reload()
        with pytest.raises(ssl.SSLCertVerificationError):
            await request_json(HOST, http.port, "GET", "/health", None, {}, old)
        new = client_context(cert)
        assert (await request_json(HOST, http.port, "GET", "/health", None, {}, new))[0] == 200
        assert (await peers.ask(1, "GET", "/admin/node", timeout_s=30))["node_id"] == 1
        writer.write(f"GET /health HTTP/1.1\r\nhost: {HOST}:{http.port}\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200"), "the connection that was open stays"
        writer.close()

    with_node(tmp_path / "data", work, http_tls_cert=cert, http_tls_key=key)


def test_handshakes_that_do_not_come_are_connections_too(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers who never finish one take no more room than others, and make room for those who ask."""
    monkeypatch.setattr(open_files, "HTTP_CONNECTIONS_MAX", 20)
    for module, limit in ((tls_stream, "HANDSHAKE_SECONDS_MAX"), (server, "HEADER_SECONDS_MAX")):
        monkeypatch.setattr(module, limit, 600)  # it is not time that ends them
    cert, key = certificate

    async def work(node: Node, http: Http) -> None:
        assert node._http is not None
        opened = node._http._server._state.connections
        strangers = [await asyncio.open_connection(HOST, http.port) for _ in range(60)]
        for _, writer in strangers[::2]:
            writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        tls = client_context(cert)
        for _ in range(3):
            status, _ = await request_json(HOST, http.port, "GET", "/health", None, {}, tls)
            assert status == 200
        assert len(opened) <= 20
        gone = [asyncio.create_task(reader.read()) for reader, _ in strangers]
        async with asyncio.timeout(20):
            while sum(task.done() for task in gone) < 40:
                await asyncio.wait([task for task in gone if not task.done()], return_when="FIRST_COMPLETED")
        for (_, writer), task in zip(strangers, gone, strict=True):
            task.cancel()
            writer.transport.abort()

    with_node(tmp_path, work, http_tls_cert=cert, http_tls_key=key)
