"""`chronik topic alter`, `chronik top` and shell completion, as a person uses them."""

from __future__ import annotations

import json
import os
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


@pytest.mark.parametrize(("typed", "offered"), [("chronik top", "topic"), ("chronik topic al", "alter")])
def test_bash_completes(typed: str, offered: str, tmp_path: Path) -> None:
    words = typed.split()
    done = chronik(
        _CHRONIK_COMPLETE="complete_bash",
        COMP_WORDS=typed,
        COMP_CWORD=str(len(words) - 1),
        HOME=str(tmp_path),
    )
    assert offered in done.stdout.split(), done.stderr


def test_the_completion_script_calls_chronik_back(tmp_path: Path) -> None:
    script = chronik(_CHRONIK_COMPLETE="source_bash", HOME=str(tmp_path)).stdout
    assert "_CHRONIK_COMPLETE=complete_bash" in script


def test_top_shows_each_node_once(node: ChronikNode) -> None:
    done = chronik("top", "--once", "--interval", "0.2", "-b", node.bootstrap, COLUMNS="160")
    assert (done.returncode, done.stderr) == (0, "")
    (row,) = [line.split() for line in done.stdout.splitlines() if " ready " in line]
    assert row[:2] == ["1", "ready"]
    assert "0 offline" in done.stdout
