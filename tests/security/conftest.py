"""One node whose clients come by SASL_SSL, with ACLs on; its first user comes from `chronik init`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chronik.testing import free_ports
from tests.node import SOURCE, ChronikNode
from tests.process import HOST
from tests.tls import make_certificate

PASSWORDS = {"admin": "the admin's password", "alice": "alice's password"}
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


@dataclass(frozen=True)
class ClosedNode:
    node: ChronikNode
    folder: Path
    port: int
    cert: Path

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    def properties(self, user: str, mechanism: str = "SCRAM-SHA-256") -> Path:
        """A client.properties that Apache Kafka's tools and ours read alike."""
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        path = self.folder / f"{user}-{mechanism}.properties"
        path.write_text(
            f"""security.protocol=SASL_SSL
sasl.mechanism={mechanism}
sasl.jaas.config=org.apache.kafka.common.security.{module} required \\
  username="{user}" password="{PASSWORDS[user]}";
ssl.truststore.type=PEM
ssl.truststore.location={self.cert}
"""
        )
        return path

    def cli(self, user: str, *arguments: str, stdin: str = "", check: bool = True) -> str:
        """Our own command line, with this user's properties."""
        done = subprocess.run(
            [
                *(sys.executable, "-c", "from chronik.cli import main; main()"),
                *("--client-config", str(self.properties(user)), *arguments, "--bootstrap", self.bootstrap),
            ],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedNode]:
    folder = tmp_path_factory.mktemp("closed")
    cert, key = make_certificate(folder)
    (port,) = free_ports(1)
    node = ChronikNode(
        folder,
        env={"CHRONIK_DELEGATION_TOKEN_SECRET_KEY": "what tokens are made with"},
        listeners=f"CLIENTS://{HOST}:{port}",
        listener_security_protocol_map="CLIENTS:SASL_SSL",
        kafka_tls_cert=cert,
        kafka_tls_key=key,
        sasl_enabled_mechanisms=",".join(MECHANISMS),
        authorizer=True,
    )
    init = ("init", "--admin", "admin", "--data-dir", str(node.data_dir), "--password-file", "-")
    subprocess.run(
        [sys.executable, "-c", "from chronik.cli import main; main()", *init],
        input=PASSWORDS["admin"],
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    with node:
        given = ClosedNode(node, folder, port, cert)
        given.cli("admin", "user", "add", "alice", "--password-file", "-", stdin=PASSWORDS["alice"])
        given.cli("admin", "topic", "create", "orders", "secrets")
        for right in (("--topic", "orders"), ("--group", "readers")):
            given.cli("admin", "acl", "add", "--user", "alice", *right, "-o", "read")
        given.cli("admin", "acl", "add", "--user", "alice", "--topic", "orders", "-o", "write")
        yield given
        node.stop()
