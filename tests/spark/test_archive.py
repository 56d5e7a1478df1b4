"""The archive and index jobs: every record once, run by run, whatever the records are (P03)."""

from __future__ import annotations

import datetime
import io
import json
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pytest
import tantivy
from pyspark.sql import SparkSession

from chronik.model import ChronikError
from chronik.published.paths import Paths
from chronik.spark.jobs import steps
from chronik.spark.jobs.archive import ArchiveOptions, archive
from chronik.spark.jobs.compact import CompactOptions, compact
from chronik.spark.jobs.index import IndexOptions, index, read_manifest
from chronik.spark.options import Connect, connect_options
from chronik.spark.planning import OffsetBounds
from tests.node import ChronikNode
from tests.spark.processes import wait_for
from tests.spark.topics import Topics


def options(topics: Topics, folder: Path, **more: Any) -> ArchiveOptions:
    return ArchiveOptions(
        connect=connect_options({"bootstrap.servers": topics.bootstrap}), folder=str(folder), **more
    )


def rows(spark: SparkSession, folder: Path, topic: str) -> list[Any]:
    frame = spark.read.option("mergeSchema", "true").parquet(f"{folder}/topic={topic}")
    return frame.orderBy("partition", "offset").collect()


def test_good_bad_and_mixed_records(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create()
    wanted = options(topics, tmp_path)
    topics.fill(topic, [b'{"id": 1, "name": "a"}', b'{"id": 2', None, b"\xff\xfe", b"", b"[1]"], partition=0)
    done = archive(spark, topic, wanted)
    assert (done.rows, done.dead) == (2, 4)
    topics.fill(topic, [b'{"id": 3, "more": {"x": 1.5}}', b'{"id": "text"}'], partition=0)
    assert archive(spark, topic, wanted).rows == 1
    assert archive(spark, topic, wanted).steps == 0
    found = rows(spark, tmp_path, topic)
    assert [(row.offset, row.value and row.value.id) for row in found] == [(0, 1), (2, None), (6, 3)]
    assert found[2].value.more.x == 1.5
    dead = spark.read.parquet(f"{tmp_path}/_dead_letters/topic={topic}").orderBy("offset").collect()
    assert [(row.offset, bytes(row.value), row.reason) for row in dead] == [
        (1, b'{"id": 2', "the value is no JSON"),
        (3, b"\xff\xfe", "the value is not UTF-8"),
        (4, b"", "the value is empty"),
        (5, b"[1]", "the value is no JSON object"),
        (7, b'{"id": "text"}', "the value does not fit the schema of those before it"),
    ]


def test_a_step_at_a_time_then_compacted(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(partitions=2)
    for partition in (0, 1):
        topics.fill(topic, [b'{"n": %d}' % n for n in range(20)], partition=partition)
    assert archive(spark, topic, options(topics, tmp_path, step_records=15)).steps == 3
    before = rows(spark, tmp_path, topic)
    assert [(row.partition, row.offset) for row in before] == [(p, n) for p in (0, 1) for n in range(20)]
    today = datetime.date.today()
    shrunk = compact(spark, topic, CompactOptions(folder=str(tmp_path)), today)
    assert shrunk.files_before > shrunk.files_after == 1
    spark.catalog.clearCache()
    assert rows(spark, tmp_path, topic) == before
    later = today + datetime.timedelta(days=40)
    gone = compact(spark, topic, CompactOptions(folder=str(tmp_path), retention_days=30), later)
    assert gone.days_expired == 1
    assert archive(spark, topic, options(topics, tmp_path)).rows == 0


def test_gaps_of_compaction_and_of_aborted_transactions(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(
        cleanup_policy="compact", min_cleanable_dirty_ratio="0", segment_bytes="4096", segment_ms="1000"
    )
    keys: list[bytes | None] = [b"k%d" % (n % 5) for n in range(200)]
    topics.fill(topic, [b'{"n": %d, "pad": "%0100d"}' % (n, n) for n in range(200)], keys=keys, partition=0)
    topics.fill(topic, [b'{"n": -1}'] * 3, abort=True, partition=0, keys=[b"x"] * 3)
    topics.fill(topic, [b'{"n": 200}'], abort=False, partition=0, keys=[b"y"])
    wait_for(lambda: len(topics.records(topic)[0]) < 150, "compaction to leave gaps")
    expected = [record.offset for record in topics.records(topic)[0]]
    frame = spark.read.format("chronik").option("bootstrap.servers", topics.bootstrap)
    seen = frame.option("subscribe", topic).option("minPartitions", "3").load().select("offset").collect()
    assert archive(spark, topic, options(topics, tmp_path)).steps == 1
    found = rows(spark, tmp_path, topic)
    # Compaction may go on between the reads: each sees what is left then, never an aborted record.
    assert [row.value.n for row in found][-1] == 200
    assert -1 not in [row.value.n for row in found]
    assert {row.offset for row in found} <= {row.offset for row in seen} <= set(expected)
    assert {row.value.n for row in found} >= {195, 196, 197, 198, 199}


def test_a_topic_made_anew_and_records_deleted_unread(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create()
    topics.fill(topic, [b'{"n": 1}'])
    archive(spark, topic, options(topics, tmp_path))
    topics.fill(topic, [b'{"n": 2}', b'{"n": 3}'])
    topics.delete_records(topic, before=2)
    with pytest.raises(ChronikError, match="offsets 1 to 1 were deleted before they were read"):
        archive(spark, topic, options(topics, tmp_path))
    assert [row.value.n for row in rows(spark, tmp_path, topic)] == [1, 3]  # it did not keep 3 from them
    assert archive(spark, topic, options(topics, tmp_path)).rows == 0  # told once
    topics.delete(topic)
    topics.create(name=topic)
    topics.fill(topic, [b'{"n": 4}'])
    with pytest.raises(ChronikError, match="deleted and created again"):
        archive(spark, topic, options(topics, tmp_path))
    assert archive(spark, topic, options(topics, tmp_path, fail_on_data_loss=False)).rows == 1
    assert sorted(row.value.n for row in rows(spark, tmp_path, topic)) == [1, 3, 4]


def test_one_old_record_that_retention_takes_does_not_end_the_jobs(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create()
    indexing = IndexOptions(connect=options(topics, tmp_path).connect, folder=str(tmp_path / "index"))
    jobs = (
        lambda: archive(spark, topic, options(topics, tmp_path)).rows,
        lambda: index(spark, topic, indexing).documents,
    )
    topics.fill(topic, [b'{"n": 1}'])
    assert [job() for job in jobs] == [1, 1]
    topics.fill(topic, [b'{"n": 2}'])
    topics.delete_records(topic, before=2)  # nothing is left of the topic
    for job in jobs:
        with pytest.raises(ChronikError, match="offsets 1 to 1 were deleted before they were read"):
            job()
    assert [job() for job in jobs] == [0, 0]
    topics.fill(topic, [b'{"n": 3}'])
    assert [job() for job in jobs] == [1, 1]


@pytest.mark.parametrize("is_failure", [True, False])
def test_records_that_go_between_the_plan_and_the_read(
    spark: SparkSession, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_failure: bool
) -> None:
    topic = topics.create()
    topics.fill(topic, [b'{"n": %d}' % n for n in range(3)])

    def look(connect: Connect, names: Sequence[str]) -> OffsetBounds:
        found = steps.look(connect, names)
        topics.delete_records(topic, before=1)
        return found

    for module in ("archive", "index"):
        monkeypatch.setattr(f"chronik.spark.jobs.{module}.look", look)
    wanted = options(topics, tmp_path, fail_on_data_loss=is_failure)
    assert archive(spark, topic, wanted).rows == 2
    other = topics.create()
    topics.fill(other, [b'{"n": %d}' % n for n in range(3)])
    topic = other
    indexing = IndexOptions(
        connect=wanted.connect, folder=str(tmp_path / "index"), fail_on_data_loss=is_failure
    )
    assert index(spark, topic, indexing).documents == 2


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables_of_delta_and_iceberg(spark: SparkSession, topics: Topics, lake: Path, kind: Any) -> None:
    topic = topics.create(partitions=2)
    wanted = options(topics, lake, table_format=kind)
    topics.fill(topic, [b'{"n": %d}' % n for n in range(10)] + [b"broken"])
    assert (archive(spark, topic, wanted).rows, archive(spark, topic, wanted).rows) == (10, 0)
    topics.fill(topic, [b'{"n": %d, "new": "x"}' % n for n in range(10, 15)])
    forget_last_step(lake, topic, lambda: archive(spark, topic, wanted))
    if kind == "delta":
        frame = spark.read.format("delta").load(f"{lake}/{topic}")
    else:
        frame = spark.table(f"archive.topics.`{topic}`")
    found = frame.selectExpr("value.n", "value.new", "partition", "offset").orderBy("n").collect()
    assert [(row.n, row.new) for row in found] == [(n, "x" if n >= 10 else None) for n in range(15)]


def forget_last_step(folder: Path, topic: str, run: Any) -> None:
    """As if the driver was killed between the table's commit and its own: the step must not count twice."""
    assert run().rows == 5
    last = max((folder / "_chronik" / topic).glob("*.json"))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    assert run().rows == 5


SCHEMAS: dict[int, Any] = {
    1: {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]},
    2: {
        "type": "record",
        "name": "R",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
    },
}


class Registry(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        number = self.path.rpartition("/")[2]
        schema = SCHEMAS.get(int(number)) if number.isdecimal() else SCHEMAS[2]
        body = json.dumps({"schema": json.dumps(schema)} if schema else {}).encode()
        self.send_response(200 if schema else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(params=["foreign", "own"])
def registry(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "own":
        yield from own_registry(request.getfixturevalue("node"))
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def own_registry(node: ChronikNode) -> Iterator[str]:
    """The node's own, with the same schemas (H06)."""
    address = f"http://127.0.0.1:{node.settings['http_port']}"

    def send(method: str, path: str, body: object) -> Any:
        asked = urllib.request.Request(f"{address}{path}", json.dumps(body).encode(), method=method)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.loads(answer.read())

    send("PUT", "/config/numbered-value", {"compatibility": "NONE"})
    for schema_id, schema in SCHEMAS.items():
        made = send("POST", "/subjects/numbered-value/versions", {"schema": json.dumps(schema)})
        assert made == {"id": schema_id}
    yield address


def avro(schema_id: int, datum: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, SCHEMAS[schema_id], datum)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


def test_avro_from_a_registry(spark: SparkSession, topics: Topics, tmp_path: Path, registry: str) -> None:
    topic = topics.create()
    values = [
        avro(1, {"id": 7}),
        avro(2, {"id": 8, "name": "ö"}),
        b"plain",
        b"\0\0\0\0\x09x",
        avro(2, {"id": 9})[:5],
    ]
    topics.fill(topic, values, partition=0)
    done = archive(spark, topic, options(topics, tmp_path, decode="avro", registry=registry))
    assert (done.rows, done.dead) == (2, 3)
    found = rows(spark, tmp_path, topic)
    assert [(row.value.id, row.value.name) for row in found] == [(7, None), (8, "ö")]
    dead = spark.read.parquet(f"{tmp_path}/_dead_letters/topic={topic}").orderBy("offset").collect()
    assert [row.reason.partition(":")[0] for row in dead] == [
        "the value does not begin with a schema id",
        "the registry has no schema 9",
        "the value is no datum of schema 2",
    ]


def test_an_index_grows_by_what_is_new(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(partitions=2)
    wanted = IndexOptions(
        connect=connect_options({"bootstrap.servers": topics.bootstrap}),
        folder=str(tmp_path),
        step_records=30,
    )
    topics.fill(
        topic, [b'{"n": %d, "word": "alpha"}' % n for n in range(50)] + [None, b"\xff", b"plain words"]
    )
    done = index(spark, topic, wanted)
    assert (done.documents, done.steps) == (53, 2)
    topics.fill(topic, [b'{"n": 50, "word": "omega"}'])
    assert index(spark, topic, wanted).documents == 1
    assert index(spark, topic, wanted).documents == 0
    manifest = read_manifest(tmp_path / topic)
    assert manifest is not None
    assert manifest.documents == 54
    assert sum(manifest.offsets.values()) == 54
    opened = tantivy.Index.open(str(tmp_path / topic / manifest.path))
    searcher = opened.searcher()

    def hits(text: str) -> int:
        result: Any = searcher.search(opened.parse_query(text, ["_text"]), 100)
        return int(result.count)

    found = hits("json.word:alpha"), hits("json.word:omega"), hits("plain"), hits("json.n:7")
    assert found == (50, 1, 1, 1)
    assert list(Paths.load(tmp_path / topic / manifest.path)) == ["n", "word"]
