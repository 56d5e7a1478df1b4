"""Consumers of four libraries join, leave and crash: nothing is owned twice, lost, stuck or taken back."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka as ck
import confluent_kafka.admin
import pytest

from tests import java
from tests.node import ChronikNode

PARTITIONS = 8
TOPIC = "churn"
LIBRARIES = ("kafka-python", "aiokafka", "librdkafka", "librdkafka-consumer", "java")
DEADLINE_S = 90
WORKER = Path(__file__).with_name("churn_worker.py")


class Process:
    """Some consumers that live and die together."""

    def __init__(
        self, library: str, bootstrap: str, seen: set[tuple[int, int]], log: Path, count: int
    ) -> None:
        self.library = library
        self._seen = seen
        if library == "java":
            command = java.command(
                "org.apache.kafka.tools.VerifiableConsumer",
                *("--bootstrap-server", bootstrap, "--topic", TOPIC, "--group-id", library),
                *("--group-protocol", "classic", "--session-timeout", "6000", "--reset-policy", "earliest"),
            )
        else:
            command = [sys.executable, str(WORKER), library, bootstrap, library, TOPIC, str(count)]
        with log.open("ab") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if self.library != "java":
                partition, offset = line.split()
                self._seen.add((int(partition), int(offset)))
            elif b'"records_consumed"' in line:
                for part in json.loads(line)["partitions"]:
                    for offset in range(part["minOffset"], part["maxOffset"] + 1):
                        self._seen.add((part["partition"], offset))

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
        self._committed: dict[tuple[str, int], int] = {}
        self.looks = 0

    def look(self) -> None:
        self.looks += 1
        for group, future in self._admin.describe_consumer_groups(list(LIBRARIES)).items():
            described = future.result(20)
            owned = [
                partition.partition
                for member in described.members
                if member.assignment is not None
                for partition in member.assignment.topic_partitions
            ]
            assert len(owned) == len(set(owned)), f"{group}: a partition is owned twice: {sorted(owned)}"
        for group in LIBRARIES:
            asked = ck.ConsumerGroupTopicPartitions(group)
            found = self._admin.list_consumer_group_offsets([asked])[group].result(20)
            for one in found.topic_partitions:
                before = self._committed.get((group, one.partition), -1)
                assert one.offset >= before, f"{group}: {one.partition} went from {before} to {one.offset}"
                self._committed[group, one.partition] = one.offset

    def is_settled(self, ends: list[int]) -> bool:
        return all(
            self._committed.get((group, partition), -1) >= end
            for group in LIBRARIES
            for partition, end in enumerate(ends)
        )


def until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, what()


@pytest.mark.timeout(900)
def test_groups_survive_churn(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rounds = 4 * int(request.config.getoption("--crash-rounds"))
    pick = random.Random(5)
    with ChronikNode(tmp_path / "node", group_initial_rebalance_delay_ms=500) as node:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([confluent_kafka.admin.NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(20)
        producer = ck.Producer({"bootstrap.servers": node.bootstrap})
        seen: dict[str, set[tuple[int, int]]] = {library: set() for library in LIBRARIES}
        log = tmp_path / "clients.log"

        def start(library: str) -> Process:
            return Process(library, node.bootstrap, seen[library], log, count=6)

        processes = [start(library) for library in LIBRARIES for _ in range(2)]
        watcher = Watcher(node.bootstrap)
        try:
            for _ in range(rounds):
                for number in range(400):
                    producer.produce(TOPIC, b"x" * 20, partition=number % PARTITIONS)
                assert producer.flush(20) == 0
                victim = processes.pop(pick.randrange(len(processes)))
                pick.choice([victim.kill, victim.leave])()
                watcher.look()
                processes.append(start(victim.library))
                watcher.look()
            ends = [50 * rounds] * PARTITIONS
            until(
                lambda: watcher.look() or watcher.is_settled(ends),
                lambda: f"a group is stuck: {watcher._committed} {log.read_text()[-2000:]}",
            )
        finally:
            for process in processes:
                process.kill()
        expected = {(partition, offset) for partition in range(PARTITIONS) for offset in range(50 * rounds)}
        for library in LIBRARIES:
            missing = expected - seen[library]
            assert not missing, f"{library}: {len(missing)} records were never delivered"
        assert watcher.looks > 2 * rounds
        node.stop()
