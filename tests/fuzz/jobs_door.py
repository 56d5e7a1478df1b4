"""The archive and the index job, as they run: hostile batches in a topic of their own, one Spark session for
all of them, in a process of its own.

Both jobs must account for every record: as a row, as a bad record with a reason, or as a batch that cannot be
read. The long form alone has this door; what tasks do in Python the short one feeds too (`readers_door`).
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from chronik.wire.api import ApiKey
from tests.fuzz.inputs import Input, Piece
from tests.fuzz.records_door import hostile_batch
from tests.process import HOST
from tests.wire import WireClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PORT: Final = "jobs"
ANSWER_WITHIN_S: Final = 180.0
"""Starting Spark included."""
BATCHES_MAX: Final = 60
KEEPS: Final = {"name": "retention.ms", "value": "-1"}
"""Most hostile records are older than a week: the default retention takes them before a job has looked at
one. What a job does then, `tests/spark` tries."""
NICENESS: Final = 5
"""The client beside it is not to be slowed down by Spark, only by what the node does."""
_numbers: Final = itertools.count()


def inputs(pick: random.Random, topic_ids: list[UUID]) -> Iterator[Input]:
    while True:
        batches = [hostile_batch(pick) for _ in range(pick.randrange(1, BATCHES_MAX))]
        decode = pick.choice(("json", "json", "json", "raw"))
        told = [decode, *(base64.b64encode(batch).decode() for batch in batches)]
        yield Input(
            what=f"{len(batches)} batches as {decode}",
            port=PORT,
            pieces=(Piece(0, json.dumps(told).encode()),),
        )


def prepare() -> None:
    os.nice(NICENESS)


def run(kafka_port: int, data: bytes) -> str | None:
    """What was wrong, or None."""
    decode, *encoded = json.loads(data)
    try:
        topic = _fill(kafka_port, [base64.b64decode(each) for each in encoded])
        return _jobs(topic, f"{HOST}:{kafka_port}", decode)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:500]}"


def _fill(kafka_port: int, batches: Sequence[bytes]) -> str:
    """A topic with those of the batches that the node takes."""
    topic = f"jobs-{os.getpid()}-{next(_numbers)}"
    client = WireClient(kafka_port, timeout_s=60)
    made = {"name": topic, "num_partitions": 1, "replication_factor": 1, "configs": [KEEPS]}
    client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [made], "timeout": 30_000})
    for batch in batches:
        part = {"name": topic, "partition_data": [{"index": 0, "records": batch}]}
        client.ask(ApiKey.PRODUCE, 9, {"acks": -1, "timeout": 10_000, "topic_data": [part]})
    client.close()
    return topic


@functools.cache
def _session() -> SparkSession:
    from chronik.spark.session import start_session

    return start_session("fuzz", master="local[1]", conf={"spark.sql.shuffle.partitions": "1"})


def _jobs(topic: str, bootstrap: str, decode: Any) -> str | None:
    from chronik.spark.jobs.archive import ArchiveOptions, archive
    from chronik.spark.jobs.index import IndexOptions, index
    from chronik.spark.options import connect_options

    spark, connect = _session(), connect_options({"bootstrap.servers": bootstrap})
    with tempfile.TemporaryDirectory() as folder:
        tables = Path(folder) / "tables"
        archived = archive(spark, topic, ArchiveOptions(connect=connect, folder=str(tables), decode=decode))
        indexed = index(spark, topic, IndexOptions(connect=connect, folder=f"{folder}/index"))
        read = _count(spark, tables / f"topic={topic}")
        dead = _count(spark, tables / "_dead_letters" / f"topic={topic}")
        again = archive(spark, topic, ArchiveOptions(connect=connect, folder=str(tables), decode=decode))
    if (read, dead) != (archived.rows, archived.dead):
        return f"archived {archived.rows} and {archived.dead} bad ones, but {read} and {dead} are there"
    if archived.rows + archived.dead != indexed.documents + indexed.unreadable:
        return f"archived {archived.rows + archived.dead}, indexed {indexed.documents + indexed.unreadable}"
    if again.rows or again.dead:
        return f"a second run archived {again.rows} and {again.dead} again"
    return None


def _count(spark: SparkSession, folder: Path) -> int:
    return spark.read.parquet(str(folder)).count() if folder.exists() else 0
