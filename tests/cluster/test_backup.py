"""A backup taken under load and restored into an empty cluster: the same records, one by one (O04)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from chronik.testing import Cluster
from tests.cluster.load import Load
from tests.crash.load import read_partition
from tests.node import SOURCE
from tests.s3 import BUCKET, S3Server

QUIET = {"log_level": 0}


def chronik(cluster: Cluster, *arguments: str | Path, fails: bool = False, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "chronik", *map(str, arguments)],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(SOURCE),
            "CHRONIK_BOOTSTRAP": cluster.bootstrap,
            **env,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def records(cluster: Cluster, topic: str, partition: int = 0) -> list[tuple[Any, ...]]:
    """All that a reader of committed records sees: offset, time, key, value, headers."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "compare",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            **QUIET,
        }
    )
    found = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, confluent_kafka.OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(30)
            assert message is not None, f"{topic}-{partition} gives nothing more, not even its end"
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                return found
            found.append(
                (
                    message.offset(),
                    message.timestamp(),
                    message.key(),
                    message.value(),
                    tuple(message.headers() or ()),
                )
            )
    finally:
        consumer.close()


def fill(cluster: Cluster) -> None:
    """Topics of several kinds, a group, a user, an ACL and a quota."""
    cluster.create_topic("plain", configs={"retention.ms": "-1", "compression.type": "zstd"})
    cluster.create_topic("transactional")
    cluster.create_topic("cut")
    cluster.create_topic("emptied")
    plain = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5, **QUIET})
    for number in range(500):
        headers = [("number", str(number).encode()), ("none", None)]
        key = None if number % 7 == 0 else b"k%d" % (number % 50)
        plain.produce("plain", b"v%d" % number, key, timestamp=1_700_000_000_000 + number, headers=headers)
        plain.produce("cut", b"c%d" % number)
        plain.produce("emptied", b"e%d" % number)
    assert plain.flush(30) == 0
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    for topic, before in (("cut", 123), ("emptied", 500)):
        cut = confluent_kafka.TopicPartition(topic, 0, before)
        for future in admin.delete_records([cut]).values():
            future.result()
    sender = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": "backed-up", **QUIET}
    )
    sender.init_transactions(30)
    for number in range(4):
        sender.begin_transaction()
        for part in range(10):
            sender.produce("transactional", b"%d %d" % (number, part))
        (sender.abort_transaction if number % 2 else sender.commit_transaction)(30)
    reader = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "readers", **QUIET}
    )
    reader.commit(offsets=[confluent_kafka.TopicPartition("plain", 0, 77)], asynchronous=False)
    reader.close()
    chronik(cluster, "quota", "set", "--user", "alice", "producer_byte_rate=12345")


def pieces(manifest: dict[str, Any]) -> set[str]:
    return {
        piece["path"]
        for topic in manifest["topics"]
        for one in topic["partitions"]
        for piece in one["pieces"]
    }


def damage_largest(folder: Path) -> None:
    damaged = max(folder.rglob("*.batches"), key=lambda path: path.stat().st_size)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)


@pytest.fixture
def empty() -> Iterator[Cluster]:
    with Cluster(nodes=2, can_partition=False) as cluster:
        yield cluster


@pytest.mark.timeout(240)
def test_a_backup_under_load_comes_back_record_by_record(
    shared_cluster: Cluster, empty: Cluster, tmp_path: Path
) -> None:
    source = shared_cluster
    fill(source)
    source.create_topic("busy", partitions=2, replication_factor=3)
    with Load(source.bootstrap, "busy", 2) as load:
        load.wait_acked(50)
        first = json.loads(chronik(source, "backup", "create", tmp_path / "b", "--json"))
        load.wait_acked(50)
        second = json.loads(chronik(source, "backup", "create", tmp_path / "b", "--json"))
        load.wait_acked(10)
    assert second["offsets"] > first["offsets"]
    assert "no damage" in chronik(source, "backup", "verify", tmp_path / "b")
    old, new = (json.loads(path.read_text()) for path in sorted((tmp_path / "b" / "backups").iterdir()))
    assert pieces(old) < pieces(new), "the second backup names the files of the first and adds its own"

    assert "restored" in chronik(empty, "backup", "restore", tmp_path / "b")
    for topic in ("plain", "transactional", "cut", "emptied"):
        assert records(empty, topic) == records(source, topic), topic
    assert len(records(source, "transactional")) == 20
    assert records(source, "cut")[0][0] == 123
    watermarks = confluent_kafka.Consumer(
        {"bootstrap.servers": empty.bootstrap, "group.id": "readers", **QUIET}
    )
    emptied = confluent_kafka.TopicPartition("emptied", 0)
    assert watermarks.get_watermark_offsets(emptied) == (500, 500)
    (committed,) = watermarks.committed([confluent_kafka.TopicPartition("plain", 0)], 30)
    watermarks.close()
    assert committed.offset == 77
    for partition in range(2):
        restored = read_partition(empty.bootstrap, "busy", partition)
        assert restored == read_partition(source.bootstrap, "busy", partition)[: len(restored)]
        assert len(restored) >= 100
    assert "12345" in chronik(empty, "quota", "list")
    empty.assert_replicas_agree("busy")
    refused = chronik(empty, "backup", "restore", tmp_path / "b", fails=True)
    assert "exists: restore into a cluster without it" in refused

    damage_largest(tmp_path / "b")
    assert "the checksum does not match" in chronik(source, "backup", "verify", tmp_path / "b", fails=True)

    chronik(source, "topic", "export", "plain", tmp_path / "plain.zip")
    chronik(empty, "topic", "import", tmp_path / "plain.zip", "--as", "copy")
    assert records(empty, "copy") == records(source, "plain")
    chronik(source, "topic", "delete", "plain", "transactional", "cut", "emptied", "busy", "--yes")


@pytest.mark.timeout(240)
def test_a_backup_in_an_object_store_comes_back_record_by_record(
    shared_cluster: Cluster, empty: Cluster, tmp_path: Path
) -> None:
    source = shared_cluster
    topics = ("plain", "transactional", "cut", "emptied")
    where = f"s3://{BUCKET}/backups"
    fill(source)
    with S3Server(tmp_path / "s3") as store:
        env = {"CHRONIK_OBJECT_STORE_ENDPOINT": store.endpoint, **store.secrets()}
        first = json.loads(chronik(source, "backup", "create", where, "--json", **env))
        sender = confluent_kafka.Producer({"bootstrap.servers": source.bootstrap, **QUIET})
        for number in range(100):
            sender.produce("plain", b"later %d" % number)
        assert sender.flush(30) == 0
        second = json.loads(chronik(source, "backup", "create", where, "--json", **env))
        listed = json.loads(chronik(source, "backup", "list", where, "--json", **env))
        assert [one["backup"] for one in listed] == [first["backup"], second["backup"]]
        assert second["offsets"] == first["offsets"] + 100
        folder = store.objects / "backups" / "backups"
        old, new = (json.loads(path.read_text()) for path in sorted(folder.iterdir()))
        assert pieces(old) < pieces(new), "the second backup names the objects of the first and adds its own"
        assert "no damage" in chronik(source, "backup", "verify", where, **env)

        assert "restored" in chronik(empty, "backup", "restore", where, **env)
        for topic in topics:
            assert records(empty, topic) == records(source, topic), topic
        assert len(records(empty, "plain")) == 600

        damage_largest(store.objects)
        told = chronik(source, "backup", "verify", where, fails=True, **env)
        assert "the checksum does not match" in told
        (store.objects / "backups" / max(pieces(new) - pieces(old))).unlink()
        told = chronik(source, "backup", "verify", where, fails=True, **env)
        assert ".batches is missing" in told
        assert "2 problems" in told
    env |= {"CHRONIK_OBJECT_STORE_TIMEOUT_MS": "1000"}
    told = chronik(source, "backup", "list", where, fails=True, **env)
    assert "cannot list backups at s3://segments/backups" in told
    assert store.secrets()["CHRONIK_OBJECT_STORE_SECRET_ACCESS_KEY"] not in told
    chronik(source, "topic", "delete", *topics, "--yes")
