"""`chronik topic alter`, `chronik top` and shell completion, as a person uses them."""

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

from tests.node import SOURCE, ChronikNode

pytestmark = pytest.mark.usefixtures("only_chronik")


def chronik(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "chronik", *args],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChronikNode]:
    made = ChronikNode(tmp_path_factory.mktemp("alter"))
    made.start()
    yield made
    made.kill()


def described(node: ChronikNode, topic: str) -> dict[str, Any]:
    (found,) = json.loads(chronik("topic", "describe", topic, "--json", "-b", node.bootstrap).stdout)
    return dict(found)


def test_partitions_and_configs_change_together(node: ChronikNode) -> None:
    chronik("topic", "create", "a", "-p", "2", "-c", "retention.ms=5000", "-b", node.bootstrap)
    flags = ("--partitions", "5", "--config", "max.message.bytes=2000", "--unset", "retention.ms")
    done = chronik("topic", "alter", "a", *flags, "-b", node.bootstrap)
    assert (done.returncode, done.stderr) == (0, "")
    assert "a has 5 partitions now, 2 before" in done.stdout
    now = described(node, "a")
    assert len(now["partitions"]) == 5
    assert now["configs"] == {"max.message.bytes": "2000"}


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((), "say what to change"),
        (("--partitions", "3"), "give --partitions a larger number"),
        (("--partitions", "9", "--config", "retention.ms=soon"), "retention.ms"),
    ],
)
def test_what_cannot_be_changes_nothing(node: ChronikNode, flags: tuple[str, ...], sentence: str) -> None:
    chronik("topic", "create", "b", "-p", "3", "--if-not-exists", "-b", node.bootstrap)
    done = chronik("topic", "alter", "b", *flags, "-b", node.bootstrap)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    now = described(node, "b")
    assert (len(now["partitions"]), now["configs"]) == (3, {})


def test_a_topic_that_is_not_there(node: ChronikNode) -> None:
    done = chronik("topic", "alter", "nowhere", "--partitions", "3", "-b", node.bootstrap)
    assert done.returncode == 2
    assert "topic 'nowhere' does not exist" in done.stderr


def asked_by(shell: str, typed: str) -> dict[str, str]:
    """The variables with which the shell's completion script asks for what may follow."""
    if shell == "bash":
        asked = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    else:
        asked = {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    return {"_CHRONIK_COMPLETE": f"complete_{shell}", **asked}


def offers(shell: str, answer: str) -> list[str]:
    """The words alone: zsh and fish show what each one means, too."""
    if shell == "zsh":
        return re.findall(r'"([^"]+)":"', answer)
    return [line.split("\t")[0] for line in answer.split("\n") if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("typed", "offered"),
    [("chronik top", ["top", "topic"]), ("chronik topic al", ["alter"]), ("chronik nothing", [])],
)
def test_a_shell_completes(shell: str, typed: str, offered: list[str], tmp_path: Path) -> None:
    done = chronik(**asked_by(shell, typed), HOME=str(tmp_path))
    assert offers(shell, done.stdout) == offered, done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_calls_chronik_back(shell: str, tmp_path: Path) -> None:
    script = chronik(_CHRONIK_COMPLETE=f"source_{shell}", HOME=str(tmp_path)).stdout
    named = set(re.findall(r"_(?:CHRONIK|TYPER)_\w+|COMP_\w+", script))
    answered = set(asked_by(shell, "chronik")) - (
        {"_TYPER_COMPLETE_FISH_ACTION"} if shell == "zsh" else set()
    )
    assert answered <= named, "the test asks as the script does"
    assert f"_CHRONIK_COMPLETE=complete_{shell}" in script
    if program := shutil.which(shell):
        subprocess.run([program, "-n", "-c", script], check=True, timeout=30)


def test_top_shows_each_node_once(node: ChronikNode) -> None:
    done = chronik("top", "--once", "--interval", "0.2", "-b", node.bootstrap, COLUMNS="160")
    assert (done.returncode, done.stderr) == (0, "")
    (row,) = [line.split() for line in done.stdout.splitlines() if " ready " in line]
    assert row[:2] == ["1", "ready"]
    assert "0 offline" in done.stdout
