"""`chronik start --shards 2`: two nodes under one supervisor. One is killed under load, and comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import clients
from tests.cluster.load import Load
from tests.cluster.test_tools import ROOT, Tool, port_flags

PARTITIONS = 4


class Machine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = port_flags()
        self.tool = Tool(folder)
        self._process: subprocess.Popen[str] | None = None

    def command(self, *arguments: str) -> list[str]:
        main = [sys.executable, "-c", "from chronik.cli import main; main()", "start"]
        return [*main, "--data-dir", str(self.folder), *self.ports, *arguments]

    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("CHRONIK_")}
        return {**clean, "PYTHONPATH": str(ROOT / "src")}

    def start(self, *arguments: str) -> str:
        """Returns what it says when all shards are ready."""
        self._process = subprocess.Popen(
            self.command(*arguments), env=self.environment(), stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if line.startswith("Ctrl-C"):
                return "".join(lines)
        raise AssertionError(f"it ended with {self._process.wait()}: {lines}")

    def refused(self, *arguments: str) -> str:
        done = subprocess.run(
            self.command(*arguments),
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode != 0
        return done.stdout + done.stderr

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(60)

    def nodes(self) -> list[dict[str, object]]:
        return list(self.tool.status_now()["nodes"])  # type: ignore[call-overload]

    def pids(self) -> dict[int, int]:
        """By node; one whose file is being written is left out."""
        files = self.folder.glob("shard-*/node.pid")
        told = {int(path.parent.name[6:]): path.read_text() for path in files}
        return {node: int(text) for node, text in told.items() if text}

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path / "machine")
    yield found
    if found._process is not None and found._process.poll() is None:
        found.stop(signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.timeout(180)
def test_a_shard_that_is_killed_under_load_comes_back_and_loses_nothing(machine: Machine) -> None:
    told = machine.start("--shards", "2")
    assert "shards 1, 2" in told
    assert f"Kafka    {machine.bootstrap}" in told
    clients.create(clients.admin(machine.bootstrap), "orders", partitions=PARTITIONS, replicas=1)
    with Load(machine.bootstrap, "orders", PARTITIONS) as load:
        load.wait_acked(10)
        before = machine.pids()
        os.kill(before[2], signal.SIGKILL)
        clients.until(
            lambda: is_alive(machine.pids().get(2, before[2])) and machine.pids()[2] != before[2], 30
        )
        clients.until(lambda: machine.tool.status_now()["healthy"], 60)
        load.wait_acked(10)
        assert machine.pids()[1] == before[1], "the other one was left alone"
    assert not load.failures
    load.check()
    nodes = machine.nodes()
    assert len({node["machine"] for node in nodes}) == 1
    assert all(node["partitions_led"] for node in nodes), "both have something to do"
    assert "1 machine, 2 shards" in machine.tool("status", code=(0, 1))
    pids = machine.pids()
    assert machine.stop() == 0
    assert not any(map(is_alive, pids.values()))
    assert "holds shards" in machine.refused()
    assert "say --shards 2" in machine.refused("--shards", "3")
    # Killed itself, the supervisor takes its shards along, and the next start recovers.
    machine.start("--shards", "2")
    pids = machine.pids()
    machine.stop(signal.SIGKILL)
    clients.until(lambda: not any(map(is_alive, pids.values())), 30)
    machine.start("--shards", "2")
    load.check()
    assert json.loads(machine.tool("status", "--json", code=(0, 1)))["controller"] in (1, 2)
