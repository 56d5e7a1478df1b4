"""The WAL and Raft ports with mutual TLS: who gets in, and certificates that change while nodes run (X01)."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from chronik.links.certificates import NodeTls
from chronik.links.connections import Acceptor, Dialer
from chronik.links.handshake import LinkIdentity
from chronik.links.link import Link, _refused, _stranger
from chronik.links.tls_port import HANDSHAKES_MAX
from tests.process import HOST
from tests.security.nodes import certificates, node_tls, until


class Recorder:
    def __init__(self) -> None:
        self.opened: list[Link] = []
        self.frames: list[bytes] = []

    def on_open(self, link: Link) -> None:
        self.opened.append(link)

    def on_closed(self, link: Link) -> None:
        pass

    def on_frame(self, link: Link, frame: memoryview) -> None:
        self.frames.append(bytes(frame))

    def on_writable(self, link: Link) -> None:
        pass


def tls(folder: Path, node_id: int, *, of: int | None = None, required: bool = True) -> NodeTls:
    """Of a node with the certificate of node `of` (its own)."""
    given = node_tls(folder, of or node_id)
    return NodeTls(
        node_id=of or node_id,
        cert=given["node_tls_cert"],
        key=given["node_tls_key"],
        ca=given["node_tls_ca"],
        is_required=required,
    )


def identity(node_id: int, tls: NodeTls | None) -> LinkIdentity:
    return LinkIdentity(node_id, (b"secret",), lambda size: bytes(range(size)), tls=tls)


class Ends:
    """Node 2's port, and dialers that look for node 2."""

    def __init__(self, accepting: LinkIdentity) -> None:
        self.far, self.near = Recorder(), Recorder()
        self.acceptor = Acceptor(accepting, {"data": self.far})
        self.port = 0
        self._dialers: list[Dialer] = []

    def dial(self, dialing: LinkIdentity, peer_id: int = 2) -> Dialer:
        dialer = Dialer(
            identity=dialing,
            peer_id=peer_id,
            address=(HOST, self.port),
            purpose="data",
            handler=self.near,
            jitter=lambda: 0.0,
        )
        self._dialers.append(dialer)
        dialer.start()
        return dialer

    async def stop(self) -> None:
        for dialer in self._dialers:
            await dialer.stop()
        await self.acceptor.stop()


@pytest.fixture(autouse=True)
def nothing_said_before() -> None:
    """What an earlier test was refused for would keep the lines of a later one back for a minute."""
    _refused.forget()
    _stranger.forget()


@contextlib.asynccontextmanager
async def ends(accepting: LinkIdentity) -> AsyncIterator[Ends]:
    found = Ends(accepting)
    found.port = await found.acceptor.start(HOST, 0)
    try:
        yield found
    finally:
        await found.stop()


async def test_nodes_meet_over_tls(tmp_path: Path) -> None:
    certificates(tmp_path)
    async with ends(identity(2, tls(tmp_path, 2))) as found:
        found.dial(identity(1, tls(tmp_path, 1)))
        await until(lambda: bool(found.near.opened and found.far.opened))
        link = found.near.opened[0]
        link.outbox.send(b"hello", [b"x" * 1_000_000])
        await until(lambda: bool(found.far.frames))
        assert found.far.frames == [b"hello" + b"x" * 1_000_000]
        assert link.outbox.sealing is None
        assert link._transport is not None
        assert link._transport.get_extra_info("cipher")[1] == "TLSv1.3"


async def refused(found: Ends, dialing: LinkIdentity, caplog: pytest.LogCaptureFixture, why: str) -> None:
    caplog.set_level("INFO")
    found.dial(dialing)
    await until(lambda: why in caplog.text if why else found.acceptor.refused > 0, 10)
    assert not found.far.opened
    assert not found.near.opened


@pytest.mark.parametrize(
    ("dialer", "why"),
    [
        ("holder of another node's certificate", "the certificate of node 3 does not prove node 1"),
        ("another cluster", "the peer's certificate is of cluster"),
        ("another authority", "certificate verify failed"),
        ("no TLS", ""),
    ],
)
async def test_who_is_refused(
    tmp_path: Path, dialer: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    certificates(tmp_path)
    dialing: dict[str, Any] = {
        "holder of another node's certificate": lambda: tls(tmp_path, 1, of=3),
        "another cluster": lambda: tls(certificates_of_elsewhere(tmp_path), 1),
        "another authority": lambda: tls(certificates(tmp_path / "other"), 1),
        "no TLS": lambda: None,
    }
    shown = dialing[dialer]()
    if dialer == "another cluster":
        certificates(tmp_path, 2)
    async with ends(identity(2, tls(tmp_path, 2))) as found:
        await refused(found, identity(1, shown), caplog, why)


def certificates_of_elsewhere(folder: Path) -> Path:
    """Signed by the same authority, for node 1 of another cluster."""
    return certificates(folder, 1, cluster_id="elsewhere")


async def test_an_impostor_in_a_nodes_place_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Node 3 took over the address of node 2."""
    certificates(tmp_path)
    async with ends(identity(2, tls(tmp_path, 2, of=3))) as found:
        await refused(
            found, identity(1, tls(tmp_path, 1)), caplog, "the certificate of node 3 does not prove node 2"
        )


@pytest.mark.parametrize(
    ("dialing", "accepting"),
    [("plain", "requested"), ("requested", "plain"), ("requested", "required"), ("required", "requested")],
)
async def test_a_cluster_moves_to_tls_node_by_node(tmp_path: Path, dialing: str, accepting: str) -> None:
    certificates(tmp_path)

    def at(node_id: int, step: str) -> LinkIdentity:
        shown = None if step == "plain" else tls(tmp_path, node_id, required=step == "required")
        return identity(node_id, shown)

    async with ends(at(2, accepting)) as found:
        found.dial(at(1, dialing))
        await until(lambda: bool(found.near.opened and found.far.opened))
        found.near.opened[0].outbox.send(b"hello")
        await until(lambda: found.far.frames == [b"hello"])
        assert (found.near.opened[0].outbox.sealing is None) is ("plain" not in (dialing, accepting))


async def test_certificates_are_read_again_and_connections_stay(tmp_path: Path) -> None:
    """From one authority to another: both are believed, all show the new one's, then the old one goes."""
    old, new, used = certificates(tmp_path / "old"), certificates(tmp_path / "new"), tmp_path / "used"
    used.mkdir()
    for file in old.iterdir():
        (used / file.name).write_bytes(file.read_bytes())
    one, two = tls(used, 1), tls(used, 2)
    async with ends(identity(2, two)) as found:
        found.dial(identity(1, one))
        await until(lambda: len(found.far.opened) == 1)
        first = found.near.opened[0]
        (used / "ca.pem").write_bytes((old / "ca.pem").read_bytes() + (new / "ca.pem").read_bytes())
        (used / "node-1.pem").write_bytes((new / "node-1.pem").read_bytes())
        found.dial(identity(1, one))
        await until(lambda: len(found.near.opened) == 2)  # its key is not there yet: the old one still serves
        for file in (*new.glob("node-*"), new / "ca.pem"):
            (used / file.name).write_bytes(file.read_bytes())
        found.dial(identity(1, one))
        await until(lambda: len(found.near.opened) == 3)
        assert first.is_open
        late = tls(old, 1)
        found.dial(identity(1, late))
        await until(lambda: found.acceptor.refused > 0)
        assert len(found.near.opened) == 3
        first.outbox.send(b"still here")
        await until(lambda: found.far.frames == [b"still here"])


async def test_handshakes_that_go_on_for_ever_do_not_keep_a_node_out(tmp_path: Path) -> None:
    """Half-open TLS: nothing is said, a ClientHello without its end, a record that never ends."""
    certificates(tmp_path)
    async with ends(identity(2, tls(tmp_path, 2))) as found:
        openings = (b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"\x16\x03\x03\xff\xff" + b"\x01" * 100)
        writers = []
        for number in range(3 * HANDSHAKES_MAX):
            _, writer = await asyncio.open_connection(HOST, found.port)
            writer.write(openings[number % len(openings)])
            writers.append(writer)
        found.dial(identity(1, tls(tmp_path, 1)))
        await until(lambda: bool(found.far.opened), 10)
        port = found.acceptor._server
        assert len(port._handshakes) <= HANDSHAKES_MAX  # type: ignore[union-attr]
        assert found.acceptor.refused >= HANDSHAKES_MAX
        for writer in writers:
            writer.transport.abort()


@pytest.mark.parametrize("problem", ["of another node", "no file", "no name"])
def test_a_certificate_that_cannot_serve_is_told_at_the_start(tmp_path: Path, problem: str) -> None:
    from chronik.config import ConfigError
    from tests.tls import make_certificate

    certificates(tmp_path)
    given = node_tls(tmp_path, 2 if problem == "of another node" else 1)
    if problem == "no file":
        given["node_tls_cert"].unlink()
    if problem == "no name":
        given["node_tls_cert"], given["node_tls_key"] = make_certificate(tmp_path)
    with pytest.raises(ConfigError, match="cannot use"):
        NodeTls(node_id=1, cert=given["node_tls_cert"], key=given["node_tls_key"], ca=given["node_tls_ca"])


def test_the_certificates_are_what_openssl_wants(tmp_path: Path) -> None:
    certificates(tmp_path)
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(tmp_path / "node-1.pem", tmp_path / "node-1-key.pem")
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
