"""The compact job: an archive's small Parquet files into large ones, expired days away.

A day of a topic with several small files is written again, into staging; one step of the topic's commit log
then names the new files and the old ones they replace. A run that is killed leaves either the old files or
the new ones in the log; the next run finishes what the log says.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chronik.published.steps import META, PublishedStep
from chronik.spark.jobs.files import FileInfo, Folder
from chronik.spark.jobs.steps import StepLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DAY: Final = re.compile(r"topic=(?P<topic>[^/]+)/date=(?P<date>\d{4}-\d{2}-\d{2})/[^/]+\.parquet")
TARGET_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions:
    folder: str
    target_bytes: int = TARGET_BYTES
    retention_days: int | None = None


@dataclass(slots=True)
class Compacted:
    topic: str
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    days_expired: int = 0


def topics_in(folder: Folder) -> list[str]:
    return [name for name in folder.names(META) if name != "staging"]


def compact(
    spark: SparkSession,
    topic: str,
    options: CompactOptions,
    today: datetime.date,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Compacted:
    folder = Folder(spark, options.folder)
    log = StepLog(folder, topic)
    days: dict[str, list[FileInfo]] = {}
    for file in folder.files(f"topic={topic}"):
        match = _DAY.fullmatch(file.path)
        if match is not None:
            days.setdefault(match["date"], []).append(file)
    done = Compacted(topic)
    for number, (date, files) in enumerate(sorted(days.items())):
        progress(number, len(days))
        done.files_before += len(files)
        done.bytes_before += sum(file.size_bytes for file in files)
        if is_expired(date, options.retention_days, today):
            _commit(log, {}, files, kind="expire")
            done.days_expired += 1
            continue
        small = [file for file in files if file.size_bytes < options.target_bytes // 2]
        wanted = max(1, -(-sum(file.size_bytes for file in small) // options.target_bytes))
        if len(small) <= wanted:
            done.files_after += len(files)
            continue
        moves = _rewrite(spark, folder, log, topic, date, small, wanted)
        _commit(log, moves, small, kind="compact")
        done.files_after += len(files) - len(small) + len(moves)
    progress(len(days), len(days))
    return done


def is_expired(date: str, retention_days: int | None, today: datetime.date) -> bool:
    if retention_days is None:
        return False
    return datetime.date.fromisoformat(date) < today - datetime.timedelta(days=retention_days)


def _rewrite(
    spark: SparkSession,
    folder: Folder,
    log: StepLog,
    topic: str,
    date: str,
    small: list[FileInfo],
    wanted: int,
) -> dict[str, str]:
    staging = f"{log.staging}/{date}"
    paths = [folder.uri(file.path) for file in small]
    frame = spark.read.option("mergeSchema", "true").parquet(*paths)
    ordered = frame.repartitionByRange(wanted, "partition", "offset").sortWithinPartitions(
        "partition", "offset"
    )
    ordered.write.mode("overwrite").parquet(folder.uri(staging))
    return {
        file.path: f"topic={topic}/date={date}/{log.version:012d}-{file.path.rpartition('/')[2]}"
        for file in folder.files(staging)
        if file.path.endswith(".parquet")
    }


def _commit(log: StepLog, moves: dict[str, str], removed: list[FileInfo], *, kind: str) -> None:
    last = log.last
    log.commit(
        PublishedStep(
            version=log.version,
            topic=log.topic,
            topic_id=last.topic_id if last is not None else "",
            kind=kind,
            offsets=last.offsets if last is not None else {},
            schema=last.schema if last is not None else None,
            moves=moves,
            removes=tuple(file.path for file in removed),
        )
    )
