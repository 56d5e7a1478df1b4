"""Every command of the README runs as it stands there, but for ports and folders of this test's own."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chronik.testing import free_ports
from tests.node import SOURCE, ChronikNode

ROOT = SOURCE.parent
CHRONIK = shlex.join([sys.executable, "-c", "from chronik.cli import main; main()"])
DEADLINE_S = 120


pytestmark = pytest.mark.usefixtures("only_chronik")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ChronikNode]:
    made = ChronikNode(tmp_path / "node")
    made.start()
    yield made
    made.kill()


def blocks() -> list[tuple[str, str, str]]:
    """Section, language and text of every block of code."""
    text = (ROOT / "README.md").read_text()
    found = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0]
        found += [
            (title, language, code) for language, code in re.findall(r"```(\w+)\n(.*?)```", section, re.S)
        ]
    return found


def block(title: str) -> str:
    return next(code for section, _, code in blocks() if section == title)


def run(script: str, folder: Path, **env: str) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE), **env},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_block_has_its_test() -> None:
    assert [(title, language) for title, language, _ in blocks()] == [
        ("Two commands", "sh"),
        ("Five lines", "python"),
        ("Look into it", "sh"),
        ("Three nodes", "sh"),
    ]


def test_the_two_commands_are_targets() -> None:
    named = [line.split("#")[0].split() for line in block("Two commands").splitlines()]
    assert named == [["make", "run"], ["make", "test"]]
    for command in named:
        run(shlex.join([*command, "--dry-run"]), ROOT)


def test_five_lines(node: ChronikNode, tmp_path: Path) -> None:
    script = block("Five lines").replace("127.0.0.1:9092", node.bootstrap)
    (tmp_path / "five.py").write_text(script)
    assert run(shlex.join([sys.executable, "five.py"]), tmp_path).strip() == "b'hello'"


def test_look_into_it(node: ChronikNode, tmp_path: Path) -> None:
    script = block("Look into it").replace(".venv/bin/chronik", CHRONIK)
    said = run(script, tmp_path, CHRONIK_BOOTSTRAP=node.bootstrap, COLUMNS="120")
    assert "12.5" in said
    assert said.count("ada") >= 3, said  # SQL, search and consume each show the record


def test_three_nodes(tmp_path: Path) -> None:
    kafka, wal, raft, http = (first_of_three() for _ in range(4))
    ports = f"--kafka-port {kafka} --wal-port {wal} --raft-port {raft} --http-port {http}"
    lines = [line.split("  #")[0] for line in block("Three nodes").splitlines()]
    script = "\n".join(lines).replace("cluster up", f"cluster up {ports}")
    try:
        said = run(script.replace(".venv/bin/chronik", CHRONIK), tmp_path, COLUMNS="120")
    finally:
        run(f"{CHRONIK} cluster down --data-dir ./chronik-cluster || true", tmp_path)
    assert "leader" in said.lower()


def first_of_three() -> int:
    """A port that is free together with the two behind it."""
    for _ in range(100):
        (port,) = free_ports(1)
        if all(is_free(port + ahead) for ahead in (1, 2)):
            return port
    raise AssertionError("no three free ports in a row")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_the_example_of_the_page_on_testing_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "TESTING_WITH_CHRONIK.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    script = tmp_path / "example.py"
    script.write_text(code)
    said = run(f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}", tmp_path)
    assert said.strip() == "[b'one', b'two']"
