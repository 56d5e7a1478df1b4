"""`chronik doctor`: each thing that is wrong is found, with its way out; what is well is left alone (O03)."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from chronik.cli.start import locked
from chronik.node import Node
from chronik.testing import free_ports
from tests.node import SOURCE
from tests.tls import make_certificate
from tests.unit.admin.support import Http, with_node


def doctor(data_dir: Path, *flags: str, limit: str = "") -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code and findings by check, on ports that are free unless the flags say otherwise."""
    ports = dict(
        zip(("--kafka-port", "--http-port", "--wal-port", "--raft-port"), free_ports(4), strict=True)
    )
    given = [str(part) for flag, port in ports.items() if flag not in flags for part in (flag, port)]
    command = [
        sys.executable,
        "-m",
        "chronik",
        "doctor",
        "--json",
        "--data-dir",
        str(data_dir),
        *given,
        *flags,
    ]
    done = subprocess.run(
        ["bash", "-c", f'{limit} exec "$@"', "bash", *command],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not done.stderr, done.stderr
    findings = json.loads(done.stdout)
    assert all(bool(one["fix"]) == (one["state"] in ("wrong", "warning")) for one in findings)
    return done.returncode, {one["check"]: one for one in findings}


def test_nothing_is_wrong_with_a_machine_on_which_a_node_could_start(tmp_path: Path) -> None:
    code, found = doctor(tmp_path / "data")
    assert [one for one in found.values() if one["state"] == "wrong"] == []
    assert code == 0
    assert found["cluster"]["state"] == "unknown"
    assert not (tmp_path / "data").exists()


def test_a_taken_port_an_open_directory_and_few_descriptors(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, found = doctor(tmp_path / "data", "--http-port", str(port), limit="ulimit -n 900;")
    assert code == 1
    assert found[f"port {port}"]["state"] == "wrong"
    assert "--http-port" in found[f"port {port}"]["fix"]
    assert found["data directory"]["state"] == "wrong"
    assert "chmod 700" in found["data directory"]["fix"]
    assert found["open files"]["state"] == "wrong"


def test_a_node_that_runs_but_does_not_answer(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    with locked(tmp_path / "data"):
        code, found = doctor(tmp_path / "data", "--kafka-port", str(port))
    assert code == 1
    assert found[f"port {port}"]["state"] == "wrong"
    assert found["cluster"]["state"] == "wrong"


def test_open_doors_and_a_certificate_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    code, found = doctor(
        tmp_path / "data",
        "--bind",
        "0.0.0.0",
        "--advertise",
        "here",
        "--http-tls-cert",
        str(tmp_path / "bad.pem"),
    )
    assert code == 1
    assert found["settings"]["state"] == "wrong"
    assert found["settings"]["fix"].startswith("Set an API key")
    assert found["certificate bad.pem"]["state"] == "wrong"


def test_a_certificate_that_is_about_to_expire(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    code, found = doctor(tmp_path / "data", "--http-tls-cert", str(cert), "--http-tls-key", str(key))
    assert code == 0
    assert found["certificate cert.pem"]["state"] == "warning"
    assert "in 1 days" in found["certificate cert.pem"]["message"]


def test_authorities_that_are_about_to_expire(tmp_path: Path) -> None:
    cert, _ = make_certificate(tmp_path)
    (tmp_path / "bad.pem").write_text("no certificate")
    flags = ("--http-tls-client-ca", str(cert), "--kafka-tls-ca", str(tmp_path / "bad.pem"))
    _, found = doctor(tmp_path / "data", *flags)
    assert found["authorities cert.pem"]["state"] == "warning"
    assert "in 1 days" in found["authorities cert.pem"]["message"]
    assert found["authorities bad.pem"]["state"] == "wrong"


def test_the_console_looks_at_what_the_command_looks_at(tmp_path: Path) -> None:
    """Of a node that runs, beside what both ask the cluster."""
    objects = (tmp_path / "objects").as_uri()
    by_http: list[str] = []
    kafka_port, http_port = free_ports(2)

    async def work(_node: Node, http: Http) -> None:
        answer = (await http.get("/admin/doctor")).json["findings"]
        assert [one for one in answer if one["check"].startswith(("port", "data dir")) and one["fix"]] == []
        by_http.extend(one["check"] for one in answer)

    with_node(tmp_path / "data", work, kafka_port=kafka_port, http_port=http_port, object_store=objects)
    flags = ("--kafka-port", str(kafka_port), "--http-port", str(http_port), "--object-store", objects)
    _, found = doctor(tmp_path / "data", *flags)
    assert set(found) - {"cluster"} <= set(by_http)
    expected = {
        f"port {kafka_port}",
        f"port {http_port}",
        "settings",
        "data directory",
        "disk",
        "object store",
    }
    assert expected <= set(found)
    assert {"nodes", "releases", "partitions", "groups", "transactions"} <= set(by_http)
