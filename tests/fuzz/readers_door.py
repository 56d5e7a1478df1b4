"""Readers that no port leads to, in a process of their own: the scanner of Spark and SQL, Avro, archives,
indexes, and pipeline files.

Each takes the bytes of one input and says what was wrong: anything but a result or the error that it
promises. What ends or blocks the process is a finding, too.
"""

from __future__ import annotations

import base64
import copy
import functools
import io
import json
import random
import resource
import shutil
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec

from chronik.model import ChronikError, RequestError
from tests.fuzz import file_readers
from tests.fuzz.inputs import Input, Piece
from tests.fuzz.pipeline_files import pipeline_file
from tests.fuzz.records_door import hostile_batch
from tests.fuzz.telemetry_door import pushed
from tests.fuzz.values import damaged, json_value

MEMORY_MAX: Final = 2 << 30
PUSH_KEPT_MAX: Final = 2 << 20
"""A node keeps the last push of a hundred clients."""
ORDER: Final = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "parts", "type": {"type": "array", "items": "bytes"}},
        {"name": "more", "type": {"type": "map", "values": "double"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["a", "b"]}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "next", "type": ["null", "Order"]},
    ],
}


def inputs(pick: random.Random, topic_ids: list[UUID]) -> Iterator[Input]:
    kinds = ("scanner", "tasks", "tasks", "avro", "archive", "index", "pipeline", "pipeline", "otlp")
    while True:
        kind = pick.choice(kinds)
        yield Input(what=kind, port=kind, pieces=(Piece(0, MAKERS[kind](pick)),))


# --- what is read -----------------------------------------------------------------------------------


def _batches(pick: random.Random) -> bytes:
    made = b"".join(hostile_batch(pick) for _ in range(pick.choice((1, 2, 5))))
    return damaged(pick, made) if pick.random() < 0.1 else made


def _avro(pick: random.Random) -> bytes:
    schema: Any = copy.deepcopy(ORDER)
    if pick.random() < 0.5:
        field = pick.choice(schema["fields"])
        field[pick.choice(("name", "type"))] = json_value(pick)
    datum = _datum()
    datum = damaged(pick, datum) if pick.random() < 0.7 else datum
    datum = pick.randbytes(pick.choice((0, 1, 50))) if pick.random() < 0.1 else datum
    return json.dumps([schema, base64.b64encode(datum).decode()]).encode()


@functools.cache
def _datum() -> bytes:
    import fastavro

    out = io.BytesIO()
    good = {"id": 1, "note": "x", "parts": [b"a"], "more": {"b": 1.5}, "kind": "a", "price": b"\x01"}
    schema = fastavro.parse_schema(copy.deepcopy(ORDER))
    fastavro.schemaless_writer(out, schema, {**good, "next": {**good, "next": None}})
    return out.getvalue()


def _damaged_files(make: Callable[[], Mapping[str, bytes]], pick: random.Random) -> bytes:
    """A folder in which one or two files say something else, or are gone."""
    files = dict(make())
    for name in pick.sample(sorted(files), min(len(files), pick.choice((0, 1, 1, 1, 2)))):
        if pick.random() < 0.1:
            del files[name]
        elif name.endswith(".json") and pick.random() < 0.5:
            document = msgspec.json.decode(files[name])
            if isinstance(document, dict) and document:
                document[pick.choice(sorted(document))] = json_value(pick)
            files[name] = json.dumps(document).encode("utf-8", "surrogatepass")
        else:
            files[name] = damaged(pick, files[name])
    return json.dumps({name: base64.b64encode(data).decode() for name, data in files.items()}).encode()


@functools.cache
def _archive_files() -> Mapping[str, bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from chronik.published.steps import PublishedStep, step_path

    table = pa.table(
        {
            "key": pa.array([b"k"] * 3, pa.binary()),
            "value": pa.array([{"id": n} for n in range(3)], pa.struct([("id", pa.int64())])),
            "partition": pa.array([0] * 3, pa.int32()),
            "offset": pa.array(range(3), pa.int64()),
            "timestamp": pa.array([0] * 3, pa.timestamp("us", tz="UTC")),
        }
    )
    out = io.BytesIO()
    pq.write_table(table, out)
    place = "topic=orders/date=1970-01-01/0.parquet"
    step = PublishedStep(
        version=0,
        topic="orders",
        topic_id="one",
        ranges={"0": (0, 3)},
        offsets={"0": 3},
        rows=3,
        moves={"s/0": place},
    )
    return {place: out.getvalue(), step_path("orders", 0): msgspec.json.encode(step)}


@functools.cache
def _index_files() -> Mapping[str, bytes]:
    from chronik.query.index import TopicIndex

    with tempfile.TemporaryDirectory() as folder:
        index = TopicIndex(Path(folder))
        index.add(0, [(n, n, b"k", b'{"id": %d, "note": "ada"}' % n, ()) for n in range(20)])
        index.commit({0: 20})
        index.close()
        return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.suffix != ".lock"}


def _written(data: bytes, folder: Path) -> None:
    for name, content in json.loads(data).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(content))


# --- the readers ------------------------------------------------------------------------------------


def _scan(data: bytes) -> None:
    from chronik.client.fetching import Fetched
    from chronik.columns.scanner import COLUMN_TYPES, RecordWindow, Scanner
    from chronik.model import TopicPartition
    from chronik.query.column_reader import ColumnReader
    from chronik.query.unreadable_records import Skipped
    from chronik.records.reader import read_all_records

    def scan() -> None:
        for batch in Scanner(tuple(COLUMN_TYPES), "t", 0).scan(data, RecordWindow(), (), lambda _: None):
            batch.validate(full=True)

    def columns() -> None:
        end = 2**62
        fetched = Fetched(
            tp=TopicPartition("t", 0),
            fetch_offset=0,
            next_offset=end,
            data=memoryview(data),
            aborted=(),
            high_watermark=end,
            last_stable_offset=end,
            log_start_offset=0,
        )
        for batch in ColumnReader("t", 0, Skipped()).read(fetched, 2**62):
            batch.validate(full=True)

    for read in (scan, columns, lambda: list(read_all_records(data))):
        try:
            read()
        except RequestError:
            pass


def _run_tasks(data: bytes) -> None:
    """What tasks of the archive and of the index job do with the batches of their range, and what the driver
    of the index job makes of their shards. The rest of the archive job is Spark's (`jobs_door`)."""
    from chronik.query.index import TopicIndex, find
    from chronik.spark.jobs.decoding import with_unreadable
    from chronik.spark.jobs.index import SHARD_COLUMNS, build_shard, combine
    from chronik.spark.reader import RangePartition, RangeRows

    work = RangePartition("t", 0, 0, 2**62)
    columns = with_unreadable(include_headers=True).split(",")
    try:
        archived = list(RangeRows(columns, work).of(data, ()))
    except RequestError:
        return  # a checksum is wrong: that is the disk's fault, and the task fails
    for batch in archived:
        batch.validate(full=True)
        if batch.schema.names != columns:
            raise AssertionError(f"columns {batch.schema.names}")
    with tempfile.TemporaryDirectory() as folder:
        staging = Path(folder) / "staging"
        staging.mkdir()
        (made,) = list(build_shard(RangeRows(SHARD_COLUMNS, work).of(data, ()), str(staging))) or [None]
        shard = {"path": "", "documents": 0, "unreadable": 0} if made is None else made.to_pylist()[0]
        documents = combine([Path(shard["path"])] if shard["path"] else [], Path(folder) / "index")
        index = TopicIndex(Path(folder) / "index")
        found = find(index.snapshot, {"match_all": {}}, {}, limit=3, order=None, ascending=False)
        index.close()
    rows = sum(batch.num_rows for batch in archived)
    counts = (shard["documents"], documents, found.total, rows - shard["unreadable"])
    if len(set(counts)) > 1:
        raise AssertionError(f"documents of the shard, of the index, found by it, and rows: {counts}")


def _decode_avro(data: bytes) -> None:
    from chronik.spark.jobs.avro import decoder

    schema, datum = json.loads(data)
    text, reason = decoder({1: schema})(b"\x00\x00\x00\x00\x01" + base64.b64decode(datum))
    if (text is None) == (reason is None):
        raise AssertionError(f"neither text nor a reason: {text!r}, {reason!r}")


def _read_archive(data: bytes) -> None:
    import duckdb

    from chronik.query.archive import Archive
    from chronik.query.messages import QueryError
    from chronik.query.pushdown import RowBounds
    from chronik.query.run import archive_parts

    with tempfile.TemporaryDirectory() as folder:
        _written(data, Path(folder))
        try:
            found = Archive(Path(folder)).look("orders", "one", RowBounds())
            if found is not None:
                connection = duckdb.connect(config={"memory_limit": "64MB"})
                parts = " UNION ALL BY NAME ".join(f"({part})" for part in archive_parts(connection, found))
                connection.execute(f"SELECT * FROM ({parts})").fetchall() if parts else None
        except (QueryError, FileNotFoundError, duckdb.Error):
            pass


def _read_index(data: bytes) -> None:
    from chronik.query.index import IndexDamaged, TopicIndex, find
    from chronik.query.messages import QueryError

    folder = Path(tempfile.mkdtemp())
    try:
        _written(data, folder)
        index = TopicIndex(folder)
        find(index.snapshot, {"match_all": {}}, {}, limit=10, order=None, ascending=False)
        index.add(0, [(50, 1, None, b'{"id": 1}', ())])
        index.commit({0: 51})
        index.close()
    except (IndexDamaged, QueryError):
        pass
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read_pipeline(data: bytes) -> None:
    from chronik.spark.pipeline.document import Document, PipelineError
    from chronik.spark.pipeline.spec import parse

    try:
        parse(Document("pipeline.toml", data.decode()))
    except PipelineError as error:
        if "\n" in str(error)[:-1] and "Traceback" in str(error):
            raise AssertionError(f"no sentence for a person: {error}") from error


def _push(pick: random.Random) -> bytes:
    codec, data = pushed(pick)
    return bytes((codec,)) + data


def _read_push(data: bytes) -> None:
    from chronik.server.telemetry import check_metrics

    tracemalloc.start()
    try:
        kept = check_metrics(data[0], data[1:])
        size, _ = tracemalloc.get_traced_memory()
    except RequestError:
        return
    finally:
        tracemalloc.stop()
    if kept is not None and size > PUSH_KEPT_MAX:
        raise AssertionError(f"{size >> 10} KiB are kept of a push of {len(data) >> 10} KiB")


MAKERS: Final[Mapping[str, Callable[[random.Random], bytes]]] = {
    "scanner": _batches,
    "tasks": _batches,
    "avro": _avro,
    "archive": functools.partial(_damaged_files, _archive_files),
    "index": functools.partial(_damaged_files, _index_files),
    "pipeline": lambda pick: pipeline_file(pick).encode(),
    "otlp": _push,
}
READERS: Final[Mapping[str, Callable[[bytes], None]]] = {
    **file_readers.READERS,
    "scanner": _scan,
    "tasks": _run_tasks,
    "avro": _decode_avro,
    "archive": _read_archive,
    "index": _read_index,
    "pipeline": _read_pipeline,
    "otlp": _read_push,
}


def limit_memory() -> None:
    """What takes more is refused it, and becomes a finding."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX, hard))


def read(port: str, data: bytes) -> str | None:
    """What was wrong, or None."""
    try:
        READERS[port](data)
    except ChronikError as error:
        return f"an error that is not promised: {error!r}"
    except BaseException as error:  # tantivy's panics are no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return f"{type(error).__name__}: {str(error)[:300]}"
    return None
