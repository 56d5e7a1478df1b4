"""A job on a real Spark master with two workers, one of which is killed in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pyspark
import pytest

from chronik.testing import free_ports
from tests.node import SOURCE, ChronikNode
from tests.spark.processes import descendants, is_worker, wait_for
from tests.spark.test_kills import archived, fingerprint, kill
from tests.spark.topics import Topics

HOME = Path(pyspark.__file__).parent
PARTITIONS = 3
RECORDS = 20_000


class Standalone:
    """`spark-class` starts a master and its workers, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._port, self._web_port = free_ports(2)

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Standalone:
        try:
            ports = ["--port", str(self._port), "--webui-port", str(self._web_port)]
            self._start("master", "org.apache.spark.deploy.master.Master", *ports)
            wait_for(lambda: self.workers_alive() is not None, "the master")
            for name in ("worker-1", "worker-2"):
                flags = [
                    "--cores",
                    "1",
                    "--memory",
                    "1g",
                    "--webui-port",
                    "0",
                    "-d",
                    str(self._folder / name),
                ]
                self._start(name, "org.apache.spark.deploy.worker.Worker", *flags, self.url)
            wait_for(lambda: self.workers_alive() == 2, "two workers")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, name: str, java_class: str, *flags: str) -> None:
        environment = {
            **os.environ,
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(SOURCE),
        }
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [str(HOME / "bin" / "spark-class"), java_class, "--host", "127.0.0.1", *flags],
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def workers_alive(self) -> int | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._web_port}/json/", timeout=10) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (OSError, ValueError, urllib.error.URLError):
            return None

    def busy(self) -> list[str]:
        """The workers whose executors run Python."""
        return [
            name
            for name, process in self._processes.items()
            if any(is_worker(line) for line in descendants(process.pid).values())
        ]

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        family = descendants(process.pid)
        process.kill()
        process.wait()
        for pid in family:
            kill(pid)

    def close(self) -> None:
        for name in reversed(list(self._processes)):
            self.kill(name)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Standalone]:
    folder = tmp_path / "standalone"
    folder.mkdir()
    with Standalone(folder) as running:
        yield running


def archive_command(node: ChronikNode, folder: Path, master: str) -> list[str]:
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
    }
    settings = [part for name, value in conf.items() for part in ("--spark-conf", f"{name}={value}")]
    start = [sys.executable, "-c", "from chronik.cli import main; main()", "pipeline", "archive", "source"]
    return [
        *start,
        "--to",
        str(folder / "result"),
        "--bootstrap",
        node.bootstrap,
        "--master",
        master,
        *settings,
    ]


def test_a_worker_is_killed_in_the_middle(
    master: Standalone, node: ChronikNode, topics: Topics, tmp_path: Path
) -> None:
    topics.create(partitions=PARTITIONS, name="source")
    for partition in range(PARTITIONS):
        topics.fill(
            "source", [b'{"p": %d, "n": %d}' % (partition, n) for n in range(RECORDS)], partition=partition
        )
    with (tmp_path / "job.log").open("wb") as log:
        job = subprocess.Popen(
            archive_command(node, tmp_path, master.url),
            env={**os.environ, "PYTHONPATH": str(SOURCE), "SPARK_LOCAL_IP": "127.0.0.1"},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(lambda: bool(master.busy()) or job.poll() is not None, "a busy worker", 400)
        assert job.poll() is None, (tmp_path / "job.log").read_text()[-3000:]
        master.kill(master.busy()[0])
        assert job.wait(300) == 0, (tmp_path / "job.log").read_text()[-3000:]
    finally:
        job.kill()
        job.wait()
    assert master.workers_alive() is not None
    found = archived(tmp_path, topics)
    expected = fingerprint(range(RECORDS))
    assert {p: fingerprint(found[p]) for p in range(PARTITIONS)} == dict.fromkeys(range(PARTITIONS), expected)
