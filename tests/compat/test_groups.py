"""Consumer groups with unchanged clients: sharing, leaving, committing, and both protocols."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import confluent_kafka as ck
import confluent_kafka.admin
import kafka
import kafka.admin
import pytest

from tests import java
from tests.process import ServerProcess

DEADLINE_S = 60
PROTOCOLS = ("classic", "consumer")


def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def create(broker: ServerProcess, topic: str, partitions: int) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([confluent_kafka.admin.NewTopic(topic, partitions, 1)])[topic].result(60)


def produce(broker: ServerProcess, topic: str, count: int, partitions: int) -> set[bytes]:
    producer = ck.Producer({"bootstrap.servers": broker.bootstrap})
    values = [f"{topic}-{number}-{time.monotonic_ns()}".encode() for number in range(count)]
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(60) == 0
    return set(values)


class Member:
    """A consumer with a thread of its own."""

    def __init__(self, broker: ServerProcess, group: str, topics: list[str], **config: object) -> None:
        self.consumer = ck.Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 100,
                **config,
            }
        )
        self.values: list[bytes] = []
        self.owned: set[int] = set()
        self.lost = 0
        """How often a partition was taken away."""
        self.incremental = (
            config.get("group.protocol") == "consumer"
            or config.get("partition.assignment.strategy") == "cooperative-sticky"
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(topics,), daemon=True)
        self._thread.start()

    def _assigned(self, consumer: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        self.owned |= {partition.partition for partition in partitions}

    def _revoked(self, consumer: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        self.lost += len(partitions)
        self.owned -= {partition.partition for partition in partitions}

    def _run(self, topics: list[str]) -> None:
        self.consumer.subscribe(topics, on_assign=self._assigned, on_revoke=self._revoked)
        while not self._stop.is_set():
            message = self.consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.values.append(message.value())

    def leave(self) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S)
        self.consumer.close()


@contextmanager
def members(
    broker: ServerProcess, count: int, group: str, topic: str, **config: object
) -> Iterator[list[Member]]:
    joined = [Member(broker, group, [topic], **config) for _ in range(count)]
    try:
        yield joined
    finally:
        for member in joined:
            member.leave()


def test_kafka_python_commits_and_goes_on(broker: ServerProcess, topic: str) -> None:
    create(broker, topic, 3)
    sent = produce(broker, topic, 90, 3)

    def consume(count: int) -> list[bytes]:
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=f"{topic}-group",
            auto_offset_reset="earliest",
            consumer_timeout_ms=DEADLINE_S * 1000,
        )
        found = []
        for message in consumer:
            found.append(message.value)
            if len(found) == count:
                break
        consumer.commit()
        consumer.close()
        return found

    assert set(consume(90)) == sent
    more = produce(broker, topic, 30, 3)
    assert set(consume(30)) == more


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_share_the_partitions(broker: ServerProcess, topic: str, protocol: str) -> None:
    create(broker, topic, 6)
    with members(broker, 3, f"{topic}-group", topic, **{"group.protocol": protocol}) as joined:
        until(
            lambda: sorted(len(member.owned) for member in joined) == [2, 2, 2],
            f"uneven: {[member.owned for member in joined]}",
        )
        assert set().union(*(member.owned for member in joined)) == set(range(6))
        sent = produce(broker, topic, 600, 6)
        until(lambda: {v for m in joined for v in m.values} == sent, "records are missing")
        joined.pop().leave()
        until(lambda: sorted(len(member.owned) for member in joined) == [3, 3], "the rest is not shared")


def test_librdkafka_joins_two_patterns_into_one(broker: ServerProcess, topic: str) -> None:
    """It sends them as one regular expression, with the repetitions of both, beside the literal name."""
    matched = (f"{topic}-orders-eu", f"{topic}-payments-us", f"{topic}-literal")
    names = (*matched, f"{topic}-neither")
    for name in names:
        create(broker, name, 1)
    sent = {name: produce(broker, name, 5, 1) for name in names}
    wanted = [f"^{topic}-ord.*s-.*", f"^{topic}-pa.*ts-.*", f"{topic}-literal"]
    member = Member(broker, f"{topic}-group", wanted, **{"group.protocol": "consumer"})
    try:
        expected = set().union(*(sent[name] for name in matched))
        until(lambda: expected <= set(member.values), f"records are missing: {member.values}")
        assert set(member.values) == expected
    finally:
        member.leave()


def test_the_new_protocol_moves_only_what_must_move(broker: ServerProcess, topic: str) -> None:
    create(broker, topic, 6)
    config = {"group.protocol": "consumer"}
    with members(broker, 2, f"{topic}-group", topic, **config) as joined:
        until(lambda: [len(member.owned) for member in joined] == [3, 3], "not shared")
        for member in joined:
            member.lost = 0
        before = [set(member.owned) for member in joined]
        joined.append(Member(broker, f"{topic}-group", [topic], **config))
        until(lambda: [len(member.owned) for member in joined] == [2, 2, 2], "the third gets nothing")
        assert [member.lost for member in joined[:2]] == [1, 1]
        assert all(member.owned < old for member, old in zip(joined, before, strict=False))


class JavaMember:
    """Apache Kafka's own consumer in the new protocol; it tells what it is given and what is taken away."""

    def __init__(self, broker: ServerProcess, group: str, topic: str) -> None:
        self.owned: set[int] = set()
        self.lost = 0
        self.records = 0
        command = java.command(
            "org.apache.kafka.tools.VerifiableConsumer",
            *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group-id", group),
            *("--group-protocol", "consumer", "--reset-policy", "earliest"),
        )
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if event["name"] == "records_consumed":
                self.records += event["count"]
            numbers = {one["partition"] for one in event.get("partitions", ())}
            if event["name"] == "partitions_assigned":
                self.owned |= numbers
            elif event["name"] == "partitions_revoked":
                self.lost += len(numbers)
                self.owned -= numbers

    def leave(self) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_S)
        self._thread.join()


def test_java_and_librdkafka_rebalance_without_stopping_who_is_not_concerned(
    broker: ServerProcess, topic: str
) -> None:
    create(broker, topic, 6)
    create(broker, f"{topic}-other", 2)
    group, config = f"{topic}-group", {"group.protocol": "consumer"}
    first = JavaMember(broker, group, topic)
    others: list[Member] = []
    try:
        until(lambda: len(first.owned) == 6, "Java gets nothing")
        others.append(Member(broker, group, [topic], **config))
        until(lambda: len(first.owned) == len(others[0].owned) == 3, "not shared")
        assert first.lost == 3, "more was taken away than had to move"
        # Who joins for another topic takes nothing from anybody, and nobody stops meanwhile.
        others.append(Member(broker, group, [f"{topic}-other"], **config))
        sent = 0
        while len(others[1].owned) < 2 or sent < 600:
            sent += len(produce(broker, topic, 60, 6))
            until(
                lambda sent=sent: first.records + len(others[0].values) == sent,  # type: ignore[misc]
                "a member stopped reading",
            )
        assert (first.lost, others[0].lost) == (3, 0)
        others.pop().leave()
        others.pop().leave()
        until(lambda: len(first.owned) == 6, "Java does not get the rest")
        assert first.lost == 3
    finally:
        for member in others:
            member.leave()
        first.leave()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_static_member_comes_back_to_its_partitions(
    broker: ServerProcess, topic: str, protocol: str
) -> None:
    create(broker, topic, 4)
    group = f"{topic}-group"

    def member(name: str) -> Member:
        return Member(broker, group, [topic], **{"group.protocol": protocol, "group.instance.id": name})

    first, second = member("one"), member("two")
    until(lambda: len(first.owned) == len(second.owned) == 2, "not shared")
    owned, first.lost = set(second.owned), 0
    second.leave()
    second = member("two")
    until(lambda: second.owned == owned, "it did not get its partitions back")
    assert first.lost == 0
    first.leave()
    second.leave()


def test_cooperative_members_keep_what_they_have(broker: ServerProcess, topic: str) -> None:
    create(broker, topic, 4)
    config = {"partition.assignment.strategy": "cooperative-sticky"}
    with members(broker, 1, f"{topic}-group", topic, **config) as joined:
        until(lambda: len(joined[0].owned) == 4, "the first gets nothing")
        joined.append(Member(broker, f"{topic}-group", [topic], **config))
        until(lambda: [len(member.owned) for member in joined] == [2, 2], "not shared")
        assert joined[0].lost == 2


def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets(broker: ServerProcess, topic: str) -> None:
    create(broker, topic, 2)
    for protocol in ("classic", "consumer", "classic"):
        sent = produce(broker, topic, 20, 2)
        with members(broker, 1, f"{topic}-group", topic, **{"group.protocol": protocol}) as joined:
            until(lambda joined=joined: len(joined[0].values) >= 20, "records are missing")  # type: ignore[misc]
            assert set(joined[0].values) == sent, "what was committed was read again"


def test_admin_sees_and_deletes_groups(broker: ServerProcess, topic: str) -> None:
    create(broker, topic, 2)
    group = f"{topic}-group"
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    sent = produce(broker, topic, 10, 2)
    with members(broker, 1, group, topic) as joined:
        until(lambda: set(joined[0].values) == sent, "records are missing")
        described = admin.describe_consumer_groups([group])[group].result(60)
        assert described.state == ck.ConsumerGroupState.STABLE
        assert len(described.members[0].assignment.topic_partitions) == 2
        with pytest.raises(ck.KafkaException, match=r"(?i)empty"):
            admin.delete_consumer_groups([group])[group].result(60)
    listed = {one.group_id for one in admin.list_consumer_groups().result(60).valid}
    assert group in listed
    asked = ck.ConsumerGroupTopicPartitions(group)
    offsets = admin.list_consumer_group_offsets([asked])[group].result(60)
    assert sorted(one.offset for one in offsets.topic_partitions) == [5, 5]
    moved = ck.ConsumerGroupTopicPartitions(group, [ck.TopicPartition(topic, 0, 2)])
    admin.alter_consumer_group_offsets([moved])[group].result(60)
    offsets = admin.list_consumer_group_offsets([asked])[group].result(60)
    assert sorted(one.offset for one in offsets.topic_partitions) == [2, 5]
    admin.delete_consumer_groups([group])[group].result(60)
    assert group not in {one.group_id for one in admin.list_consumer_groups().result(60).valid}


def test_the_java_tools_describe_and_reset_a_group(broker: ServerProcess, topic: str) -> None:
    create(broker, topic, 1)
    produce(broker, topic, 20, 1)
    group = f"{topic}-group"
    for protocol in PROTOCOLS:
        java.run(
            "org.apache.kafka.tools.VerifiableConsumer",
            *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group-id", f"{group}-{protocol}"),
            *("--group-protocol", protocol, "--max-messages", "20", "--reset-policy", "earliest"),
        )
        command = ("--bootstrap-server", broker.bootstrap, "--group", f"{group}-{protocol}")
        main = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        described = java.run(main, *command, "--describe").out.split()
        assert described[described.index(topic) + 2] == "20"
        java.run(main, *command, "--reset-offsets", "--to-offset", "7", "--topic", topic, "--execute")
        described = java.run(main, *command, "--describe").out.split()
        assert described[described.index(topic) + 2] == "7"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_outlives_a_restart_of_the_broker(broker: ServerProcess, topic: str, protocol: str) -> None:
    create(broker, topic, 2)
    sent = produce(broker, topic, 20, 2)
    with members(broker, 2, f"{topic}-group", topic, **{"group.protocol": protocol}) as joined:
        until(lambda: {v for m in joined for v in m.values} == sent, "records are missing")
        broker.restart()
        sent |= produce(broker, topic, 20, 2)
        until(lambda: {v for m in joined for v in m.values} == sent, "records are missing after the restart")
    committed = ck.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"{topic}-group"})
    offsets = committed.committed([ck.TopicPartition(topic, index) for index in range(2)], timeout=60)
    assert [one.offset for one in offsets] == [20, 20]
    committed.close()
