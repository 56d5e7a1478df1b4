"""Who gets in: what a start refuses, what HTTP shows beyond loopback, who is given the key (H02, R06)."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from chronik.cli.start import StartFailed, refuse_open_doors
from chronik.config import Settings
from chronik.config_sources import load_settings
from chronik.testing import free_ports
from tests.compat.test_start import refused
from tests.node import SOURCE, ChronikNode

LISTENERS = ("kafka", "wal", "raft", "http")

pytestmark = pytest.mark.usefixtures("only_chronik")


def test_beyond_loopback_a_key_or_a_word_is_needed(tmp_path: Path) -> None:
    sentence = refused(ChronikNode(tmp_path / "open", bind="0.0.0.0", advertise="localhost"))
    assert "CHRONIK_ADMIN_API_KEY=$(openssl rand -base64 32)" in sentence
    assert "--insecure true" in sentence
    refuse_open_doors(Settings(bind="0.0.0.0", insecure=True))
    refuse_open_doors(Settings(bind="10.0.0.7", admin_api_key="swordfish"))
    with pytest.raises(StartFailed):
        refuse_open_doors(Settings(bind="10.0.0.7"))
    told = load_settings({"bind": "0.0.0.0", "insecure": "true"}, {}, None).warnings
    assert any("may read every record" in warning for warning in told)


def test_a_cluster_beyond_loopback_needs_a_secret(tmp_path: Path) -> None:
    config = tmp_path / "cluster.toml"
    ports = [f'{name} = "127.0.0.1:{port}"' for name, port in zip(LISTENERS, free_ports(4), strict=True)]
    config.write_text("\n".join(["[[peers]]", "id = 1", *ports]))
    env = {"CHRONIK_ADMIN_API_KEY": "swordfish"}
    sentence = refused(ChronikNode(tmp_path / "beyond", config=config, bind="0.0.0.0", env=env))
    assert "CHRONIK_CLUSTER_SECRET=$(openssl rand -base64 32)" in sentence
    with ChronikNode(tmp_path / "local", config=config) as node:
        assert "a stranger on this machine who says that he is node 1 is welcomed" in node.log.read_text()


def test_beyond_loopback_http_shows_nothing_of_the_cluster_without_the_key(tmp_path: Path) -> None:
    env = {"CHRONIK_ADMIN_API_KEY": "swordfish"}
    node = ChronikNode(tmp_path / "node", bind="0.0.0.0", advertise="localhost", env=env)

    def status(path: str, **headers: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", int(str(node.settings["http_port"])), timeout=20)
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status

    with node:
        for path in ("/health", "/ready", "/metrics", "/"):
            assert status(path) == 200
            assert status(path, Host="rebound.example") == 403
        for path in ("/admin/topics", "/admin/cluster", "/admin/nodes", "/admin/status", "/_sql/tables"):
            assert (status(path), status(path, **{"X-API-Key": "swordfish"})) == (401, 200)


class Stranger(threading.Thread):
    """An HTTP server that nobody meant to talk to; remembers the headers it was sent."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.heard = b""

    def run(self) -> None:
        peer, _ = self.socket.accept()
        with peer:
            self.heard = peer.recv(65536)
            body = b'{"code": "api_key_required", "message": "This call needs the API key."}'
            head = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            peer.sendall(head + body)


@pytest.mark.parametrize(
    ("bootstrap", "is_named"),
    [(None, True), ("broker.example:9092", False), ("127.0.0.1:9092", False), ("127.0.0.1:{port}", True)],
    ids=["by --url", "another host", "another port", "both named"],
)
def test_the_key_goes_only_to_an_address_that_the_user_named(bootstrap: str | None, is_named: bool) -> None:
    """What a cluster says where its HTTP is may be anybody's address, on the cluster's machine, too."""
    stranger = Stranger()
    stranger.start()
    port = stranger.socket.getsockname()[1]
    command = [sys.executable, "-c", "from chronik.cli import main; main()", "sql", "SELECT 1"]
    if bootstrap is None:
        command += ["--url", f"http://127.0.0.1:{port}"]
    else:
        program = (
            "import chronik.cli.http as h\n"
            f"h._find = lambda servers: ('127.0.0.1', {port}, False)\n"
            "from chronik.cli import main; main()"
        )
        command = [
            sys.executable,
            "-c",
            program,
            "sql",
            "SELECT 1",
            "--bootstrap",
            bootstrap.format(port=port),
        ]
    env = {"PYTHONPATH": str(SOURCE), "CHRONIK_ADMIN_API_KEY": "swordfish", "PATH": os.environ["PATH"]}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    stranger.join(20)
    assert (b"swordfish" in stranger.heard) is is_named
    assert done.returncode == 2
    assert ("--url http://127.0.0.1" in done.stderr) is not is_named
