"""Arrow rows to record batches, read back by the plain reader."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.client.partitioner import partition_for_key
from chronik.columns.scanner import HEADERS
from chronik.model import TopicPartition
from chronik.records.batch import check_batch
from chronik.records.reader import Record, read_records
from chronik.spark.encoding import Rows, seal
from chronik.spark.options import OptionError

maybe_bytes = st.none() | st.binary(max_size=30)
header = st.fixed_dictionaries({"key": st.text(max_size=5), "value": maybe_bytes})
row = st.fixed_dictionaries(
    {
        "key": maybe_bytes,
        "value": maybe_bytes,
        "topic": st.sampled_from(["a", "bb"]),
        "partition": st.none() | st.integers(0, 2),
        "headers": st.none() | st.lists(header, max_size=3),
    }
)
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("headers", HEADERS),
    ]
)
COUNTS = {"a": 3, "bb": 4}


def encoded(batch: pa.RecordBatch, limit: int, compression: int = 0) -> dict[TopicPartition, list[Record]]:
    found: dict[TopicPartition, list[Record]] = {}
    rows = Rows.of(batch, None)
    for tp, numbers in rows.by_partition(COUNTS, turn=1):
        for count, body in rows.bodies(numbers, limit):
            made = seal(
                body,
                count,
                timestamp_ms=77,
                compression=compression,
                producer_id=5,
                producer_epoch=1,
                base_sequence=len(found.get(tp, [])),
                is_transactional=True,
            )
            assert check_batch(made).record_count == count
            found.setdefault(tp, []).extend(read_records(made))
    return found


@settings(max_examples=100, deadline=None)
@given(st.lists(row, max_size=12), st.integers(1, 200), st.integers(0, 4), st.integers(0, 3))
def test_every_row_becomes_a_record_of_its_partition(
    rows: list[dict[str, Any]], limit: int, compression: int, skip: int
) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA).slice(skip)
    found = encoded(batch, limit, compression)
    expected: dict[str, list[tuple[Any, ...]]] = {"a": [], "bb": []}
    for each in rows[skip:]:
        headers = tuple((h["key"], h["value"]) for h in each["headers"] or ())
        expected[each["topic"]].append((each["key"], each["value"], headers))
        count = COUNTS[each["topic"]]
        if each["partition"] is not None:
            tps = [TopicPartition(each["topic"], each["partition"])]
        elif each["key"] is not None:
            tps = [TopicPartition(each["topic"], partition_for_key(each["key"], count))]
        else:
            tps = [TopicPartition(each["topic"], number) for number in range(count)]
        assert any(
            (r.key, r.value, r.headers) == (each["key"], each["value"], headers)
            for tp in tps
            for r in found.get(tp, [])
        )
    for topic, wanted in expected.items():
        got = [(r.key, r.value, r.headers) for tp in found if tp.topic == topic for r in found[tp]]
        assert sorted(map(repr, got)) == sorted(map(repr, wanted))


def test_rows_of_a_partition_keep_their_order() -> None:
    rows = [
        {"key": b"k%d" % (n % 7), "value": b"%d" % n, "topic": "a", "partition": None, "headers": None}
        for n in range(200)
    ]
    for records in encoded(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), 100).values():
        numbers = [int(record.value or b"") for record in records]
        assert numbers == sorted(numbers)


def test_rows_without_a_key_go_to_every_partition() -> None:
    rows = [{"key": None, "value": b"v", "topic": "bb"}] * 40
    found = encoded(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), 1000)
    assert [len(records) for records in found.values()] == [10] * 4


def test_a_row_without_a_topic_is_refused() -> None:
    batch = pa.RecordBatch.from_pylist([{"value": b"v", "topic": None}], schema=SCHEMA)
    with pytest.raises(OptionError, match="no topic"):
        Rows.of(batch, None)


def test_a_partition_that_is_not_there_is_refused() -> None:
    batch = pa.RecordBatch.from_pylist([{"value": b"v", "topic": "a", "partition": 3}], schema=SCHEMA)
    with pytest.raises(OptionError, match="no partition 3"):
        encoded(batch, 100)


def test_a_fresh_process_can_encode_partitions_and_headers() -> None:
    """A Spark worker has imported nothing that others here import along the way."""
    program = """
import pyarrow as pa
from chronik.spark.encoding import Rows
kind = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
headers = pa.array([None, [{"key": "h", "value": b"x"}]], kind)
columns = {"value": pa.array([b"a", b"b"]), "partition": pa.array([1, None], pa.int32()), "headers": headers}
print(Rows.of(pa.record_batch(columns), "t").partitions.tolist())
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert said.stdout == "[1, -1]\n", said.stderr
