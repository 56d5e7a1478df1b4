"""Rounds: one door is fed for a while, then the node is killed or stopped and must recover."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeAlias
from uuid import UUID

from chronik.server.first_user import write_first_user
from chronik.testing import free_ports
from chronik.wire.api import ApiKey
from tests.fuzz import (
    canaries,
    file_readers,
    http_door,
    jobs_door,
    kafka_door,
    logins_door,
    peers_door,
    readers_door,
    records_door,
    telemetry_door,
    tiered_door,
)
from tests.fuzz.beside import Beside
from tests.fuzz.inputs import Input, Recording
from tests.fuzz.sending import Sender
from tests.fuzz.typed_bodies import WIDE
from tests.fuzz.watching import MIB, Watch
from tests.node import ChronikNode
from tests.process import HOST
from tests.wire import WireClient

Door: TypeAlias = Callable[[random.Random, list[UUID]], Iterator[Input]]
DOORS: Final[dict[str, Door]] = {
    "kafka": kafka_door.inputs,
    "records": records_door.inputs,
    "http": http_door.inputs,
    "peers": peers_door.inputs,
    "readers": readers_door.inputs,
    "files": file_readers.inputs,
    "telemetry": telemetry_door.inputs,
    "tiered": tiered_door.inputs,
    "logins": logins_door.inputs,
    "jobs": jobs_door.inputs,
}


def _rest(pick: random.Random, topic_ids: list[UUID]) -> Iterator[Input]:
    doors = [DOORS[door](pick, topic_ids) for door in ("files", "telemetry", "tiered", "logins")]
    while True:
        yield next(pick.choice(doors))


SHORT: Final = ("kafka", "records", "http", "peers", "readers", "rest")
"""The rounds of the short form. The last is for several doors together, since each round has a restart; none
is for Spark, which takes a quarter of a minute to start."""
SECRET: Final = "fuzz-secret"
SENDERS: Final = 8
WIDE_PARTITIONS: Final = 100
MEASURE_S: Final = 2.0
HEALTH_P95_MAX_S: Final = 0.3
HEALTH_QUIET_S: Final = 0.05
"""p95 of `/health` without us up to which a machine is quiet."""
P99_FACTOR: Final = 10.0
P99_FLOOR_S: Final = 0.5
"""The client's p99 may be so many times what it is without us, and is never too long below the floor: the
senders alone keep a core busy."""
NODE_GROWTH_MAX: Final = 200 * MIB
SQL_MEMORY: Final = 256 * MIB
BUDGETS: Final = {
    "node": NODE_GROWTH_MAX,
    "search": 512 * MIB,
    "sql": SQL_MEMORY + 512 * MIB,
    "child": 256 * MIB,
}
CONFIGS: Final = {
    records_door.PLAIN: {},
    records_door.SEARCHABLE: {"searchable": "true"},
    records_door.COMPACTED: {
        "cleanup.policy": "compact",
        "segment.bytes": "1048576",
        "segment.ms": "1000",
        "min.cleanable.dirty.ratio": "0.01",
    },
}


class FuzzNode(ChronikNode):
    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder,
            env={"CHRONIK_CLUSTER_SECRET": SECRET, "CHRONIK_ADMIN_API_KEY": http_door.API_KEY},
            cleaner_backoff_ms=500,
            sql_timeout_ms=3_000,
            sql_memory_bytes_max=SQL_MEMORY,
            offsets_topic_partitions=4,
            transactions_topic_partitions=4,
            wal_file_bytes=4 * MIB,
            archive_dir=canaries.FOLDER,
            tiering_interval_ms=200,
            retention_check_interval_ms=500,
        )
        self.store = folder / "objects"
        self.settings["object_store"] = self.store.as_uri()
        (self.logins_port,) = free_ports(1)
        self.settings |= {
            "listeners": f"{logins_door.LISTENER}://{HOST}:{self.logins_port}",
            "listener_security_protocol_map": f"{logins_door.LISTENER}:SASL_PLAINTEXT",
            "sasl_enabled_mechanisms": ",".join(logins_door.OFFERED),
            "sasl_oauthbearer_jwks": folder / "jwks.json",
        }
        logins_door.write_keys(folder / "jwks.json")
        write_first_user(self.data_dir, logins_door.USER, logins_door.PASSWORD)
        self.open_peer_ports()

    @property
    def ports(self) -> dict[str, int]:
        named = ("kafka", "http", "wal", "raft")
        own = {name: int(str(self.settings[f"{name}_port"])) for name in named}
        return {**own, logins_door.PORT: self.logins_port}


class Campaign:
    """A node, the client beside it, and what was found."""

    def __init__(self, folder: Path, seed: int, *, judges_health: bool = False) -> None:
        """With `judges_health`, how long most answers of `/health` took counts on a quiet machine."""
        self.node = FuzzNode(folder / "node")
        self._judges_health = judges_health
        self.seed = seed
        self.findings: list[str] = []
        self.counts: Counter[str] = Counter()
        self.figures: dict[str, float] = {
            "p99_ms": 0.0,
            "base_p99_ms": 0.0,
            "health_ms": 0.0,
            "node_mib": 0.0,
        }
        self._folder = folder
        self._beside = Beside(self.node.bootstrap)
        self._base_p99_s = self._base_health_s = 0.0

    def __enter__(self) -> Campaign:
        canaries.plant()
        self.node.start()
        self._beside.create_topic()
        self._beside.keep_a_secret()
        self._make_lasting_topics()
        return self

    def __exit__(self, *exception: object) -> None:
        self.node.kill()

    def measure(self, seconds: float) -> None:
        """What the client's requests and `/health` take while nobody disturbs them."""
        watch = Watch(self.node, BUDGETS)
        self._beside.start()
        watch.start()
        time.sleep(seconds)
        watch.stop()
        self._beside.stop()
        self._base_health_s = watch.health_p95_s()
        self._base_p99_s = self._beside.p99_s()
        self.figures["base_p99_ms"] = self._base_p99_s * 1000
        self._find("without disturbance", self._beside.problems, "")

    def run(self, seconds: float, doors: Iterable[str], round_seconds: float) -> None:
        """Rounds of all doors by turns until the time is over, each door at least once."""
        deadline = time.monotonic() + seconds
        for number in itertools.count():
            for door in doors:
                if number and time.monotonic() >= deadline:
                    return
                if number:
                    self.measure(MEASURE_S)  # a machine with other work is slower by now, for everybody
                seed = f"{self.seed}/{door}/{number}"
                ids = self._make_topics(afresh=door == "records")
                source = (DOORS | {"rest": _rest})[door](
                    random.Random(seed), [UUID(hex=each) for each in ids.values()]
                )
                self.round(Recording(door, seed, ids), source, round_seconds, is_kill=number % 2 == 0)

    def replay(self, recording: Recording) -> None:
        ids = self._make_topics(afresh=False)
        again = Recording(recording.door, recording.seed, ids)
        self.round(again, iter(recording.with_ids(ids)), 3600, is_kill=True, is_again=True)

    def round(
        self,
        recording: Recording,
        source: Iterator[Input],
        seconds: float,
        *,
        is_kill: bool,
        is_again: bool = False,
    ) -> None:
        """One door for so long, or until there is no input left, then a restart.

        A round that was slow for the client is sent again, after a new measurement of the undisturbed client:
        only inputs that are slow twice are a finding, since what else the machine does may be slow once.
        """
        watch = Watch(self.node, BUDGETS)
        self._beside.problems.clear()
        self._beside.start()
        watch.start()
        try:
            problems = asyncio.run(self._feed(recording, source, seconds))
        finally:
            self._beside.stop()
            watch.stop()
        problems += watch.problems + self._beside.problems
        p99_s = self._beside.p99_s()
        slow = []
        if p99_s > max(P99_FLOOR_S, P99_FACTOR * self._base_p99_s):
            slow.append(f"the client's p99 was {p99_s * 1000:.0f} ms, {self._base_p99_s * 1000:.0f} before")
        if self._is_health_slow(recording.door, watch):
            slow.append(f"the p95 of /health was {watch.health_p95_s() * 1000:.0f} ms")
        if is_again:
            problems += slow
        self._note(p99_s, watch)
        problems += self._restart(is_kill=is_kill)
        watch.problems.clear()
        watch.read_log()  # what stopping, recovery and the first readers wrote
        problems += watch.problems + canaries.written(self.node.data_dir)
        self.counts[recording.door] += len(recording.inputs)
        path = self._folder / f"inputs-{recording.seed.replace('/', '-')}.jsonl"
        if problems:
            recording.write(path)
        self._find(f"--seed {self.seed}, round {recording.seed}", problems, f" (inputs: {path})")
        print(
            f"{recording.seed}: {len(recording.inputs)} inputs, client p99 {p99_s * 1000:.0f} ms, "
            f"/health {watch.slowest_s * 1000:.0f} ms, {_peaks(watch)}, {len(problems)} findings",
            flush=True,
        )
        if slow and not is_again:
            print(f"{recording.seed}: slow for those beside it, so it is sent again", flush=True)
            self.measure(MEASURE_S)
            again = Recording(recording.door, f"{recording.seed}/again", recording.topic_ids)
            self.round(again, iter(recording.inputs), seconds, is_kill=is_kill, is_again=True)

    def _is_health_slow(self, door: str, watch: Watch) -> bool:
        if not self._judges_health or door == "jobs" or self._base_health_s > HEALTH_QUIET_S:
            return False
        return watch.health_p95_s() > HEALTH_P95_MAX_S

    # --- parts of a round ---------------------------------------------------------------------------

    async def _feed(self, recording: Recording, source: Iterator[Input], seconds: float) -> list[str]:
        # A node hangs up on nonsense while it is being sent: asyncio would say so each time.
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        sender = Sender(self.node.ports, SECRET.encode(), self.node.store)
        deadline = time.monotonic() + seconds
        problems: list[str] = []

        async def work() -> None:
            while time.monotonic() < deadline and self.node.running:
                one = next(source, None)
                if one is None:
                    return
                recording.inputs.append(one)
                wrong = await sender.send(one)
                if wrong is not None:
                    problems.append(f"input {recording.inputs.index(one) + 1}, {one.what}: {wrong}")

        try:
            await asyncio.gather(*(work() for _ in range(SENDERS)))
        finally:
            sender.close()
        return problems

    def _restart(self, *, is_kill: bool) -> list[str]:
        if self.node.running:
            try:
                self.node.kill() if is_kill else self.node.stop()
            except AssertionError as error:
                return [str(error)]
        try:
            self.node.start()
            return self._beside.check_everything()
        except AssertionError as error:
            return [f"no restart: {error}"]

    def _make_lasting_topics(self) -> None:
        client = WireClient(self.node.kafka_port, timeout_s=60)
        configs = [{"name": name, "value": value} for name, value in tiered_door.CONFIGS.items()]
        wanted = [
            {"name": WIDE, "num_partitions": WIDE_PARTITIONS, "replication_factor": 1},
            {"name": tiered_door.TOPIC, "num_partitions": 1, "replication_factor": 1, "configs": configs},
        ]
        answer = client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": wanted, "timeout": 30_000})
        client.close()
        assert all(topic.error_code == 0 for topic in answer.topics), answer

    def _make_topics(self, *, afresh: bool) -> dict[str, str]:
        """The topics that inputs name, made if they are not there; their ids."""
        client = WireClient(self.node.kafka_port, timeout_s=60)
        if afresh:
            topics = [{"name": name, "topic_id": UUID(int=0)} for name in CONFIGS]
            client.ask(ApiKey.DELETE_TOPICS, 6, {"topics": topics, "timeout": 30_000})
        wanted = [
            {
                "name": name,
                "num_partitions": 1,
                "replication_factor": 1,
                "configs": [{"name": key, "value": value} for key, value in configs.items()],
            }
            for name, configs in CONFIGS.items()
        ]
        client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": wanted, "timeout": 30_000})
        answer = client.ask(ApiKey.METADATA, 12, {"topics": [{"name": name} for name in CONFIGS]})
        client.close()
        return {topic.name: topic.topic_id.hex for topic in answer.topics if topic.topic_id is not None}

    def _find(self, where: str, problems: list[str], files: str) -> None:
        kinds: Counter[str] = Counter()
        for problem in problems:
            kind = re.sub(r"^input \d+, ", "", problem)[:30]
            kinds[kind] += 1
            if kinds[kind] <= 5:  # one cause shows itself again and again
                self.findings.append(f"{where}: {problem}{files}")
                print(f"FINDING {self.findings[-1]}", flush=True)

    def _note(self, p99_s: float, watch: Watch) -> None:
        now = {"p99_ms": p99_s * 1000, "health_ms": watch.slowest_s * 1000}
        now["health_p95_ms"] = watch.health_p95_s() * 1000
        now |= {f"{kind}_mib": peak / MIB for kind, peak in watch.peaks.items()}
        for name, value in now.items():
            self.figures[name] = max(self.figures.get(name, 0.0), value)

    def summary(self) -> str:
        figures = json.dumps({name: round(value, 1) for name, value in self.figures.items()})
        return f"seed {self.seed}: inputs {dict(self.counts)}, {figures}, {len(self.findings)} findings"


def _peaks(watch: Watch) -> str:
    return ", ".join(f"{kind} {peak // MIB} MiB" for kind, peak in watch.peaks.items())
