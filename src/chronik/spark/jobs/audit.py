"""The audit job: reads every replica of every partition and shows that they agree, or where they differ.

Each replica becomes a table of its batches (offsets, counts, checksums, epochs). A batch that contradicts
itself is a fault of its replica. Then replicas are laid side by side by offset: a batch that one has and
another lacks, inside what both should have, or that differs between them, is a difference. A replica that
should be there and has no batch at all is one too. Compacted topics are checked replica by replica only: each
node compacts when it likes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from pyspark.sql import Window
from pyspark.sql import functions as F

from chronik.client import Cluster
from chronik.client.admin import Admin
from chronik.client.offsets import EARLIEST, LATEST, list_offsets
from chronik.model import ChronikError, TopicPartition
from chronik.spark.jobs.audit_source import AuditedReplica, BatchSource
from chronik.spark.options import Connect, OptionError
from chronik.spark.planning import ask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FOLDER: Final = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)")


@dataclass(frozen=True, slots=True)
class AuditFinding:
    topic: str
    partition: int
    offset: int
    replica: str
    what: str


@dataclass(frozen=True, slots=True)
class ReplicaSummary:
    topic: str
    partition: int
    replica: str
    batches: int
    records: int
    size_bytes: int
    first_offset: int
    end_offset: int
    faults: int


@dataclass(slots=True)
class Audit:
    replicas: list[ReplicaSummary] = field(default_factory=list)
    findings: list[AuditFinding] = field(default_factory=list)
    """The first difference of each partition and replica, and every kind of fault once."""
    watermarks: dict[tuple[str, int], int] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    """Compacted topics, whose replicas were not compared with each other."""

    @property
    def is_clean(self) -> bool:
        return not self.findings


ReplicaKey: TypeAlias = tuple[str, int, str]
"""Topic, partition, name of the replica."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """What a cluster's own metadata says of its topics."""

    replicas: Mapping[tuple[str, int], int]
    """How many replicas each partition should have."""
    compacted: frozenset[str]


@dataclass(frozen=True, slots=True)
class Scope:
    """What is to be read, and what should be found."""

    replicas: tuple[AuditedReplica, ...]
    expected: Mapping[ReplicaKey, int]
    """Every replica that should exist, with an offset that it has certainly reached. After retention a log
    may have no batch; the name of its last segment then tells this offset."""
    watermarks: Mapping[TopicPartition, int]
    compacted: frozenset[str]


def replicas_of_cluster(connect: Connect, topics: Sequence[str]) -> Scope:
    """Every replica of these topics (all, if none is named), each read from its own node."""

    async def work(cluster: Cluster) -> Scope:
        admin = Admin(cluster)
        infos = (
            await admin.describe_topics(topics)
            if topics
            else [info for info in await admin.list_topics() if not info.is_internal]
        )
        tps = [TopicPartition(info.name, number) for info in infos for number in info.partitions]
        starts = await list_offsets(cluster, dict.fromkeys(tps, EARLIEST))
        ends = await list_offsets(cluster, dict.fromkeys(tps, LATEST))
        compacted = set()
        for info in infos:
            (policy,) = await admin.describe_config("topic", info.name, ["cleanup.policy"])
            if "compact" in (policy.value or ""):
                compacted.add(info.name)
        found = [
            AuditedReplica(
                replica=f"node {node_id}",
                topic=info.name,
                partition=number,
                node_id=node_id,
                start=starts[TopicPartition(info.name, number)].offset,
                end=ends[TopicPartition(info.name, number)].offset,
            )
            for info in infos
            for number, partition in info.partitions.items()
            for node_id in partition.replicas
        ]
        watermarks = {tp: at.offset for tp, at in ends.items()}
        expected = {(each.topic, each.partition, each.replica): each.start for each in found}
        return Scope(tuple(found), expected, watermarks, frozenset(compacted))

    return ask(connect, work)


def replicas_of_folders(
    folders: Mapping[str, str], topics: Sequence[str], assigned: Assigned | None = None
) -> Scope:
    """The segment files under data directories; names of the replicas are the keys.

    Without what the metadata says, the partition of a topic with most replicas tells how many each has.
    """
    found: list[AuditedReplica] = []
    expected: dict[ReplicaKey, int] = {}
    for name, folder in sorted(folders.items()):
        root = Path(folder).absolute()
        root = root / "topics" if (root / "topics").is_dir() else root
        if not root.is_dir():
            raise OptionError(f"there is no directory {folder}")
        for directory in sorted(filter(Path.is_dir, root.iterdir())):
            match = _FOLDER.fullmatch(directory.name)
            if match is None or match["topic"].startswith("__") or (topics and match["topic"] not in topics):
                continue
            topic, partition = match["topic"], int(match["partition"])
            if assigned is not None and (topic, partition) not in assigned.replicas:
                continue  # deleted, or moved away: the node is about to remove it
            logs = sorted(directory.glob("*.log"))
            expected[topic, partition, name] = max((int(log.stem) for log in logs), default=0)
            found += (
                AuditedReplica(replica=name, topic=topic, partition=partition, path=str(log)) for log in logs
            )
    if not found:
        raise OptionError(f"no segment files of these topics were found in {', '.join(folders.values())}")
    for key in _absent(expected, folders, assigned, topics):
        expected[key] = 0
    return Scope(tuple(found), expected, {}, assigned.compacted if assigned is not None else frozenset())


def _absent(
    expected: Mapping[ReplicaKey, int],
    folders: Mapping[str, str],
    assigned: Assigned | None,
    topics: Sequence[str],
) -> list[ReplicaKey]:
    """Missing replicas, attributed to the folders that do not have the partition."""
    holders: dict[tuple[str, int], set[str]] = {}
    for topic, partition, name in expected:
        holders.setdefault((topic, partition), set()).add(name)
    most: dict[str, int] = {}
    for (topic, _), names in holders.items():
        most[topic] = max(most.get(topic, 0), len(names))
    if assigned is not None:
        counts = {
            (topic, partition): count
            for (topic, partition), count in assigned.replicas.items()
            if not topic.startswith("__") and (not topics or topic in topics)
        }
    else:
        counts = {tp: most[tp[0]] for tp in holders}
    found = []
    for tp, count in sorted(counts.items()):
        there = holders.get(tp, set())
        found += [(*tp, name) for name in sorted(folders.keys() - there)[: count - len(there)]]
    return found


def audit(
    spark: SparkSession,
    connect: Connect,
    scope: Scope,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Audit:
    if not scope.expected:
        raise ChronikError("there is nothing to audit: no topic has a partition")
    spark.dataSource.register(BatchSource)
    progress(0, 3)
    batches = (
        spark.read.format(BatchSource.name())
        .option("replicas", msgspec.json.encode(list(scope.replicas)).decode())
        .option("connect", msgspec.json.encode(connect).decode())
        .load()
        .persist()
    )
    try:
        result = Audit(watermarks={tuple(tp): at for tp, at in scope.watermarks.items()})  # type: ignore[misc]
        result.replicas = _summaries(batches)
        progress(1, 3)
        result.findings = _faults(batches)
        progress(2, 3)
        result.skipped = sorted(scope.compacted.intersection(topic for topic, _, _ in scope.expected))
        result.findings += _differences(batches, scope)
        _add_empty_replicas(result, scope)
        result.findings.sort(key=lambda each: (each.topic, each.partition, each.offset, each.replica))
        progress(3, 3)
        return result
    finally:
        batches.unpersist()


def _summaries(batches: DataFrame) -> list[ReplicaSummary]:
    rows = (
        batches.groupBy("topic", "partition", "replica")
        .agg(
            F.count(F.when(F.col("size_bytes") > 0, True)).alias("batches"),
            F.sum("records").alias("records"),
            F.sum("size_bytes").alias("size_bytes"),
            F.min("base_offset").alias("first_offset"),
            (F.max("last_offset") + 1).alias("end_offset"),
            F.count("fault").alias("faults"),
        )
        .orderBy("topic", "partition", "replica")
        .collect()
    )
    return [ReplicaSummary(**row.asDict()) for row in rows]


def _add_empty_replicas(result: Audit, scope: Scope) -> None:
    """Add replicas without a batch. Each is a finding if another replica has records, or none has what lies
    below the watermark."""
    furthest: dict[tuple[str, int], ReplicaSummary] = {}
    for each in result.replicas:
        known = furthest.get((each.topic, each.partition))
        if each.batches and (known is None or each.end_offset > known.end_offset):
            furthest[each.topic, each.partition] = each
    read = {(each.topic, each.partition, each.replica): each for each in result.replicas}
    for key, reaches in scope.expected.items():
        topic, partition, name = key
        if key not in read:
            result.replicas.append(ReplicaSummary(topic, partition, name, 0, 0, 0, reaches, reaches, 0))
        other = furthest.get((topic, partition))
        is_empty = key not in read or not (read[key].batches or read[key].faults)
        if is_empty and other is not None and reaches < other.end_offset:
            what = f"empty: it has no batch, {other.replica} has {other.records} records"
            result.findings.append(AuditFinding(topic, partition, other.first_offset, name, what))
        watermark = scope.watermarks.get(TopicPartition(topic, partition), 0)
        if is_empty and other is None and reaches < watermark:
            what = f"empty: it has no batch, the watermark is {watermark}"
            result.findings.append(AuditFinding(topic, partition, reaches, name, what))
    result.replicas.sort(key=lambda each: (each.topic, each.partition, each.replica))


def _faults(batches: DataFrame) -> list[AuditFinding]:
    """The first fault of each replica of each partition; one harmed batch often makes many."""
    first = Window.partitionBy("topic", "partition", "replica").orderBy("base_offset")
    rows = (
        batches.where("fault is not null")
        .withColumn("number", F.row_number().over(first))
        .where("number <= 3")
        .collect()
    )
    return [AuditFinding(row.topic, row.partition, row.base_offset, row.replica, row.fault) for row in rows]


def _differences(batches: DataFrame, scope: Scope) -> list[AuditFinding]:
    """Replicas side by side, by offset: what one lacks that another has, and what is not the same."""
    good = batches.where(F.col("size_bytes") > 0)
    if scope.compacted:
        good = good.where(~F.col("topic").isin(*scope.compacted))
    whole = Window.partitionBy("topic", "partition")
    spans = (
        good.groupBy("topic", "partition", "replica")
        .agg(F.min("base_offset").alias("begins"), (F.max("last_offset") + 1).alias("ends"))
        .withColumn("common_start", F.max("begins").over(whole))
        .withColumn("furthest", F.max("ends").over(whole))
        .withColumn("replicas", F.count("replica").over(whole))
    )
    findings = [*_short_replicas(spans.collect(), scope), *_gaps(good)]
    identity = F.struct("last_offset", "records", "crc", "epoch", "size_bytes")
    limits = spans.groupBy("topic", "partition").agg(
        F.first("common_start").alias("common_start"),
        F.min("ends").alias("common_end"),
        F.first("replicas").alias("replicas"),
    )
    aligned = (
        good.withColumn("identity", identity)
        .groupBy("topic", "partition", "base_offset")
        .agg(
            F.collect_list(F.struct("replica", "identity")).alias("copies"),
            F.countDistinct("identity").alias("kinds"),
            F.countDistinct("replica").alias("holders"),
        )
        .join(limits, ["topic", "partition"])
        .where("base_offset >= common_start and base_offset < common_end")
        .where("kinds > 1 or holders < replicas")
    )
    first = Window.partitionBy("topic", "partition").orderBy("base_offset")
    names: dict[tuple[str, int], set[str]] = {}
    for each in scope.replicas:
        names.setdefault((each.topic, each.partition), set()).add(each.replica)
    for row in aligned.withColumn("number", F.row_number().over(first)).where("number = 1").collect():
        findings.append(_explain(row, names[row.topic, row.partition]))
    return findings


def _gaps(good: DataFrame) -> list[AuditFinding]:
    """The first offsets that a replica skips or has twice: a log that is not compacted leaves none out."""
    each = Window.partitionBy("topic", "partition", "replica")
    in_order = each.orderBy("base_offset")
    rows = (
        good.withColumn("expected", F.lag("last_offset").over(in_order) + 1)
        .where("base_offset <> expected or records <> last_offset - base_offset + 1")
        .withColumn("number", F.row_number().over(in_order))
        .where("number = 1")
        .collect()
    )
    found = []
    for row in rows:
        if row.expected is not None and row.base_offset > row.expected:
            what = f"lost: offsets {row.expected} to {row.base_offset - 1} are missing"
        elif row.expected is not None and row.base_offset < row.expected:
            what = f"duplicated: the batch at offset {row.base_offset} overlaps the one before it"
        else:
            offsets = row.last_offset - row.base_offset + 1
            what = (
                f"lost: the batch at offset {row.base_offset} has {row.records} records for {offsets} offsets"
            )
        found.append(AuditFinding(row.topic, row.partition, row.base_offset, row.replica, what))
    return found


def _short_replicas(rows: Sequence[Any], scope: Scope) -> list[AuditFinding]:
    found = []
    for row in rows:
        watermark = scope.watermarks.get(TopicPartition(row.topic, row.partition))
        if watermark is None and row.ends < row.furthest:
            what = f"behind: it ends at offset {row.ends}, another replica at {row.furthest}"
            found.append(AuditFinding(row.topic, row.partition, row.ends, row.replica, what))
        elif watermark is not None and row.ends < watermark:
            what = f"behind: it ends at offset {row.ends}, the watermark is {watermark}"
            found.append(AuditFinding(row.topic, row.partition, row.ends, row.replica, what))
    return found


def _explain(row: Any, replicas: set[str]) -> AuditFinding:
    """A sentence about the first offset at which the replicas of a partition part."""
    copies = {copy.replica: copy.identity for copy in row.copies}
    missing = sorted(replicas - copies.keys())
    if missing:
        holder = min(copies)
        what = f"lost: {holder} has a batch at offset {row.base_offset} that this replica lacks"
        return AuditFinding(row.topic, row.partition, row.base_offset, missing[0], what)
    groups: dict[Any, list[str]] = {}
    for replica, identity in sorted(copies.items()):
        groups.setdefault(tuple(identity), []).append(replica)
    minority, majority = sorted(groups.values(), key=lambda group: (len(group), group))[:2]
    ours, theirs = copies[minority[0]], copies[majority[0]]
    differing = [name for name in ours.asDict() if ours[name] != theirs[name]]
    what = (
        f"diverged: the batch at offset {row.base_offset} differs from that of {majority[0]} in "
        + ", ".join(f"{name} ({ours[name]} instead of {theirs[name]})" for name in differing)
    )
    return AuditFinding(row.topic, row.partition, row.base_offset, minority[0], what)
