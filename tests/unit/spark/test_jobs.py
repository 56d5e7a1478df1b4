"""The parts of the jobs that need no Spark."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any, cast

import pytest
import tantivy
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

from chronik.model import ChronikError, TopicPartition
from chronik.published.documents import Documents, index_schema
from chronik.published.paths import Paths
from chronik.published.steps import PublishedStep
from chronik.records.batch import reseal
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.spark.jobs import archive as archive_job
from chronik.spark.jobs.archive import ArchiveOptions, archive
from chronik.spark.jobs.audit_source import AuditedReplica, _Order, _read_file, examine
from chronik.spark.jobs.avro import decoder, spark_type
from chronik.spark.jobs.compact import is_expired
from chronik.spark.jobs.decoding import merge
from chronik.spark.jobs.files import AlreadyThere, Folder
from chronik.spark.jobs.index import combine
from chronik.spark.jobs.plots import bars, lines, table, write_report
from chronik.spark.jobs.steps import Plan, StepLog, deleted_unread, is_overtaken, lost_ranges, plan
from chronik.spark.options import connect_options
from chronik.spark.planning import DataLoss, OffsetBounds

WORK = AuditedReplica(replica="node 1", topic="t", partition=0)


def batch(offset: int, *values: bytes) -> bytearray:
    return build_batch(
        [Record(key=None, value=value, timestamp_ms=1) for value in values], base_offset=offset
    )


def faults(data: bytes) -> list[str | None]:
    found: list[str | None] = examine(memoryview(data), WORK, "here", _Order())["fault"].to_pylist()
    return found


def test_a_sound_log_has_no_faults() -> None:
    assert faults(bytes(batch(0, b"a", b"b") + batch(2, b"c"))) == [None, None]


def test_a_flipped_byte() -> None:
    harmed = batch(0, b"aaaa")
    harmed[-3] ^= 4
    found = faults(bytes(harmed + batch(1, b"b")))
    assert found[0] is not None
    assert "checksum" in found[0]
    assert found[1] is None


def test_swapped_batches() -> None:
    found = faults(bytes(batch(2, b"c") + batch(0, b"a", b"b")))
    assert found == [None, "the batch at offset 0 stands behind offset 2"]


def test_records_out_of_order_inside_a_batch() -> None:
    made = build_batch(
        [Record(key=None, value=b"x", timestamp_ms=1)] * 2, offset_deltas=[1, 0], last_offset_delta=1
    )
    reseal(made, 0, len(made))
    assert faults(bytes(made)) == ["the records of the batch at offset 0 are not in order"]


def test_segment_files_are_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(bytes(batch(0, b"a") + batch(1, b"b")) + b"\0" * 100)
    work = AuditedReplica(replica="one", topic="t", partition=0, path=str(path))
    assert sum(found.num_rows for found in _read_file(work)) == 2
    path.write_bytes(bytes(batch(0, b"a") + batch(1, b"b"))[:-3])
    rows = [row for found in _read_file(work) for row in found.to_pylist()]
    assert "bytes of no batch" in rows[-1]["fault"]


def test_schemas_only_grow() -> None:
    def struct(**fields: Any) -> StructType:
        return StructType([StructField(name, kind) for name, kind in fields.items()])

    number, text = IntegerType(), StringType()
    old = struct(a=LongType(), b=struct(c=text), d=ArrayType(struct(e=number)))
    new = struct(b=struct(c=number, f=number), a=text, d=ArrayType(struct(g=number)), h=number)
    merged = merge(old, new)
    assert merged["a"].dataType.simpleString() == "bigint"
    assert merged["b"].dataType.simpleString() == "struct<c:string,f:int>"
    assert isinstance(merged["d"].dataType, ArrayType)
    assert merged["d"].dataType.simpleString() == "array<struct<e:int,g:int>>"
    assert merged.names == ["a", "b", "d", "h"]


def bounds(earliest: int, latest: int, topic_id: str = "A") -> OffsetBounds:
    tp = TopicPartition("t", 0)
    return OffsetBounds(earliest={tp: earliest}, latest={tp: latest}, topic_ids={"t": topic_id})


def test_a_plan_is_what_is_new() -> None:
    made = plan({"0": 5}, "A", "t", bounds(0, 20), limit=10, fail_on_data_loss=True)
    assert [(each.start, each.end) for each in made.ranges] == [(5, 15)]
    assert made.left == 15
    first = plan(None, "", "t", bounds(3, 20), limit=None, fail_on_data_loss=True)
    assert [(each.start, each.end) for each in first.ranges] == [(3, 20)]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (bounds(0, 4), "ends at offset 4, but 5 was read"),
        (bounds(0, 20, "B"), "deleted and created again"),
    ],
)
def test_a_plan_notices_what_is_gone(found: OffsetBounds, said: str) -> None:
    with pytest.raises(DataLoss, match=said):
        plan({"0": 5}, "A", "t", found, limit=None, fail_on_data_loss=True)
    assert plan({"0": 5}, "A", "t", found, limit=None, fail_on_data_loss=False).left >= 0


class FolderInMemory:
    """Files by path; a kill is the next move, if there is to be one."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}
        self.is_killed = False

    def uri(self) -> str:
        return "memory"

    def names(self, path: str) -> list[str]:
        return sorted(name.rpartition("/")[2] for name in self.held if name.rpartition("/")[0] == path)

    def read_json(self, path: str) -> Any:
        return self.held[path]

    def write_json(self, path: str, value: object, *, replace: bool) -> None:
        if path in self.held and not replace:
            raise AlreadyThere(path)
        self.held[path] = value

    def move(self, source: str, target: str) -> None:
        if self.is_killed:
            raise KeyboardInterrupt
        if source in self.held:
            self.held[target] = self.held.pop(source)

    def remove(self, path: str) -> None:
        self.held = {
            name: value for name, value in self.held.items() if not f"{name}/".startswith(f"{path}/")
        }


def test_a_run_that_was_killed_behind_its_commit_is_finished_by_the_next_one() -> None:
    """P03: the step counts, so its files must come to their places, and its offsets are not read again."""
    folder = FolderInMemory()
    steps = StepLog(cast(Folder, folder), "t")
    folder.held[f"{steps.staging}/part"] = "rows"
    folder.is_killed = True
    with pytest.raises(KeyboardInterrupt):
        steps.commit(
            PublishedStep(
                version=0, topic="t", offsets={"0": 5}, moves={f"{steps.staging}/part": "topic=t/part"}
            )
        )
    folder.is_killed = False
    again = StepLog(cast(Folder, folder), "t")
    assert folder.held["topic=t/part"] == "rows"
    assert folder.names(steps.staging) == []
    assert again.last is not None
    assert (again.version, again.last.offsets) == (1, {"0": 5})


def test_what_a_run_left_without_a_commit_is_removed_and_two_runs_do_not_write_one_step() -> None:
    folder = FolderInMemory()
    steps, other = StepLog(cast(Folder, folder), "t"), StepLog(cast(Folder, folder), "t")
    folder.held[f"{steps.staging}/part"] = "rows"
    assert StepLog(cast(Folder, folder), "t").last is None
    assert folder.held == {}
    steps.commit(PublishedStep(version=0, topic="t"))
    with pytest.raises(ChronikError, match="let only one run at a time"):
        other.commit(PublishedStep(version=0, topic="t"))


def test_what_was_deleted_unread_costs_itself_alone() -> None:
    for is_failure in (True, False):
        made = plan({"0": 5}, "A", "t", bounds(7, 20), limit=None, fail_on_data_loss=is_failure)
        assert [(each.start, each.end) for each in made.ranges] == [(7, 20)]
        assert lost_ranges(made.lost) == {"0": (5, 7)}
    everything = plan({"0": 5}, "A", "t", bounds(20, 20), limit=None, fail_on_data_loss=True)
    assert everything.size == 0
    assert "offsets 5 to 19 were deleted before they were read" in str(deleted_unread(everything.lost))


def test_a_topic_not_read_before_has_lost_nothing() -> None:
    assert plan(None, "", "t", bounds(7, 20), limit=None, fail_on_data_loss=True).lost == ()


def test_a_step_is_overtaken_when_its_first_records_go() -> None:
    work = plan({"0": 5}, "A", "t", bounds(0, 20), limit=None, fail_on_data_loss=True)
    assert not is_overtaken(work, bounds(5, 30))
    assert is_overtaken(work, bounds(6, 30))


def test_the_data_source_hears_what_is_to_happen_on_loss() -> None:
    work = plan(None, "", "t", bounds(0, 20), limit=None, fail_on_data_loss=False)
    assert work.options("here:1", {})["failOnDataLoss"] == "false"


def test_a_repeated_step_ends_where_it_did() -> None:
    work = plan({"0": 5}, "A", "t", bounds(7, 20), limit=3, fail_on_data_loss=True, ends={"0": 9})
    assert [(each.start, each.end) for each in work.ranges] == [(7, 9)]


@pytest.mark.parametrize(("earliest", "expected"), [(5, (5, 9)), (7, (7, 9)), (12, (12, 12))])
def test_a_repeated_step_of_the_release_before_ends_where_it_did(
    earliest: int, expected: tuple[int, int]
) -> None:
    """It noted how many records it had. A table that holds it does not take what is behind them."""
    work = plan({"0": 5}, "A", "t", bounds(earliest, 20), limit=100, fail_on_data_loss=True, begun_records=4)
    assert [(each.start, each.end) for each in work.ranges] == [expected]


class Run:
    """What the archive job does in a cluster and in a lake, without either."""

    nothing = archive_job._Written()

    def __init__(self, *plans: Plan) -> None:
        self.plans = list(plans)
        self.written: list[Plan] = []
        self.committed: list[Plan] = []
        self.failure: Exception | None = None

    def next_plan(self) -> Plan:
        return self.plans.pop(0)

    def is_overtaken(self, work: Plan) -> bool:
        return True

    def write(self, work: Plan) -> archive_job._Written:
        self.written.append(work)
        return archive_job._Written(rows=work.size)

    def commit(self, work: Plan, _: object) -> None:
        self.committed.append(work)
        if self.failure is not None:
            raise self.failure


def run_of(monkeypatch: pytest.MonkeyPatch, *plans: Plan) -> Run:
    made = Run(*plans)
    monkeypatch.setattr(archive_job, "_ArchiveRun", lambda *_: made)
    return made


ARCHIVE = ArchiveOptions(connect=connect_options({"kafka.bootstrap.servers": "here:1"}), folder="lake")


def test_a_step_that_may_count_is_not_taken_for_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was made to count, and its files could not be moved: a new attempt would write over them."""
    work = plan(None, "", "t", bounds(0, 20), limit=None, fail_on_data_loss=True)
    run = run_of(monkeypatch, *[work] * 10)
    run.failure = OSError("no more room")
    with pytest.raises(OSError, match="no more room"):
        archive(cast("Any", None), "t", ARCHIVE)
    assert len(run.written) == len(run.committed) == 1


def test_a_begun_step_of_which_nothing_is_left_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records were cut off, by an unclean election, and there are new ones in another partition."""
    two = OffsetBounds(
        earliest=dict.fromkeys((TopicPartition("t", 0), TopicPartition("t", 1)), 0),
        latest={TopicPartition("t", 0): 5, TopicPartition("t", 1): 6},
        topic_ids={"t": "A"},
    )
    known = {"0": 5, "1": 3}
    begun = plan(known, "A", "t", two, limit=None, fail_on_data_loss=True, ends={"0": 9, "1": 3})
    rest = plan(known, "A", "t", two, limit=None, fail_on_data_loss=True)
    run = run_of(monkeypatch, begun, rest)
    assert archive(cast("Any", None), "t", ARCHIVE).rows == 3
    assert (run.committed, run.written) == ([begun, rest], [rest])


def test_days_expire() -> None:
    today = datetime.date(2025, 3, 10)
    assert is_expired("2025-03-02", 7, today)
    assert not is_expired("2025-03-03", 7, today)
    assert not is_expired("1999-01-01", None, today)


def shard(path: Path, first: int, count: int) -> Path:
    path.mkdir()
    writer = tantivy.Index(index_schema(), path=str(path)).writer(16 * 1024 * 1024, 1)
    paths = Paths()
    documents = Documents(writer, paths)
    for number in range(first, first + count):
        documents.add(b"k", b'{"n": %d, "deep": {"er": "word%d"}}' % (number, number), 0, number, 5)
    paths.save(path)
    writer.commit()
    writer.wait_merging_threads()
    return path


def test_shards_become_one_index(tmp_path: Path) -> None:
    parts = [shard(tmp_path / f"s{n}", n * 10, 10) for n in range(3)]
    assert combine(parts[:2], tmp_path / "first") == 20
    assert combine([tmp_path / "first", parts[2]], tmp_path / "second") == 30
    index = tantivy.Index.open(str(tmp_path / "second"))
    searcher = index.searcher()
    found = searcher.search(index.parse_query("json.deep.er:word17"), 10).hits
    assert [searcher.doc(address).get_first("_offset") for _, address in found] == [17]
    assert combine([], tmp_path / "empty") == 0
    assert (tmp_path / "second" / "chronik.format").read_text() == "2"
    assert list(Paths.load(tmp_path / "second")) == ["deep.er", "n"]
    (tmp_path / "first" / "chronik.format").write_text("1")
    with pytest.raises(ChronikError, match="another format"):
        combine([tmp_path / "first", parts[2]], tmp_path / "third")


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "raw", "type": "bytes"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "any", "type": ["int", "string"]},
    ],
}


def test_avro_types_and_values() -> None:
    import io

    import fastavro

    assert spark_type(ORDER).simpleString() == (
        "struct<id:bigint,note:string,tags:array<string>,raw:binary,at:timestamp,any:string>"
    )
    out = io.BytesIO()
    at = datetime.datetime(2025, 1, 2, tzinfo=datetime.UTC)
    datum = {"id": 7, "note": None, "tags": ["x"], "raw": b"\1", "at": at, "any": "y"}
    fastavro.schemaless_writer(out, fastavro.parse_schema(ORDER), datum)
    framed = b"\0" + (3).to_bytes(4, "big") + out.getvalue()
    decode = decoder({3: ORDER, 4: None})
    text, reason = decode(framed)
    assert reason is None
    assert json.loads(text or "") == {
        "id": 7,
        "note": None,
        "tags": ["x"],
        "raw": "AQ==",
        "at": "2025-01-02T00:00:00+00:00",
        "any": "y",
    }
    assert decode(None) == (None, None)
    assert decode(b"{}")[1] == "the value does not begin with a schema id"
    assert decode(b"\0" + (4).to_bytes(4, "big") + b"x")[1] == "the registry has no schema 4"
    assert "no datum of schema 3" in (decode(framed[:-3])[1] or "")


def test_reports_have_titles_units_and_axes(tmp_path: Path) -> None:
    assert "&lt;b&gt;" in table(["<b>", "#n"], [["x", 1234]])
    assert "1,234" in table(["a", "#n"], [["x", 1234]])
    body = [
        bars("Lag & more", "records", [("one", 2500, "red"), ("two", 0, "red")]),
        lines("By hour", "records per hour", {"orders": [(0, 2), (3600, 4)]}),
        lines("Nothing", "records", {}),
    ]
    page, *images = write_report(tmp_path / "report.html", "Report", body)
    text = page.read_text()
    assert text.count("<svg") == 3
    for words in (
        "Lag &amp; more",
        ">2,500<",
        ">one<",
        "records per hour",
        "time (UTC)",
        ">orders<",
        "no records",
    ):
        assert words in text, words
    assert "<script" not in text
    names = ["report-lag-more.png", "report-by-hour.png", "report-nothing.png"]
    assert [image.name for image in images] == names
    assert all(image.read_bytes().startswith(b"\x89PNG") for image in images)
    many = bars("Many", "records", [(str(n), n, "red") for n in range(100)])
    assert "Many (40 of 100)" in many.axes[0].get_title(loc="left")
