"""Every command of "What to look at when…" in docs/OPERATIONS.md, run as it stands against a live cluster."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from tests.cluster import clients
from tests.cluster.test_tools import ROOT, Tool, port_flags

SECTION = "## What to look at when…"


def commands() -> list[str]:
    text = (ROOT / "docs" / "OPERATIONS.md").read_text().split(SECTION, 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


class Shell:
    """A person's shell in the folder of a cluster whose ports are others than the documented ones."""

    def __init__(self, folder: Path, told: dict[str, Any]) -> None:
        self._folder = folder
        self._told = told
        binaries = folder / "bin"
        binaries.mkdir()
        script = binaries / "chronik"
        script.write_text(f"#!{sys.executable}\nfrom chronik.cli import main\nmain()\n")
        script.chmod(0o700)
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("CHRONIK_")},
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "CHRONIK_BOOTSTRAP": told["bootstrap"],
        }

    def __call__(self, command: str) -> str:
        for node in self._told["nodes"]:
            command = command.replace(str(10000 + node["node"]), node["http"].rsplit(":", 1)[1])
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self._folder,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


def read_in_a_group(bootstrap: str) -> None:
    settings = {"group.id": "payments", "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.subscribe(["orders"])
    message = consumer.poll(60)
    assert message is not None
    assert message.error() is None
    consumer.commit(message, asynchronous=False)
    consumer.close()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    for program in ("jq", "curl"):
        assert shutil.which(program), (
            f"{program} is not there: install it (Debian: apt-get install {program})"
        )
    tool = Tool(tmp_path / "chronik-cluster")
    told = json.loads(tool("up", "--nodes", "3", "--json", *port_flags()))
    try:
        clients.send(clients.producer(told["bootstrap"]), "orders", b"hello")
        read_in_a_group(told["bootstrap"])
        tool("kill", "--node", "2")
        logs = [tool.folder / f"node{number}" / "node.log" for number in (1, 3)]
        clients.until(lambda: all("Failed to connect to follower 2" in log.read_text() for log in logs))
        tool("restart", "--node", "2")
        clients.until(lambda: tool.status_now()["healthy"] is True)
        yield Shell(tmp_path, told)
    finally:
        tool("down", "--force", "--timeout", "10")


@pytest.mark.timeout(240)
def test_every_documented_command_answers(shell: Shell) -> None:
    found = commands()
    assert len(found) > 10
    said = {command: shell(command) for command in found}
    assert [command for command, output in said.items() if not output.strip()] == []
    everything = "\n".join(said.values())
    for words in (
        "Connected to follower 2 at 127.0.0.1:",
        "Failed to connect to follower 2 at 127.0.0.1:",
        "Wrote CreateTopic('probe') to metadata WAL at offset ",
        "Follower applied CreateTopic('probe')",
        "Replicated __chronik_metadata-0 offset ",
        "AssignPartition probe-0: ",
        "SetPartitionLeader probe-0: node ",
        "Updated followers for probe-0: [127.0.0.1:",
    ):
        assert words in everything, words
    counts = said[next(one for one in found if "jq length" in one)].split()
    assert len(set(counts)) == 1
    assert int(counts[0]) > 0
