"""Consumers of four libraries join, leave and crash: nothing is owned twice, lost, stuck or taken back."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import confluent_kafka as ck
import confluent_kafka.admin
import pytest

from tests import java
from tests.configs import set_configs
from tests.node import ChronikNode

PARTITIONS = 8
TOPIC = "churn"
KINDS = {
    "kafka-python": 6,
    "aiokafka": 6,
    "librdkafka": 6,
    "librdkafka-consumer": 5,
    "java": 1,
    "java-consumer": 1,
}
"""Libraries, the last word of those that use the protocol of KIP-848, with the consumers of one process. Each
has a group of its own and two processes: fifty consumers in all."""
PROCESSES = 2
RECORDS_PER_ROUND = 50
"""To each partition."""
DEADLINE_S = 120
LOOK_S = 0.1
WORKER = Path(__file__).with_name("churn_worker.py")


class Observed:
    """What the consumers of one group said: the records they got, and what they owned in which generation."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.seen: set[tuple[int, int]] = set()
        self.owners: dict[tuple[int, int], str] = {}
        """By generation and partition."""
        self.doubly_owned: list[str] = []
        self.refused_commits = 0
        """Of Java alone, which tells."""

    def line(self, line: bytes) -> None:
        words = line.decode().split()
        if self.kind.startswith("java"):
            self._java(line)
        elif words[0] == "own":
            self._own(int(words[1]), words[2], [int(word) for word in words[3:]])
        else:
            self.seen.add((int(words[0]), int(words[1])))

    def _own(self, generation: int, member_id: str, partitions: list[int]) -> None:
        for partition in partitions:
            other = self.owners.setdefault((generation, partition), member_id)
            if other != member_id:
                self.doubly_owned.append(f"{partition} by {other} and {member_id} in {generation}")

    def _java(self, line: bytes) -> None:
        self.refused_commits += b'"offsets_committed"' in line and b'"success":false' in line
        if b'"records_consumed"' in line:
            for part in json.loads(line)["partitions"]:
                self.seen.update(
                    (part["partition"], at) for at in range(part["minOffset"], part["maxOffset"] + 1)
                )


class Process:
    """Some consumers that live and die together."""

    def __init__(self, kind: str, bootstrap: str, observed: Observed, log: Path) -> None:
        self.kind = kind
        self._observed = observed
        if kind.startswith("java"):
            protocol = ("classic", "--session-timeout", "6000") if kind == "java" else ("consumer",)
            command = java.command(
                "org.apache.kafka.tools.VerifiableConsumer",
                *("--bootstrap-server", bootstrap, "--topic", TOPIC, "--group-id", kind),
                *("--reset-policy", "earliest", "--group-protocol", *protocol),
            )
        else:
            command = [sys.executable, str(WORKER), kind, bootstrap, kind, TOPIC, str(KINDS[kind])]
        with log.open("ab") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):  # the last words of a killed process may be cut off
                self._observed.line(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()

    def leave(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()


class Watcher:
    """Looks at the groups again and again: nobody shares a partition, no commit goes back."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
        self.committed: dict[tuple[str, int], int] = {}
        self.looks = 0

    def look(self) -> None:
        self.looks += 1
        for group, future in self._admin.describe_consumer_groups(list(KINDS)).items():
            described = future.result(60)
            owned = [
                partition.partition
                for member in described.members
                if member.assignment is not None
                for partition in member.assignment.topic_partitions
            ]
            assert len(owned) == len(set(owned)), f"{group}: a partition is owned twice: {sorted(owned)}"
        for group in KINDS:
            asked = ck.ConsumerGroupTopicPartitions(group)
            found = self._admin.list_consumer_group_offsets([asked])[group].result(60)
            for one in found.topic_partitions:
                before = self.committed.get((group, one.partition), -1)
                assert one.offset >= before, f"{group}: {one.partition} went from {before} to {one.offset}"
                self.committed[group, one.partition] = one.offset

    def is_settled(self, end: int) -> bool:
        return all(
            self.committed.get((group, partition), -1) >= end
            for group in KINDS
            for partition in range(PARTITIONS)
        )


def until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, what()
        time.sleep(LOOK_S)


class Churn:
    """Fifty consumers, and somebody who ends and replaces them at random."""

    def __init__(self, node: ChronikNode, log: Path) -> None:
        self.observed = {kind: Observed(kind) for kind in KINDS}
        self.watcher = Watcher(node.bootstrap)
        self.ends: Counter[str] = Counter()
        self.rounds = 0
        self._bootstrap = node.bootstrap
        self._log = log
        self._pick = random.Random(5)
        self._producer = ck.Producer({"bootstrap.servers": node.bootstrap})
        self.processes = [self._start(kind) for kind in KINDS for _ in range(PROCESSES)]

    def _start(self, kind: str) -> Process:
        return Process(kind, self._bootstrap, self.observed[kind], self._log)

    def one_round(self) -> None:
        """Records come, somebody goes, somebody else comes; then a little time to notice."""
        self.rounds += 1
        until_s = time.monotonic() + self._pick.uniform(0.2, 1.5)
        self._produce(RECORDS_PER_ROUND)
        victim = self.processes.pop(self._pick.randrange(len(self.processes)))
        way = self._pick.choice(("kill", "leave"))
        self.ends[way] += 1
        getattr(victim, way)()
        self.watcher.look()
        self.processes.append(self._start(victim.kind))
        self.watcher.look()
        while time.monotonic() < until_s:
            time.sleep(LOOK_S)
            self.watcher.look()

    def _produce(self, per_partition: int) -> None:
        for number in range(per_partition * PARTITIONS):
            self._producer.produce(TOPIC, b"x" * 20, partition=number % PARTITIONS)
        assert self._producer.flush(60) == 0

    def settle(self) -> None:
        """Every group commits everything: none is stuck.

        A consumer whose commit came too late for its generation tries again when it gets more records, so a
        few go on coming.
        """

        def holds() -> bool:
            self.watcher.look()
            self._produce(1)
            return self.watcher.is_settled(RECORDS_PER_ROUND * self.rounds)

        until(holds, lambda: f"a group is stuck: {self.watcher.committed} {self._log.read_text()[-2000:]}")

    def check(self) -> None:
        expected = {
            (partition, offset)
            for partition in range(PARTITIONS)
            for offset in range(RECORDS_PER_ROUND * self.rounds)
        }
        for kind, observed in self.observed.items():
            missing = expected - observed.seen
            assert not missing, f"{kind}: {len(missing)} records were never delivered"
            assert not observed.doubly_owned, f"{kind}: {observed.doubly_owned[:3]}"
        assert self.observed["kafka-python"].owners
        assert self.observed["aiokafka"].owners


@pytest.mark.timeout(900)
def test_groups_survive_churn(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    seconds = float(request.config.getoption("--churn-seconds"))
    with ChronikNode(tmp_path / "node", group_initial_rebalance_delay_ms=500) as node:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([confluent_kafka.admin.NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(60)
        # Members of KIP-848 groups do not choose their session: the broker does.
        beats = {"group.consumer.session.timeout.ms": "6000", "group.consumer.heartbeat.interval.ms": "1000"}
        set_configs(node.bootstrap, "broker", "1", beats)
        churn = Churn(node, tmp_path / "clients.log")
        began = time.monotonic()
        try:
            while time.monotonic() - began < seconds or churn.rounds < 5:
                churn.one_round()
            lasted = time.monotonic() - began
            churn.settle()
        finally:
            for process in churn.processes:
                process.kill()
        churn.check()
        node.stop()
    generations = {
        kind: len({generation for generation, _ in observed.owners})
        for kind, observed in churn.observed.items()
        if observed.owners
    }
    print(
        f"\n{lasted:.0f} s of churn, {sum(KINDS.values()) * PROCESSES} consumers in {len(KINDS)} groups:"
        f" {churn.ends['kill']} processes killed, {churn.ends['leave']} left,"
        f" {RECORDS_PER_ROUND * PARTITIONS * churn.rounds} records, {churn.watcher.looks} looks,"
        f" generations seen by clients {generations},"
        f" commits of Java refused {sum(one.refused_commits for one in churn.observed.values())},"
        f" settled {time.monotonic() - began - lasted:.0f} s later"
    )
