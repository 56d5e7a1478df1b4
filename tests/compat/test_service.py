"""What a service manager hears from a node, and the unit file that relies on it (O01)."""

from __future__ import annotations

import configparser
import shlex
import socket
import time
from pathlib import Path

import pytest

from tests.node import SOURCE, ChronikNode
from tests.process import POLL_S, brokers_seen
from tools.check_docs import known_flags

UNIT = SOURCE.parent / "deploy" / "systemd" / "chronik.service"
DEADLINE_S = 60

pytestmark = pytest.mark.usefixtures("only_chronik")


@pytest.mark.parametrize("is_abstract", [False, True], ids=["file", "abstract"])
def test_ready_means_that_clients_are_served(tmp_path: Path, is_abstract: bool) -> None:
    name = f"@chronik-{tmp_path.name}-{tmp_path.parent.name}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if is_abstract else name)
        manager.settimeout(DEADLINE_S)
        node = ChronikNode(tmp_path / "node", env={"NOTIFY_SOCKET": name})
        node.spawn()
        try:
            assert manager.recv(4096) == b"READY=1"
            assert brokers_seen(node.kafka_port) == 1
            node.stop()
        finally:
            node.kill()
        assert manager.recv(4096) == b"STOPPING=1"


def test_a_manager_that_is_gone_does_not_stop_a_node(tmp_path: Path) -> None:
    with ChronikNode(tmp_path / "node", env={"NOTIFY_SOCKET": str(tmp_path / "nobody")}) as node:
        deadline = time.monotonic() + DEADLINE_S
        while "cannot be told READY=1" not in node.log_tail():
            assert time.monotonic() < deadline, node.log_tail()
            time.sleep(POLL_S)
        node.stop()
        said = node.log_tail()
    assert "cannot be told STOPPING=1" in said
    assert "Traceback" not in said


def test_the_unit_starts_the_node_with_flags_that_exist_and_waits_for_it() -> None:
    unit = configparser.RawConfigParser(strict=False)  # systemd repeats keys
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    program, command, *flags = shlex.split(service["ExecStart"])
    assert (Path(program).name, command) == ("chronik", "start")
    assert {flag for flag in flags if flag.startswith("--")} <= known_flags()
    assert service["Type"] == "notify"
    assert service["TimeoutStartSec"] == "infinity"
    assert (service["NoNewPrivileges"], service["ProtectSystem"], service["DynamicUser"]) == (
        "yes",
        "strict",
        "yes",
    )
    assert f"/var/lib/{service['StateDirectory']}" == flags[flags.index("--data-dir") + 1]
