"""Tiered storage on a real S3 server, read by librdkafka and by Apache Kafka's own consumer (L06)."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from chronik.objects.opening import ObjectStoreOptions, open_objects
from chronik.objects.store import ObjectMissing, ObjectStoreError
from tests import java
from tests.configs import set_configs
from tests.node import SOURCE, ChronikNode
from tests.s3 import BUCKET, KEY_ID, SECRET, S3Server
from tests.segments import flip_bit

TOPIC = "tiered"
COUNT = 3_000
CONFIGS = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "0",
    "segment.bytes": str(64 * 1024),
    "file.delete.delay.ms": "0",
}
WAIT_S = 60


@pytest.fixture
def store(tmp_path: Path) -> Iterator[S3Server]:
    server = S3Server(tmp_path / "s3")
    server.start()
    yield server
    server.kill()


def wait_for(fact: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + WAIT_S
    while not fact():
        assert time.monotonic() < until, f"not within {WAIT_S} s: {what}"
        time.sleep(0.05)


def produce(bootstrap: str, count: int, first: int = 0) -> None:
    failures: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(first, first + count):
        value = b"%06d " % number + b"." * 200
        producer.produce(TOPIC, value, on_delivery=lambda error, _: error and failures.append(error))
        if number % 10 == 0:
            producer.flush(30)  # small batches, many of them
    assert producer.flush(60) == 0
    assert failures == []


def consume(bootstrap: str, count: int) -> list[int]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"g{random.random()}", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[int] = []
    until = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < until:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(int(message.value()[:6]))
    consumer.close()
    return found


def first_local(node: ChronikNode) -> int:
    """The first offset that the node's own disk has."""
    files = [int(path.stem) for path in node.segment_files(TOPIC)]
    return min(files, default=0)


@pytest.mark.timeout(300)
def test_old_records_are_read_from_an_s3_server(tmp_path: Path, store: S3Server) -> None:
    node = ChronikNode(
        tmp_path / "node",
        env=store.secrets(),
        tiering_interval_ms=100,
        retention_check_interval_ms=100,
        **store.settings(),
    )
    node.start()
    try:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIGS)])[TOPIC].result(30)
        produce(node.bootstrap, COUNT)
        wait_for(lambda: first_local(node) > COUNT * 0.8, "local copies are gone")
        assert consume(node.bootstrap, COUNT) == list(range(COUNT))
        assert_explained(node)
        shown = java.run(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            "--bootstrap-server", node.bootstrap, "--topic", TOPIC, "--from-beginning",
            "--max-messages", str(COUNT), "--timeout-ms", "60000",
        )  # fmt: skip
        assert [int(line[:6]) for line in shown.lines()] == list(range(COUNT))
        offsets = {
            when: java.run(
                "org.apache.kafka.tools.GetOffsetShell",
                "--bootstrap-server", node.bootstrap, "--topic", TOPIC, "--time", when,
            ).out.strip()
            for when in ("earliest", "earliest-local", "latest-tiered", "latest")
        }  # fmt: skip
        local = int(offsets["earliest-local"].rsplit(":", 1)[1])
        assert offsets["earliest"] == f"{TOPIC}:0:0"
        assert offsets["latest"] == f"{TOPIC}:0:{COUNT}"
        assert offsets["latest-tiered"] == f"{TOPIC}:0:{local - 1}"

        node.kill()
        node.start()
        assert consume(node.bootstrap, COUNT) == list(range(COUNT)), "after kill -9"

        store.kill()
        produce(node.bootstrap, 1_000, COUNT)  # a store that is gone is in nobody's way
        assert consume_from(node.bootstrap, COUNT, 1_000) == list(range(COUNT, COUNT + 1_000))
        store.start()
        wait_for(lambda: first_local(node) > COUNT, "uploads go on")
        assert consume(node.bootstrap, COUNT + 1_000) == list(range(COUNT + 1_000))

        admin.delete_topics([TOPIC])[TOPIC].result(30)
        wait_for(lambda: not list(store.objects.rglob("*.segment")), "its objects are gone")
        told = node.log.read_text()
        assert SECRET not in told
        assert KEY_ID not in told
    finally:
        node.kill()


def assert_explained(node: ChronikNode) -> None:
    """`chronik explain` tells of a record that no local disk has any more."""
    done = subprocess.run(
        [sys.executable, "-m", "chronik", "explain", TOPIC, "0", "0"],
        env={"PYTHONPATH": str(SOURCE), "CHRONIK_BOOTSTRAP": node.bootstrap, "COLUMNS": "240"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for words in (
        "000000 ...",
        "the local copy is gone",
        "yes; in chronik-",
        ".segment; it has",
        "in the object store alone",
    ):
        assert words in done.stdout, done.stdout


def consume_from(bootstrap: str, offset: int, count: int) -> list[int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "behind"})
    consumer.assign([TopicPartition(TOPIC, 0, offset)])
    found = [int(message.value()[:6]) for message in consumer.consume(count, WAIT_S)]
    consumer.close()
    return found


@pytest.mark.timeout(120)
def test_what_kafka_refuses_is_refused(tmp_path: Path) -> None:
    with_store = ChronikNode(tmp_path / "one", object_store=(tmp_path / "objects").as_uri())
    without = ChronikNode(tmp_path / "two")
    with_store.start()
    without.start()
    try:
        admin = AdminClient({"bootstrap.servers": with_store.bootstrap})

        def refusal(admin: AdminClient, **configs: str) -> str:
            name = f"t{random.randrange(10**9)}"
            config = {key.replace("_", "."): value for key, value in configs.items()}
            try:
                admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(30)
            except confluent_kafka.KafkaException as error:
                return f"{error.args[0].name()}: {error.args[0].str()}"
            return ""

        enabled = {"remote_storage_enable": "true"}
        assert refusal(admin, **enabled) == ""
        assert "unsupported for the compacted topics" in refusal(admin, cleanup_policy="compact", **enabled)
        too_long = refusal(admin, retention_ms="1000", local_retention_ms="2000", **enabled)
        assert too_long.startswith("INVALID_CONFIG"), too_long
        off = refusal(AdminClient({"bootstrap.servers": without.bootstrap}), **enabled)
        assert "Tiered Storage functionality is disabled" in off
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIGS)])[TOPIC].result(30)
        with pytest.raises(confluent_kafka.KafkaException, match=r"remote\.log\.delete\.on\.disable"):
            set_configs(with_store.bootstrap, "topic", TOPIC, {"remote.storage.enable": "false"})
        set_configs(
            with_store.bootstrap,
            "topic",
            TOPIC,
            {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"},
        )
    finally:
        with_store.kill()
        without.kill()


async def test_the_door_works_with_an_s3_server(store: S3Server) -> None:
    def options(secret: str) -> ObjectStoreOptions:
        return ObjectStoreOptions(
            url=f"s3://{BUCKET}/folder",
            endpoint=store.endpoint,
            access_key_id=KEY_ID,
            secret_access_key=secret,
            timeout_s=20,
        )

    door = open_objects(options(SECRET), random.Random(1))
    large = random.Random(2).randbytes(20 * 1024 * 1024)

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 700_000):
            yield large[start : start + 700_000]

    async def broken() -> AsyncIterator[bytes]:
        yield large[:9_000_000]
        raise OSError("the local disk failed")

    await door.put("a/large", chunks)
    assert await door.get("a/large", 0, len(large)) == large
    assert await door.get("a/large", 12_345_678, 1_000) == large[12_345_678:12_346_678]
    with pytest.raises(OSError, match="the local disk failed"):
        await door.put("a/half", broken)
    assert [(one.name, one.size_bytes) for one in await door.listed("a")] == [("a/large", len(large))]
    await door.put("b/c/d", chunks)
    assert await door.folders("b") == ["c"]
    await door.delete(["a/large", "a/never", "b/c/d"])
    assert await door.listed("a") == await door.listed("b") == []
    with pytest.raises(ObjectMissing):
        await door.get("a/large", 0, 1)
    wrong = open_objects(options("canary-of-a-wrong-secret-1f9a"), random.Random(1))
    with pytest.raises(ObjectStoreError) as refused:
        await wrong.get("a/large", 0, 1)
    assert "\n" not in str(refused.value)
    assert "canary" not in str(refused.value)
    store.kill()
    with pytest.raises(ObjectStoreError) as gone:
        await door.listed("a")
    assert "\n" not in str(gone.value)
    assert "canary" not in str(gone.value)


@pytest.mark.timeout(300)
def test_verify_finds_what_was_planted_in_an_s3_server(tmp_path: Path, store: S3Server) -> None:
    """Guards O03: of a node that was killed, and by object and offset."""
    node = ChronikNode(
        tmp_path / "node",
        env=store.secrets(),
        tiering_interval_ms=100,
        retention_check_interval_ms=100,
        **store.settings(),
    )
    node.start()
    try:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        config = {**CONFIGS, "local.retention.bytes": str(256 * 1024)}
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(30)
        produce(node.bootstrap, COUNT)
        wait_for(lambda: first_local(node) > 0, "some local copies are gone")
        wait_for(lambda: len(in_both(node, store)) > 2, "some are here and in the store")
    finally:
        node.kill()
    code, told = verified(node, store)
    assert (code, harmful(told)) == (0, []), told
    assert told["objects"] > 10
    old = min(store.objects.rglob("*.segment"), key=found_offset)
    new = in_both(node, store)[-2]
    sound = new.read_bytes()
    flip_bit(old, 30)
    flip_bit(new, len(sound) - 5)
    code, told = verified(node, store)
    assert code == 1
    found = {(Path(one["file"]).name, one["kind"], one["offset"]) for one in harmful(told)}
    assert found == {
        (old.name, "damaged batch", found_offset(old)),
        (new.name, "damaged index", found_offset(new)),
    }
    assert new.read_bytes() != sound, "a check changes nothing"
    code, told = verified(node, store, "--repair")
    assert code == 1
    assert {Path(one["file"]).name for one in harmful(told) if one["repaired"]} == {new.name}
    assert new.read_bytes() == sound
    new.unlink()
    store.kill()
    code, told = verified(node, store)
    assert (code, [one["kind"] for one in harmful(told)]) == (1, ["unreadable object store"])
    assert SECRET not in json.dumps(told)


def in_both(node: ChronikNode, store: S3Server) -> list[Path]:
    """Objects of the store whose records the local disk has as well."""
    local = first_local(node)
    return sorted(
        (one for one in store.objects.rglob("*.segment") if found_offset(one) >= local), key=found_offset
    )


def found_offset(path: Path) -> int:
    return int(path.name.split("-")[1])


def harmful(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in told["findings"] if not one["is_harmless"]]


def verified(node: ChronikNode, store: S3Server, *flags: str) -> tuple[int, dict[str, Any]]:
    settings = {f"CHRONIK_{name.upper()}": value for name, value in store.settings().items()}
    done = subprocess.run(
        [sys.executable, "-m", "chronik", "verify", str(node.data_dir), "--remote", "--json", *flags],
        env={
            "PYTHONPATH": str(SOURCE),
            "CHRONIK_OBJECT_STORE_TIMEOUT_MS": "2000",
            **settings,
            **store.secrets(),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)
