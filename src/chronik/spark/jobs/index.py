"""The index job: search indexes built by the tasks, put together by the driver, published at once.

A task makes a tantivy index of its range of offsets. The driver links the segments of the index published
last and of the new ones into one folder (segments are written once and have names of their own, so an index
is the list of them), checks that it opens, and names it in `current.json` with one rename. Documents are
known by partition and offset; their fields are those of the nodes' own indexes. See docs/FORMATS.md.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from chronik.model import ChronikError
from chronik.published.documents import (
    CURRENT,
    FORMAT,
    FORMAT_FILE,
    Documents,
    Manifest,
    index_schema,
    read_manifest,
)
from chronik.published.paths import Paths
from chronik.spark.jobs.steps import OVERTAKEN_MAX, Plan, deleted_unread, is_overtaken, look, plan
from chronik.spark.options import Connect
from chronik.spark.ranges import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

STAGING: Final = ".staging"
STEP_RECORDS: Final = 2_000_000
WRITER_BYTES: Final = 64 * 1024 * 1024
MERGE_SEGMENTS_MIN: Final = 12
"""Number of segments from which on tantivy is asked to merge them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions:
    connect: Connect
    folder: str
    """On a file system that the driver and all executors have mounted at the same place."""
    step_records: int = STEP_RECORDS
    fail_on_data_loss: bool = True
    read: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Indexed:
    topic: str
    documents: int = 0
    unreadable: int = 0
    """Batches that were left out, because their records cannot be decoded."""
    total: int = 0
    steps: int = 0
    size_bytes: int = 0
    path: str = ""
    lost: list[OffsetRange] = field(default_factory=list)
    """Offsets that were deleted before the job read them."""


def index(
    spark: SparkSession,
    topic: str,
    options: IndexOptions,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Indexed:
    """Bring the index of a topic up to the end that the topic has now.

    Records that were deleted before it read them cost themselves alone, as they do the archive job.
    """
    try:
        import tantivy  # noqa: F401
    except ImportError:
        raise ChronikError("search indexes need tantivy: pip install 'chronik[spark]'") from None
    root = Path(options.folder).absolute() / topic
    shutil.rmtree(root / STAGING, ignore_errors=True)
    done = Indexed(topic)
    total, overtaken = -1, 0
    while True:
        manifest = read_manifest(root)
        work = _next_plan(topic, manifest, options)
        total = work.left if total < 0 else total
        progress(total - work.left, total)
        if not work.size and not work.lost:
            break
        try:
            shards = _build(spark, work, options, root / STAGING) if work.size else []
        except Exception:  # Spark hands on what a task raised in several wrappings
            overtaken += 1
            if overtaken > OVERTAKEN_MAX or not is_overtaken(work, look(options.connect, [topic])):
                raise
            continue
        overtaken = 0
        done.lost += work.lost
        _publish(root, manifest, work, [shard.path for shard in shards if shard.path])
        done.documents += sum(shard.documents for shard in shards)
        done.unreadable += sum(shard.unreadable for shard in shards)
        done.steps += 1
    if done.lost and options.fail_on_data_loss:
        raise deleted_unread(done.lost)
    _describe(done, root, manifest)
    return done


def _next_plan(topic: str, manifest: Manifest | None, options: IndexOptions) -> Plan:
    return plan(
        manifest.offsets if manifest is not None else None,
        manifest.topic_id if manifest is not None else "",
        topic,
        look(options.connect, [topic]),
        limit=options.step_records,
        fail_on_data_loss=options.fail_on_data_loss,
    )


def _describe(done: Indexed, root: Path, manifest: Manifest | None) -> None:
    if manifest is not None:
        folder = root / manifest.path
        done.total = manifest.documents
        done.path = str(folder)
        done.size_bytes = sum(file.stat().st_size for file in folder.iterdir())


def _build(spark: SparkSession, work: Plan, options: IndexOptions, staging: Path) -> list[Any]:
    """Rows of `SHARDS`, one for each task."""
    from chronik.spark.jobs.shards import ShardSource

    staging.mkdir(parents=True, exist_ok=True)
    spark.dataSource.register(ShardSource)
    given = {**work.options(options.connect.bootstrap, options.read), "staging": str(staging)}
    frame = spark.read.format(ShardSource.name()).options(**given).load()
    return frame.collect()


SHARD_COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp", "unreadable")
SHARDS: Final = "path string, documents long, unreadable long"


def build_shard(batches: Iterator[pa.RecordBatch], place: str) -> Iterator[pa.RecordBatch]:
    """What a task does: an index of its rows, under a name that no other attempt has."""
    import pyarrow as pa
    import tantivy

    path = Path(place) / uuid.uuid4().hex
    path.mkdir()
    made = tantivy.Index(index_schema(), path=str(path))
    writer = made.writer(WRITER_BYTES, 1)
    paths = Paths()
    add = Documents(writer, paths).add
    documents = unreadable = 0
    for batch in batches:
        if batch.column("unreadable").null_count < batch.num_rows:  # rows that stand for whole batches
            unreadable += batch.num_rows
            continue
        columns = [batch.column(name) for name in SHARD_COLUMNS[:-1]]
        times = columns[4].cast(pa.int64())
        for key, value, number, offset, micros in zip(
            *(column.to_pylist() for column in (*columns[:4], times)), strict=True
        ):
            add(key, value, number, offset, micros // 1000)
        documents += batch.num_rows
    paths.save(path)
    writer.commit()
    writer.wait_merging_threads()
    if not documents:
        shutil.rmtree(path)
    if documents or unreadable:
        made_path = str(path) if documents else ""
        yield pa.RecordBatch.from_pydict(
            {"path": [made_path], "documents": [documents], "unreadable": [unreadable]}
        )


def _publish(root: Path, manifest: Manifest | None, work: Plan, shards: Sequence[str]) -> None:
    version = manifest.version + 1 if manifest is not None else 0
    parts = [root / manifest.path] if manifest is not None else []
    parts += [Path(shard) for shard in shards]
    building = root / STAGING / f"version-{version}"
    documents = combine(parts, building)
    name = f"{version:06d}"
    shutil.rmtree(root / name, ignore_errors=True)  # left by a run that was killed before it published
    building.rename(root / name)
    offsets = {str(each.tp.partition): each.end for each in work.ranges}
    made = Manifest(
        format=FORMAT,
        topic=work.topic,
        topic_id=work.topic_id,
        version=version,
        path=name,
        offsets=offsets,
        documents=documents,
    )
    replace_file(root / CURRENT, msgspec.json.encode(made))
    for old in root.iterdir():
        # a reader may still have the previous one open
        if old.name.isdecimal() and int(old.name) < version - 1:
            shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(root / STAGING, ignore_errors=True)


def replace_file(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def combine(parts: Sequence[Path], target: Path) -> int:
    """One index with the segments of several; returns how many documents it has."""
    import tantivy

    target.mkdir(parents=True)
    if not parts:
        tantivy.Index(index_schema(), path=str(target))
    meta: dict[str, Any] = {}
    managed: list[str] = []
    paths = Paths()
    for part in parts:
        mark = part / FORMAT_FILE
        if mark.exists() and mark.read_text() != FORMAT:
            raise ChronikError(f"{part} has another format than {FORMAT}: delete it and build it again")
        paths.merge(Paths.load(part))
        found = json.loads((part / "meta.json").read_bytes())
        segments = [*meta.get("segments", []), *found["segments"]]
        meta = {**found, "segments": segments, "opstamp": max(meta.get("opstamp", 0), found["opstamp"])}
        wanted = {str(segment["segment_id"]).replace("-", "") for segment in found["segments"]}
        for file in part.iterdir():
            if file.name.partition(".")[0] in wanted:
                _link(file, target / file.name)
                managed.append(file.name)
    if parts:
        (target / ".managed.json").write_text(json.dumps([*managed, "meta.json"]))
        (target / "meta.json").write_text(json.dumps(meta))
    (target / FORMAT_FILE).write_text(FORMAT)
    paths.save(target)
    opened = tantivy.Index.open(str(target))
    if len(meta.get("segments", ())) >= MERGE_SEGMENTS_MIN:
        writer = opened.writer(WRITER_BYTES, 1)
        writer.commit()
        writer.wait_merging_threads()
        opened.reload()
    return int(opened.searcher().num_docs)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
