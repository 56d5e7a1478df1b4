"""Python processes that Spark starts, forked from one that has loaded what they need."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node import SOURCE
from tests.process import POLL_S

DEADLINE_S = 60
MODULE = """
import json, os, sys
print("to the log", file=sys.stderr)
told = {"name": __name__, "arguments": sys.argv[1:], "mine": os.environ.get("MINE"), "directory": os.getcwd()}
loaded = "pyspark.worker" in sys.modules
print(json.dumps({**told, "loaded": loaded, "process": os.getpid(), "parent": os.getppid()}), flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")


class Spark:
    """Starts processes as Spark does: each has pipes, whose other ends nobody else holds."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.processes: list[subprocess.Popen[str]] = []
        (home / ".cache").mkdir()
        (home / "told.py").write_text(MODULE)

    def start(self, *arguments: str, directory: Path | None = None, **environment: str) -> dict[str, Any]:
        """What the process says about itself; it stays until its standard input ends."""
        path = os.pathsep.join((str(SOURCE), str(self._home)))
        self.processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "chronik.spark.interpreter", "-m", "told", *arguments],
                cwd=directory or self._home,
                env={**os.environ, "HOME": str(self._home), "PYTHONPATH": path, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        stdout = self.processes[-1].stdout
        assert stdout is not None
        said: dict[str, Any] = json.loads(stdout.readline())
        return said

    def end(self, number: int) -> str:
        """What the process wrote to its log."""
        return self.processes[number].communicate(timeout=DEADLINE_S)[1]

    @property
    def sockets(self) -> list[Path]:
        return list(self._home.rglob("spark-*"))


@pytest.fixture
def spark() -> Iterator[Spark]:
    # Not pytest's folder: the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="spark-") as home:
        made = Spark(Path(home))
        yield made
        for process in made.processes:
            process.communicate(timeout=DEADLINE_S)


def lives(process: int) -> bool:
    """Not so the dead whom nobody has asked how they ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(process: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while lives(process):
        assert time.monotonic() < deadline, f"process {process} is still there"
        time.sleep(POLL_S)


def test_processes_come_from_one_and_are_what_python_would_have_made(spark: Spark, tmp_path: Path) -> None:
    first = spark.start("-m", "x")
    second = spark.start("y", directory=tmp_path, MINE="two")
    assert first["parent"] == second["parent"]
    assert first["loaded"]
    assert second["loaded"]
    assert (first["name"], first["arguments"], first["mine"]) == ("__main__", ["-m", "x"], None)
    assert (second["arguments"], second["mine"]) == (["y"], "two")
    assert second["directory"] == str(tmp_path)
    assert spark.end(1) == "to the log\n"
    wait_until_gone(second["process"])
    assert lives(first["process"])


def test_nothing_is_left_when_spark_ends(spark: Spark) -> None:
    first, second = spark.start(), spark.start()
    for number in (0, 1):
        spark.end(number)
    for process in (first["process"], second["process"], first["parent"]):
        wait_until_gone(process)
    assert not spark.sockets


def test_a_process_that_spark_ends_is_ended(spark: Spark) -> None:
    first, second = spark.start(), spark.start()
    spark.processes[1].terminate()
    wait_until_gone(second["process"])
    assert lives(first["process"])


def test_processes_start_though_the_one_before_them_was_killed(spark: Spark) -> None:
    first = spark.start()
    os.kill(first["parent"], signal.SIGKILL)
    wait_until_gone(first["parent"])
    second = spark.start()
    assert second["loaded"]
    assert second["parent"] != first["parent"]
    assert spark.end(0) == "to the log\n"


def test_another_hash_seed_is_another_python(spark: Spark) -> None:
    first, second = (spark.start(PYTHONHASHSEED=seed) for seed in "01")
    assert first["parent"] != second["parent"]


def test_without_a_place_for_a_socket_python_runs_the_module_itself(spark: Spark, tmp_path: Path) -> None:
    long = tmp_path / ("long" * 30)
    (long / ".cache").mkdir(parents=True)
    said = spark.start("z", HOME=str(long))
    assert (said["arguments"], said["loaded"], said["parent"]) == (["z"], False, os.getpid())
