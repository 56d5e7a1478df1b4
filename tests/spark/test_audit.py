"""The audit finds what was planted in a copy of a cluster's data, and nothing in one that was left alone.

Guards P04.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chronik.cli.offline_metadata import assigned_replicas
from chronik.model import TopicPartition
from chronik.records.batch import headers, read_header, reseal
from chronik.records.body import body_of
from chronik.records.editing import keep_records, raw_records
from chronik.spark.jobs.audit import Audit, audit, replicas_of_cluster, replicas_of_folders
from chronik.spark.jobs.audit_report import html
from chronik.spark.options import connect_options
from chronik.testing import Cluster
from tests.spark.topics import Topics

TOPIC = "audited"
BATCHES = 6
Batches = list[bytes]


def dropped_record(batches: Batches) -> Batches:
    """The third batch without one of its records, its checksum made to fit."""
    header = read_header(batches[2])
    body = body_of(header, batches[2])
    kept = list(raw_records(header, body))[:-1]
    return [*batches[:2], bytes(keep_records(header, body, kept, None)), *batches[3:]]


def flipped_byte(batches: Batches) -> Batches:
    harmed = bytearray(batches[1])
    harmed[-3] ^= 0x20
    return [batches[0], bytes(harmed), *batches[2:]]


def swapped_batches(batches: Batches) -> Batches:
    return [*batches[:2], batches[3], batches[2], *batches[4:]]


def diverged_tail(batches: Batches) -> Batches:
    """The last batch says something else, and its checksum agrees."""
    other = bytearray(batches[-1])
    other[-3] ^= 0x20
    reseal(other, 0, len(other))
    return [*batches[:-1], bytes(other)]


def follower_behind(batches: Batches) -> Batches:
    return batches[:-1]


def missing_batch(batches: Batches) -> Batches:
    return [*batches[:3], *batches[4:]]


def repeated_batch(batches: Batches) -> Batches:
    """The second batch once more behind itself, with offsets that begin inside it."""
    again = bytearray(batches[1])
    again[:8] = (int.from_bytes(batches[1][:8], "big") + 1).to_bytes(8, "big")
    return [*batches[:2], bytes(again), *batches[2:]]


def nothing(batches: Batches) -> Batches:
    return []


FAULTS: dict[int, tuple[int, Callable[[Batches], Batches], str, int]] = {
    1: (2, dropped_record, "lost", 2),
    2: (3, flipped_byte, "checksum", 1),
    3: (1, swapped_batches, "stands behind", 2),
    4: (2, diverged_tail, "diverged", BATCHES - 1),
    5: (3, follower_behind, "behind: it ends", BATCHES - 1),
    6: (1, missing_batch, "lost: offsets 12 to 15 are missing", 4),
    7: (2, repeated_batch, "duplicated", 1),
    8: (3, nothing, "empty: it has no batch", 0),
}
"""By partition: the node whose copy is harmed, how, what the audit says, which batch it names."""


PARTITIONS = 1 + max(FAULTS)
ABSENT = "absent"
SOUND: dict[str, dict[str, str]] = {
    "compacted": {"cleanup.policy": "compact"},
    "transactional": {},
    "trimmed": {},
    "twofold": {},
}
"""Topics in which replicas may look different although nothing is wrong, with their configs."""


def fill_sound_topics(cluster: Cluster, topics: Topics) -> None:
    for name, configs in SOUND.items():
        cluster.create_topic(name, replication_factor=2 if name == "twofold" else 3, configs=configs)
        for number in range(BATCHES):
            topics.fill(name, [b"%d-%d" % (number, n) for n in range(4)], keys=[b"a", b"b", b"c", b"d"])
    topics.fill("transactional", [b"x"] * 3, abort=True)
    topics.fill("transactional", [b"y"] * 3, abort=False)
    topics.delete_records("trimmed", before=9)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> dict[int, Path]:
    """The data directories of a cluster of three that was audited while it ran, then stopped."""
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(3, folder=folder, can_partition=False) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        cluster.create_topic(ABSENT, replication_factor=3)
        with Topics(cluster.bootstrap) as topics:
            for number in range(BATCHES):
                for partition in range(PARTITIONS):
                    topics.fill(TOPIC, [b"%d-%d" % (number, n) * 5 for n in range(4)], partition=partition)
            topics.fill(ABSENT, [b"x"])
            fill_sound_topics(cluster, topics)
        for name in (TOPIC, ABSENT, *SOUND):
            cluster.assert_replicas_agree(name)
        connect = connect_options({"bootstrap.servers": cluster.bootstrap})
        live = audit(spark, connect, replicas_of_cluster(connect, []))
        assert live.is_clean, live.findings
        assert live.skipped == ["compacted"]
        counts = {(each.records, each.end_offset) for each in live.replicas if each.topic == TOPIC}
        assert counts == {(BATCHES * 4, BATCHES * 4)}
        for node_id in cluster.nodes:
            cluster.stop(node_id)
        return {node_id: cluster.data_dir(node_id) for node_id in cluster.nodes}


def run(spark: SparkSession, folders: dict[int, Path], *topics: str) -> Audit:
    named = {f"node {n}": str(path) for n, path in folders.items()}
    scope = replicas_of_folders(named, topics, assigned_replicas(named.values()))
    return audit(spark, connect_options({"bootstrap.servers": "127.0.0.1:1"}), scope)


def copied(data: dict[int, Path], folder: Path) -> dict[int, Path]:
    for node_id, path in data.items():
        shutil.copytree(path / "topics", folder / str(node_id) / "topics")
    return {node_id: folder / str(node_id) for node_id in data}


def test_an_untouched_copy_is_clean(spark: SparkSession, data: dict[int, Path], tmp_path: Path) -> None:
    copies = copied(data, tmp_path)
    # Retention has removed all that one node had, and compaction a batch of another's.
    trimmed = copies[2] / "topics" / "trimmed-0"
    for log in trimmed.glob("*.log"):
        log.unlink()
    (trimmed / f"{BATCHES * 4:020d}.log").touch()
    (compacted,) = (copies[3] / "topics" / "compacted-0").glob("*.log")
    content = compacted.read_bytes()
    first = read_header(content).size_bytes
    compacted.write_bytes(content[first:])
    result = run(spark, copies)
    assert result.is_clean, result.findings
    assert len(result.replicas) == 3 * (PARTITIONS + 1 + len(SOUND)) - 1
    assert result.skipped == ["compacted"]
    assert "Clean." in html(result)


def test_planted_faults_are_found(spark: SparkSession, data: dict[int, Path], tmp_path: Path) -> None:
    copies = copied(data, tmp_path)
    first_offsets: dict[int, int] = {}
    for partition, (node_id, harm, _, number) in FAULTS.items():
        (log,) = (copies[node_id] / "topics" / f"{TOPIC}-{partition}").glob("*.log")
        content = log.read_bytes()
        found = list(headers(content))
        batches = [content[at : at + header.size_bytes] for at, header in found]
        assert len(batches) == BATCHES
        first_offsets[partition] = found[number][1].base_offset
        log.write_bytes(b"".join(harm(batches)))
    shutil.rmtree(copies[1] / "topics" / f"{ABSENT}-0")
    shutil.rmtree(copies[3] / "topics" / f"{TOPIC}-0")
    result = run(spark, copies)
    absent = {(each.topic, each.partition, each.replica) for each in result.findings if "empty" in each.what}
    assert absent == {(ABSENT, 0, "node 1"), (TOPIC, 0, "node 3"), (TOPIC, 8, "node 3")}
    assert {each.partition for each in result.findings if each.topic == TOPIC} == {0, *FAULTS}
    assert {each.topic for each in result.findings} == {TOPIC, ABSENT}
    for partition, (node_id, _, said, _) in FAULTS.items():
        there = [each for each in result.findings if (each.topic, each.partition) == (TOPIC, partition)]
        matching = [each for each in there if said in each.what and each.replica == f"node {node_id}"]
        assert matching, there
        offset = first_offsets[partition] + (partition == 7)  # the copy begins inside what it repeats
        assert min(each.offset for each in matching) == offset
    page = html(result)
    assert "<svg" in page
    assert "diverged" in page


def test_watermark_gaps_are_found(spark: SparkSession, data: dict[int, Path], tmp_path: Path) -> None:
    """What the leader of a running cluster says is committed, and a replica, or none of them, has."""
    copies = copied(data, tmp_path)
    end = BATCHES * 4
    (log,) = (copies[2] / "topics" / f"{TOPIC}-1").glob("*.log")
    content = log.read_bytes()
    last, _ = list(headers(content))[-1]
    log.write_bytes(content[:last])
    for path in copies.values():
        (log,) = (path / "topics" / f"{ABSENT}-0").glob("*.log")
        log.write_bytes(b"")
    named = {f"node {n}": str(path) for n, path in copies.items()}
    scope = replicas_of_folders(named, [TOPIC, ABSENT], assigned_replicas(named.values()))
    watermarks = {TopicPartition(TOPIC, number): end for number in range(PARTITIONS)}
    watermarks |= {TopicPartition(TOPIC, 2): end + 3, TopicPartition(ABSENT, 0): 1}
    connect = connect_options({"bootstrap.servers": "127.0.0.1:1"})
    result = audit(spark, connect, replace(scope, watermarks=watermarks))
    told = {(each.topic, each.partition, each.replica, each.what) for each in result.findings}
    nodes = [f"node {node_id}" for node_id in copies]
    short = f"behind: it ends at offset {end - 4}, the watermark is {end}"
    none_has = f"behind: it ends at offset {end}, the watermark is {end + 3}"
    assert told == {
        (TOPIC, 1, "node 2", short),
        *((TOPIC, 2, name, none_has) for name in nodes),
        *((ABSENT, 0, name, "empty: it has no batch, the watermark is 1") for name in nodes),
    }


def test_without_metadata_the_other_partitions_tell_how_many_replicas_there_are(
    data: dict[int, Path], tmp_path: Path
) -> None:
    copies = copied(data, tmp_path)
    shutil.rmtree(copies[2] / "topics" / f"{TOPIC}-4")
    named = {f"node {n}": str(path) for n, path in copies.items()}
    scope = replicas_of_folders(named, [TOPIC, "twofold"])
    assert scope.expected[TOPIC, 4, "node 2"] == 0
    assert len(scope.expected) == 3 * PARTITIONS + 2
