"""The compiled scanner against `chronik.records.reader`, its plain twin."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chronik.client.visibility import AbortedTransaction, visible_batches
from chronik.columns import scanner
from chronik.columns.private_directory import private_directory
from chronik.columns.scanner import COLUMN_TYPES, RecordWindow, Scanner
from chronik.model import RequestError
from chronik.records.batch import HEADER_BYTES, TIMESTAMP_TYPE_MASK, check_batch, reseal
from chronik.records.reader import Record, read_records
from chronik.records.writer import build_batch, build_marker

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
EVERYTHING = tuple(COLUMN_TYPES)

maybe_bytes = st.none() | st.binary(max_size=40)
records = st.builds(
    Record,
    key=maybe_bytes,
    value=maybe_bytes,
    headers=st.lists(st.tuples(st.text(max_size=8), maybe_bytes), max_size=3).map(tuple),
    timestamp_ms=st.integers(-1, 2**40),
)


@st.composite
def batches(draw: st.DrawFn) -> list[bytearray]:
    """Batches of one log, in order, with gaps, control batches and every codec."""
    offset = draw(st.integers(0, 2**40))
    made = []
    for _ in range(draw(st.integers(0, 5))):
        producer_id = draw(st.integers(0, 2))
        if draw(st.integers(0, 4)) == 0:
            batch = build_marker(
                commit=draw(st.booleans()),
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp_ms=5,
            )
            batch[:8] = offset.to_bytes(8, "big")
            made.append(batch)
            offset += 1
            continue
        content = draw(st.lists(records, max_size=6))
        gaps = draw(st.lists(st.integers(0, 3), min_size=len(content), max_size=len(content)))
        deltas = [index + sum(gaps[: index + 1]) for index in range(len(content))]
        batch = build_batch(
            content,
            base_offset=offset,
            offset_deltas=deltas or None,
            compression=draw(st.integers(0, 4)),
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=draw(st.booleans()),
            extra_attributes=draw(st.sampled_from([0, TIMESTAMP_TYPE_MASK])),
        )
        made.append(batch)
        offset += (deltas[-1] if deltas else 0) + 1 + draw(st.integers(0, 3))
    return made


def plain(data: bytes, window: RecordWindow, aborted: list[AbortedTransaction]) -> list[Record]:
    found = []
    for position, header in visible_batches(data, aborted):
        check_batch(data, position)
        if header.max_timestamp < window.first_timestamp_ms:
            continue
        found += [
            record
            for record in read_records(data, position)
            if window.first_offset <= record.offset <= window.last_offset
            and window.first_timestamp_ms <= record.timestamp_ms <= window.last_timestamp_ms
        ]
    return found


def scanned(data: bytes, window: RecordWindow, aborted: list[AbortedTransaction]) -> list[Record]:
    rows: list[dict[str, Any]] = []
    for batch in Scanner(EVERYTHING, "orders", 7).scan(data, window, aborted):
        batch.validate(full=True)
        assert batch.num_rows
        rows += batch.to_pylist()
    assert all(row["topic"] == "orders" and row["partition"] == 7 for row in rows)
    return [
        Record(
            key=row["key"],
            value=row["value"],
            headers=tuple((header["key"], header["value"]) for header in row["headers"]),
            timestamp_ms=(row["timestamp"] - EPOCH) // datetime.timedelta(milliseconds=1),
            offset=row["offset"],
        )
        for row in rows
    ]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches(), st.data())
def test_the_scanner_sees_what_the_plain_reader_sees(made: list[bytearray], data: st.DataObject) -> None:
    raw = b"".join(made)
    first = int.from_bytes(made[0][:8], "big") if made else 0
    window = RecordWindow()
    if data.draw(st.booleans()):
        low = first + data.draw(st.integers(-2, 20))
        window = replace(window, first_offset=low, last_offset=low + data.draw(st.integers(-1, 20)))
    if data.draw(st.booleans()):
        window = replace(window, first_timestamp_ms=data.draw(st.integers(-1, 2**40)))
    if data.draw(st.booleans()):
        window = replace(window, last_timestamp_ms=data.draw(st.integers(-1, 2**40)))
    starts = st.integers(first, first + 20)
    aborted = data.draw(st.lists(st.builds(AbortedTransaction, starts, st.integers(0, 2)), max_size=2))
    assert scanned(raw, window, aborted) == plain(raw, window, aborted)


@settings(max_examples=200, deadline=None)
@given(st.lists(records, min_size=1, max_size=4), st.data())
def test_nonsense_is_refused_as_the_plain_reader_refuses_it(
    content: list[Record], data: st.DataObject
) -> None:
    batch = build_batch(content)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(HEADER_BYTES - 4, len(batch) - 1))
        batch[position] = data.draw(st.integers(0, 255))
    reseal(batch, 0, len(batch))
    raw = bytes(batch)
    try:
        expected = plain(raw, RecordWindow(), [])
    except RequestError as error:
        if "utf-8" in str(error):  # Spark takes the names of headers as the bytes they are
            return
        with pytest.raises(RequestError):
            scanned(raw, RecordWindow(), [])
    else:
        assert [record.offset for record in scanned(raw, RecordWindow(), [])] == [r.offset for r in expected]


def test_a_flipped_bit_is_found() -> None:
    batch = build_batch([Record(key=None, value=b"x" * 100, timestamp_ms=1)])
    batch[-50] ^= 1
    with pytest.raises(RequestError, match="CRC"):
        scanned(bytes(batch), RecordWindow(), [])


def test_a_cut_off_last_batch_is_left_out() -> None:
    whole = build_batch([Record(key=b"k", value=b"v", timestamp_ms=1)])
    raw = bytes(whole + whole[:-1])
    assert [record.key for record in scanned(raw, RecordWindow(), [])] == [b"k"]


def test_only_the_columns_asked_for() -> None:
    batch = build_batch([Record(key=b"k", value=b"v", timestamp_ms=1)], base_offset=9)
    (found,) = Scanner(("offset", "value"), "orders", 0).scan(bytes(batch), RecordWindow())
    assert found.to_pylist() == [{"offset": 9, "value": b"v"}]


@pytest.mark.parametrize("compression", [0, 4])
def test_large_fetches_come_in_chunks(compression: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "CHUNK_BYTES", 1000)
    content = [Record(key=None, value=bytes([n]) * 300, timestamp_ms=n) for n in range(3)]
    raw = b"".join(build_batch(content, base_offset=n * 3, compression=compression) for n in range(5))
    found = list(Scanner(("offset",), "t", 0).scan(raw, RecordWindow()))
    assert len(found) > 2
    assert [row for batch in found for row in batch["offset"].to_pylist()] == list(range(15))


def test_compiled_code_is_kept_only_where_nobody_else_can_write(tmp_path: Path) -> None:
    made = private_directory(tmp_path)
    assert made is not None
    assert made.stat().st_mode & 0o777 == 0o700
    made.chmod(0o777)
    assert private_directory(tmp_path) is None
    assert private_directory(tmp_path / "missing") is None
