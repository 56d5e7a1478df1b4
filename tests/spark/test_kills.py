"""kill -9 of the driver, of a Python worker and of the broker, at random moments of each kind of job.

After every round the job is run until it ends well, and then its result has each record once: by count and by
hash for each partition. `make spark-kills ROUNDS=20` is the long form.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import tantivy

from chronik.spark.jobs.index import read_manifest
from tests.node import SOURCE, ChronikNode
from tests.spark.processes import descendants, is_worker, wait_for
from tests.spark.topics import Topics

PARTITIONS = 3
RECORDS = 4000
"""Of each partition and round."""
ATTEMPTS_MAX = 5
Numbers = dict[int, list[int]]
"""By partition of the source, the numbers that its records carry."""

PIPELINE = """
name = "copy"
bootstrap = "{bootstrap}"
trigger = "available-now"
checkpoint = "checkpoint"
[sources.rows]
topic = "source"
decode = "raw"
[sinks.copy]
from = "rows"
format = "topic"
topic = "target"
value = "value"
"""


def command(job: str, node: ChronikNode, folder: Path) -> list[str]:
    conf = ["--spark-conf", "spark.driver.memory=512m", "--master", "local[2]"]
    start = [sys.executable, "-c", "from chronik.cli import main; main()", "pipeline"]
    to = ["source", "--to", str(folder / "result"), "--step", str(RECORDS), "--bootstrap", node.bootstrap]
    match job:
        case "archive":
            return [*start, "archive", *to, *conf]
        case "index":
            return [*start, "index", *to, *conf]
    file = folder / "copy.toml"
    file.write_text(PIPELINE.format(bootstrap=node.bootstrap))
    return [*start, "run", str(file), *conf]


class Job:
    """One run, in a session of its own so that all of it can be killed."""

    def __init__(self, job: str, node: ChronikNode, folder: Path) -> None:
        self.log = folder / "job.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command(job, node, folder),
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(SOURCE)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def workers(self) -> list[int]:
        return [pid for pid, line in descendants(self._process.pid).items() if is_worker(line)]

    def wait_until_it_works(self) -> None:
        wait_for(lambda: self.ended or len(self.workers()) > 1, "a Python worker", 240)

    def kill_worker(self, source: random.Random) -> None:
        for pid in source.sample(workers := self.workers(), min(1, len(workers))):
            kill(pid)

    def kill_all(self) -> None:
        family = descendants(self._process.pid)
        self._process.kill()
        self._process.wait()
        for pid in family:
            kill(pid)

    def succeeded(self) -> bool:
        return self._process.wait(300) == 0


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def archived(folder: Path, _: Topics) -> Numbers:
    found: Numbers = {}
    for file in sorted((folder / "result" / "topic=source").rglob("*.parquet")):
        table = pq.ParquetFile(file).read(columns=["partition", "offset", "value"])
        for partition, offset, value in zip(*(column.to_pylist() for column in table.columns), strict=True):
            assert value["n"] == offset
            found.setdefault(partition, []).append(value["n"])
    return found


def copied(_: Path, topics: Topics) -> Numbers:
    found: Numbers = {}
    for records in topics.records("target", PARTITIONS):
        for record in records:
            partition, number = (
                (record.value or b"").removeprefix(b'{"p": ').removesuffix(b"}").split(b', "n": ')
            )
            found.setdefault(int(partition), []).append(int(number))
    return found


def indexed(folder: Path, _: Topics) -> Numbers:
    root = folder / "result" / "source"
    manifest = read_manifest(root)
    assert manifest is not None
    opened = tantivy.Index.open(str(root / manifest.path))
    searcher = opened.searcher()
    hits = searcher.search(tantivy.Query.all_query(), manifest.documents + 1000).hits
    found: Numbers = {}
    for _score, address in hits:
        document = searcher.doc(address)
        found.setdefault(document["_partition"][0], []).append(document["_offset"][0])
    assert sum(manifest.offsets.values()) == manifest.documents
    return found


RESULTS: dict[str, Callable[[Path, Topics], Numbers]] = {
    "archive": archived,
    "topic": copied,
    "index": indexed,
}
VICTIMS = {"archive": "driver", "topic": "worker", "index": "broker"}
"""Of the first round; later ones choose at random."""


def fingerprint(numbers: Iterable[int]) -> tuple[int, str]:
    ordered = sorted(numbers)
    return len(ordered), hashlib.sha256(repr(ordered).encode()).hexdigest()


def strike(victim: str, job: Job, node: ChronikNode, source: random.Random) -> None:
    """Kill the victim while the job works, at a moment that chance chooses."""
    job.wait_until_it_works()
    time.sleep(source.uniform(0, 3))
    match victim:
        case "driver":
            job.kill_all()
        case "worker":
            job.kill_worker(source)
        case "broker":
            node.kill()
            node.start()


@pytest.mark.parametrize("kind", RESULTS)
@pytest.mark.timeout(7200)
def test_every_record_once_through_kills(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rounds = request.config.getoption("--spark-kill-rounds")
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    source = random.Random(seed)
    with ChronikNode(tmp_path / "node") as node, Topics(node.bootstrap) as topics:
        assert isinstance(node, ChronikNode)
        for name in ("source", "target"):
            topics.create(partitions=PARTITIONS, name=name)
        for number in range(rounds):
            for partition in range(PARTITIONS):
                first = number * RECORDS
                values = [b'{"p": %d, "n": %d}' % (partition, n) for n in range(first, first + RECORDS)]
                topics.fill("source", values, partition=partition)
            victim = VICTIMS[kind] if number == 0 else source.choice(tuple(VICTIMS.values()))
            job = Job(kind, node, tmp_path)
            try:
                strike(victim, job, node, source)
                for _ in range(ATTEMPTS_MAX):
                    if job.succeeded():
                        break
                    job = Job(kind, node, tmp_path)
                assert job.succeeded(), job.log.read_text()[-3000:]
            finally:
                if not job.ended:
                    job.kill_all()
            expected = fingerprint(range((number + 1) * RECORDS))
            found = RESULTS[kind](tmp_path, topics)
            print(f"round {number}: {kind}, {victim} killed: {expected[0]} records of each partition")
            assert {p: fingerprint(found.get(p, ())) for p in range(PARTITIONS)} == dict.fromkeys(
                range(PARTITIONS), expected
            )
