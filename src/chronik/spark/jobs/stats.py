"""The stats job: per topic and hour, how many records, bytes and keys; and who is how far behind."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from chronik.client import Cluster
from chronik.client.groups import Groups
from chronik.client.offsets import LATEST, list_offsets
from chronik.model import TopicPartition
from chronik.spark.jobs.plots import Part, bars, lines, page, table, write_report
from chronik.spark.options import Connect
from chronik.spark.planning import ask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Hour:
    topic: str
    hour: datetime.datetime
    records: int
    size_bytes: int
    keys: int
    """Distinct keys, to within about five percent."""
    tombstones: int


@dataclass(frozen=True, slots=True)
class Lag:
    group: str
    topic: str
    lag: int


@dataclass(slots=True)
class Stats:
    hours: list[Hour] = field(default_factory=list)
    lags: list[Lag] = field(default_factory=list)


def stats(
    spark: SparkSession,
    connect: Connect,
    topics: Sequence[str],
    since: datetime.datetime | None = None,
    read: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Stats:
    progress(0, 2)
    options = {**(read or {}), "kafka.bootstrap.servers": connect.bootstrap, "subscribe": ",".join(topics)}
    options["columns"] = "key,value,topic,timestamp"
    if since is not None:
        options["startingTimestamp"] = str(int(since.timestamp() * 1000))
        options["startingOffsetsByTimestampStrategy"] = "latest"
    frame = spark.read.format("chronik").options(**options).load()
    size = F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(F.octet_length("value"), F.lit(0))
    rows = (
        frame.groupBy("topic", F.date_trunc("hour", "timestamp").alias("hour"))
        .agg(
            F.count(F.lit(1)).alias("records"),
            F.sum(size).alias("size_bytes"),
            F.approx_count_distinct("key").alias("keys"),
            F.count(F.when(F.col("value").isNull(), True)).alias("tombstones"),
        )
        .orderBy("topic", "hour")
        .collect()
    )
    progress(1, 2)
    found = Stats(hours=[Hour(**row.asDict()) for row in rows], lags=lags(connect, topics))
    progress(2, 2)
    return found


def lags(connect: Connect, topics: Sequence[str]) -> list[Lag]:
    """How many records each group has yet to read of these topics."""

    async def work(cluster: Cluster) -> list[Lag]:
        groups = Groups(cluster)
        found = []
        for listing in await groups.list():
            offsets = {
                tp: at.offset
                for tp, at in (await groups.offsets(listing.group_id)).items()
                if tp.topic in topics and at.offset >= 0
            }
            ends = await list_offsets(cluster, dict.fromkeys(offsets, LATEST))
            behind: dict[str, int] = {}
            for tp, offset in offsets.items():
                behind[tp.topic] = behind.get(tp.topic, 0) + max(0, _end(ends, tp, offset) - offset)
            found += [Lag(listing.group_id, topic, lag) for topic, lag in sorted(behind.items())]
        return found

    return ask(connect, work)


def _end(ends: Mapping[TopicPartition, object], tp: TopicPartition, offset: int) -> int:
    return int(getattr(ends.get(tp), "offset", offset))


TITLE: Final = "Topics by hour"


def html(found: Stats) -> str:
    return page(TITLE, body_of(found))


def write(found: Stats, path: Path) -> list[Path]:
    return write_report(path, TITLE, body_of(found))


def body_of(found: Stats) -> list[Part]:
    records: dict[str, list[tuple[float, float]]] = {}
    sizes: dict[str, list[tuple[float, float]]] = {}
    for each in found.hours:
        records.setdefault(each.topic, []).append((each.hour.timestamp(), each.records))
        sizes.setdefault(each.topic, []).append((each.hour.timestamp(), each.size_bytes / 1e6))
    rows = [
        [each.topic, f"{each.hour:%Y-%m-%d %H:00}", each.records, each.size_bytes, each.keys, each.tombstones]
        for each in found.hours
    ]
    body: list[Part] = [
        lines("Records by hour", "records per hour", records),
        lines("Bytes by hour", "MB per hour, keys and values", sizes),
        table(["topic", "hour (UTC)", "#records", "#bytes", "#keys", "#tombstones"], rows),
    ]
    if found.lags:
        lags = [(f"{each.group}, {each.topic}", each.lag, "#c05621") for each in found.lags]
        body.append(bars("Lag by group", "records yet to be read", lags))
    return body
