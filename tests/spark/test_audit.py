"""The audit finds what was planted in a copy of a cluster's data, and nothing in one that was left alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chronik.records.batch import headers, read_header, reseal
from chronik.records.editing import body_of, keep_records, raw_records
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


FAULTS: dict[int, tuple[int, Callable[[Batches], Batches], str, int]] = {
    1: (2, dropped_record, "lost", 2),
    2: (3, flipped_byte, "checksum", 1),
    3: (1, swapped_batches, "stands behind", 2),
    4: (2, diverged_tail, "diverged", BATCHES - 1),
    5: (3, follower_behind, "behind: it ends", BATCHES - 1),
}
"""By partition: the node whose copy is harmed, how, what the audit says, which batch it names."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> dict[int, Path]:
    """The data directories of a cluster of three that was audited while it ran, then stopped."""
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(3, folder=folder, can_partition=False) as cluster:
        cluster.create_topic(TOPIC, partitions=6, replication_factor=3)
        with Topics(cluster.bootstrap) as topics:
            for number in range(BATCHES):
                for partition in range(6):
                    topics.fill(TOPIC, [b"%d-%d" % (number, n) * 5 for n in range(4)], partition=partition)
        cluster.assert_replicas_agree(TOPIC)
        connect = connect_options({"bootstrap.servers": cluster.bootstrap})
        live = audit(spark, connect, replicas_of_cluster(connect, [TOPIC]))
        assert live.is_clean, live.findings
        assert {(each.records, each.end_offset) for each in live.replicas} == {(BATCHES * 4, BATCHES * 4)}
        for node_id in cluster.nodes:
            cluster.stop(node_id)
        return {node_id: cluster.data_dir(node_id) for node_id in cluster.nodes}


def run(spark: SparkSession, folders: dict[int, Path]) -> Audit:
    scope = replicas_of_folders({f"node {n}": str(path) for n, path in folders.items()}, [TOPIC], [])
    return audit(spark, connect_options({"bootstrap.servers": "127.0.0.1:1"}), scope)


def test_an_untouched_copy_is_clean(spark: SparkSession, data: dict[int, Path]) -> None:
    result = run(spark, data)
    assert result.is_clean, result.findings
    assert len(result.replicas) == 18
    assert "Clean." in html(result)


def test_planted_faults_are_found(spark: SparkSession, data: dict[int, Path], tmp_path: Path) -> None:
    copies = {}
    for node_id, path in data.items():
        copies[node_id] = tmp_path / str(node_id)
        shutil.copytree(path / "topics", copies[node_id] / "topics")
    first_offsets: dict[int, int] = {}
    for partition, (node_id, harm, _, number) in FAULTS.items():
        (log,) = (copies[node_id] / "topics" / f"{TOPIC}-{partition}").glob("*.log")
        content = log.read_bytes()
        found = list(headers(content))
        batches = [content[at : at + header.size_bytes] for at, header in found]
        assert len(batches) == BATCHES
        first_offsets[partition] = found[number][1].base_offset
        log.write_bytes(b"".join(harm(batches)))
    result = run(spark, copies)
    assert {finding.partition for finding in result.findings} == set(FAULTS)
    for partition, (node_id, _, said, _) in FAULTS.items():
        matching = [
            finding
            for finding in result.findings
            if finding.partition == partition
            and said in finding.what
            and finding.replica == f"node {node_id}"
        ]
        assert matching, [finding for finding in result.findings if finding.partition == partition]
        assert min(finding.offset for finding in matching) == first_offsets[partition]
    page = html(result)
    assert "<svg" in page
    assert "diverged" in page
