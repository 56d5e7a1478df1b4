"""Jobs on a real Spark master with two workers: as the documentation says, and with a worker killed (P05)."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pyarrow.parquet as pq
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


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone")) as running:
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


def documented_command(master: str, folder: Path, topic: str) -> tuple[dict[str, str], list[str]]:
    """The line of PIPELINE.md for `spark-submit`, with the places of this test: environment, arguments."""
    text = (SOURCE.parent / "docs" / "PIPELINE.md").read_text()
    (line,) = (each for each in text.splitlines() if "spark-submit --master" in each)
    (program,) = re.findall(r"`submit.py` is one line, `([^`]+)`", text)
    (folder / "submit.py").write_text(program)
    python, *words = shlex.split(line)
    assert python.startswith("PYSPARK_PYTHON=")
    memory = ["--driver-memory", "512m", "--executor-memory", "512m"]
    places = {
        "spark-submit": [str(HOME / "bin" / "spark-submit"), *memory],
        "yarn": [master],
        "submit.py": [str(folder / "submit.py")],
        "orders": [topic],
        "hdfs:///topics": [str(folder / "result")],
    }
    assert set(places) <= set(words)
    return {"PYSPARK_PYTHON": sys.executable}, [part for word in words for part in places.get(word, [word])]


def test_the_documented_line_for_spark_submit(
    master: Standalone, node: ChronikNode, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create()
    topics.fill(topic, [b'{"n": %d}' % n for n in range(1000)])
    environment, command = documented_command(master.url, tmp_path, topic)
    said = subprocess.run(
        [*command, "--bootstrap", node.bootstrap],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "SPARK_LOCAL_IP": "127.0.0.1", **environment},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stdout[-3000:]
    files = (tmp_path / "result" / f"topic={topic}").rglob("*.parquet")
    offsets = [
        n for file in files for n in pq.ParquetFile(file).read(columns=["offset"])["offset"].to_pylist()
    ]
    assert sorted(offsets) == list(range(1000))


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
