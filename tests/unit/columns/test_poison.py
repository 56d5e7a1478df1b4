"""Batches that a hostile producer wrote: right checksums, records that make no sense."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronik.columns import kernels
from chronik.columns.scanner import COLUMN_TYPES, RecordWindow, Scanner
from chronik.model import ErrorCode, RequestError
from chronik.records.batch import reseal
from chronik.records.compression import Compression, compress
from chronik.records.reader import Record, Row, Unreadable, read_rows
from chronik.records.writer import build_batch
from tests.unit.records.bombs import batch_with_body, bomb, nonsense

INT64 = range(-(2**63), 2**63)
EVERYTHING = tuple(COLUMN_TYPES)


def good(offset: int, codec: int = 0) -> bytes:
    records = [
        Record(key=b"k%d" % n, value=b"v" * n, timestamp_ms=5, headers=(("h", b"x"),)) for n in range(3)
    ]
    return bytes(build_batch(records, base_offset=offset, compression=codec))


def offsets(data: bytes) -> tuple[list[int], list[Unreadable]]:
    bad: list[Unreadable] = []
    found = []
    for batch in Scanner(EVERYTHING, "t", 0).scan(data, RecordWindow(), (), bad.append):
        batch.validate(full=True)
        found += batch["offset"].to_pylist()
    return found, bad


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize(
    "poison",
    [
        lambda: nonsense(base_offset=3),
        lambda: bomb(base_offset=3),
        lambda: batch_with_body(b"no zstd", Compression.ZSTD, base_offset=3),
        lambda: batch_with_body(compress(Compression.GZIP, b""), Compression.GZIP, base_offset=3),
        lambda: batch_with_body(b"", Compression.NONE, base_offset=3),
    ],
)
def test_a_batch_that_cannot_be_read_costs_itself_alone(poison, codec: Compression) -> None:  # type: ignore[no-untyped-def]
    bad = bytes(poison())
    found, unreadable = offsets(good(0, codec) + bad + good(4, codec))
    assert found == [0, 1, 2, 4, 5, 6]
    assert [(each.first_offset, each.last_offset, each.size_bytes) for each in unreadable] == [
        (3, 3, len(bad))
    ]
    with pytest.raises(RequestError):
        list(Scanner(("offset",), "t", 0).scan(good(0, codec) + bad, RecordWindow()))


def test_a_wrong_checksum_is_refused_all_the_same() -> None:
    harmed = bytearray(good(0))
    harmed[-1] ^= 1
    with pytest.raises(RequestError) as refused:
        offsets(bytes(harmed))
    assert refused.value.code == ErrorCode.corrupt_message


def test_times_that_nobody_can_show_stand_at_the_border() -> None:
    for base_ms, timestamp_ms in ((0, 2**62), (2**62, 2**63 - 1)):
        record = Record(key=None, value=b"x", timestamp_ms=timestamp_ms)
        batch = build_batch([record], base_timestamp_ms=base_ms)
        (found,) = Scanner(("timestamp",), "t", 0).scan(bytes(batch), RecordWindow())
        assert found["timestamp"].to_pylist()[0].year == 9999


def test_header_names_that_are_no_text_are_replaced() -> None:
    batch = bytearray(build_batch([Record(key=None, value=b"x", headers=(("name", b"y"),), timestamp_ms=5)]))
    batch[batch.index(b"name")] = 0xFF
    reseal(batch, 0, len(batch))
    (found,) = Scanner(("headers",), "t", 0).scan(bytes(batch), RecordWindow())
    found.validate(full=True)
    assert found["headers"].to_pylist() == [[{"key": "\ufffdame", "value": b"y"}]]


def expected(raw: bytes) -> list[Row] | None:
    """By the plain reader; None for what it refuses, and for offsets that do not fit 64 bits."""
    try:
        rows = list(read_rows(raw))
    except RequestError as error:
        return rows_of_bad_names(error)
    if any(offset not in INT64 for offset, *_ in rows):
        return None
    # A time may be a sum of two numbers of 64 bits, which is shown at the border, or of a longer one.
    return [] if any(time not in INT64 for _, time, *_ in rows) else rows


def rows_of_bad_names(error: RequestError) -> list[Row] | None:
    return [] if "utf-8" in str(error) else None


def varint(source: random.Random, number: int) -> bytes:
    """Zigzag; sometimes of an absurd number, sometimes longer than a number can be."""
    match source.randrange(24):
        case 0:
            number = source.choice((2**63 - 1, -(2**63), 2**62, 2**31 - 1, 2**31, -2, -1, 0, 1, 64))
        case 1:
            return b"\x80" * source.randint(8, 10) + bytes([source.randrange(4)])
    raw = (number << 1) ^ (number >> 63)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def record(source: random.Random, delta: int) -> bytes:
    key, value, name = (source.randbytes(source.randrange(6)) for _ in range(3))
    parts = [b"\0", varint(source, 0), varint(source, delta)]
    parts += [varint(source, len(key)), key, varint(source, len(value)), value]
    parts += [varint(source, 1), varint(source, len(name)), name, varint(source, -1)]
    inside = b"".join(parts)
    return varint(source, len(inside)) + inside


def hostile_body(source: random.Random) -> bytes:
    """Records whose lengths mostly fit although a number inside is absurd; sometimes bytes are harmed too."""
    body = bytearray(b"".join(record(source, delta) for delta in range(3)))
    for _ in range(source.choice((0, 0, 1, 3))):
        at = source.randrange(len(body) + 1)
        match source.randrange(3):
            case 0:
                body[at : at + 1] = source.choice((b"\0", b"\1", b"\x7f", b"\x80", b"\xff"))
            case 1:
                del body[at : at + source.randint(1, 4)]
            case _:
                body[at:at] = source.randbytes(source.randint(1, 4))
    return bytes(body)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 4))
def test_the_compiled_scanner_agrees_with_the_plain_reader_on_anything(seed: int, codec: int) -> None:
    source = random.Random(seed)
    body = hostile_body(source)
    count = source.choice((1, 2, 3, 3, 3, 4, 50, 2**31 - 1))
    batch = batch_with_body(compress(codec, body), Compression(codec), record_count=1)
    batch[57:61] = count.to_bytes(4, "big")
    batch[23:27] = max(0, min(count, 100) - 1).to_bytes(4, "big")
    reseal(batch, 0, len(batch))
    rows = expected(bytes(batch))
    try:
        found = [
            row
            for part in Scanner(EVERYTHING, "t", 0).scan(bytes(batch), RecordWindow(first_offset=-(2**63)))
            for row in part.to_pylist()
        ]
    except RequestError:
        assert not rows
        return
    if rows == []:
        return  # both may be right: names of headers that are no UTF-8, times that nobody can show
    assert rows is not None
    assert [(row["offset"], row["key"], row["value"]) for row in found] == [
        (offset, key, value) for offset, _, key, value, _ in rows
    ]


GUARD = 64


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_is_written_beyond_the_arrays(seed: int) -> None:
    """The arrays lie between bytes that must stay as they are."""
    source = random.Random(seed)
    body = hostile_body(source)
    count = min(source.choice((1, 3, 5, 20)), len(body) // kernels.RECORD_BYTES_MIN)
    table = np.zeros((1, kernels.BATCH_FIELDS), dtype=np.int64)
    table[0, kernels.SIZE], table[0, kernels.RECORD_COUNT] = len(body), count
    guarded = []

    def room(kind: type[np.generic], length: int) -> np.ndarray:
        whole = np.zeros(length * np.dtype(kind).itemsize + 2 * GUARD, dtype=np.uint8)
        whole[:GUARD] = whole[-GUARD:] = 0xA5
        guarded.append(whole)
        return whole[GUARD:-GUARD].view(kind)

    raw = np.frombuffer(body, dtype=np.uint8)
    kernels.scan_records(
        raw,
        table,
        RecordWindow(first_offset=-(2**63)).as_array(),
        room(np.int64, 2 * count).reshape(2, count),
        room(np.int32, count),
        room(np.int32, count + 1),
        room(np.uint8, len(body)),
        room(np.uint8, (count + 7) // 8),
        room(np.int32, count + 1),
        room(np.uint8, len(body)),
        room(np.uint8, (count + 7) // 8),
        room(np.int64, count),
    )
    for whole in guarded:
        assert (whole[:GUARD] == 0xA5).all()
        assert (whole[-GUARD:] == 0xA5).all()


def test_a_number_of_more_than_64_bits_is_refused() -> None:
    inside = b"\0\0" + b"\x80" * 9 + b"\2" + b"\1\1\0"  # no time, an offset of 2**64, nothing else
    body = bytes([2 * len(inside)]) + inside
    for_comparison = b"\0\0\0\1\1\0"
    assert offsets(bytes(batch_with_body(b"\x0c" + for_comparison, Compression.NONE)))[0] == [0]
    assert offsets(bytes(batch_with_body(body, Compression.NONE)))[0] == []
