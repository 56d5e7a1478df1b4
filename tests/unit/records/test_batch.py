from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from chronik.model import ErrorCode, RequestError
from chronik.records.batch import check_batch, headers, read_header, stamp, stamp_append_time
from chronik.records.compression import Compression, compress, decompress
from chronik.records.reader import Record, read_all_records, read_records
from chronik.records.writer import build_batch, build_marker

header_pairs = st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=16))
records = st.builds(
    Record,
    key=st.none() | st.binary(max_size=40),
    value=st.none() | st.binary(max_size=200),
    headers=st.lists(header_pairs, max_size=3).map(tuple),
    timestamp_ms=st.integers(0, 2**40),
)


def contents(found: list[Record]) -> list[tuple[object, ...]]:
    return [(r.key, r.value, r.headers, r.timestamp_ms) for r in found]


@given(st.lists(records, min_size=1, max_size=20), st.sampled_from(Compression), st.integers(0, 2**50))
def test_what_is_written_is_read_back(rows: list[Record], codec: Compression, base: int) -> None:
    batch = build_batch(rows, base_offset=base, compression=codec)
    header = check_batch(batch)
    found = list(read_records(batch))
    assert contents(found) == contents(rows)
    assert [r.offset for r in found] == list(range(base, base + len(rows)))
    assert header.next_offset == base + len(rows)
    assert header.size_bytes == len(batch)


@given(st.lists(records, min_size=1, max_size=10), st.sampled_from(Compression))
def test_a_foreign_reader_agrees(rows: list[Record], codec: Compression) -> None:
    theirs = DefaultRecordBatch(bytes(build_batch(rows, base_offset=7, compression=codec)))
    assert theirs.validate_crc()
    assert [(r.offset, r.key, r.value) for r in theirs] == [
        (7 + i, r.key, r.value) for i, r in enumerate(rows)
    ]


@pytest.mark.parametrize("codec", list(Compression))
def test_a_foreign_writer_is_understood(codec: Compression) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=codec, is_transactional=0, producer_id=5, producer_epoch=1,
        base_sequence=9, batch_size=1 << 20,
    )  # fmt: skip
    for i in range(50):
        builder.append(i, timestamp=1000 + i, key=b"k%d" % i, value=b"v" * i, headers=[("h", b"x")])
    batch = bytes(builder.build())
    header = check_batch(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 9)
    assert header.last_sequence == 58
    assert [r.value for r in read_records(batch)] == [b"v" * i for i in range(50)]


@given(st.lists(records, min_size=1, max_size=5), st.data())
def test_any_flipped_bit_behind_the_length_is_noticed(rows: list[Record], data: st.DataObject) -> None:
    """T19: the CRC covers exactly attributes to the end."""
    batch = build_batch(rows)
    position = data.draw(st.integers(16, len(batch) - 1))
    batch[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(RequestError):
        check_batch(batch)


def test_offset_and_epoch_lie_outside_the_crc() -> None:
    batch = build_batch([Record(key=None, value=b"x")])
    stamp(batch, 0, 1234, 56)
    header = check_batch(batch)
    assert (header.base_offset, header.leader_epoch) == (1234, 56)


def test_append_time_keeps_the_batch_whole() -> None:
    batch = build_batch([Record(key=None, value=b"x", timestamp_ms=5)])
    stamp_append_time(batch, 0, len(batch), 99)
    assert check_batch(batch).is_log_append_time
    assert [r.timestamp_ms for r in read_records(batch)] == [99]


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_read(noise: bytes) -> None:
    with pytest.raises(RequestError):
        check_batch(noise)
    list(headers(noise))


@given(st.binary(max_size=80), st.sampled_from(Compression))
def test_garbage_behind_a_good_header_is_a_corrupt_message(noise: bytes, codec: Compression) -> None:
    batch = build_batch([Record(key=b"k", value=b"v")] * 3)
    head = bytearray(batch[:61]) + noise
    head[8:12] = (len(head) - 12).to_bytes(4, "big")
    head[22] = codec
    try:
        list(read_records(head))
    except RequestError as error:
        assert error.code is ErrorCode.corrupt_message


def test_several_batches_in_a_row() -> None:
    """T20: every batch of a buffer is seen, a cut-off last one is not."""
    first = build_batch([Record(key=None, value=b"a")] * 2, base_offset=0)
    second = build_batch([Record(key=None, value=b"b")] * 3, base_offset=2)
    marker = build_marker(commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=3, timestamp_ms=1)
    stamp(marker, 0, 5, 0)
    whole = bytes(first + second + marker)
    assert [h.base_offset for _, h in headers(whole)] == [0, 2, 5]
    assert [h.base_offset for _, h in headers(whole[:-1])] == [0, 2]
    assert [r.offset for r in read_all_records(whole)] == [0, 1, 2, 3, 4]
    assert read_header(marker).is_control


def test_lz4_blocks_are_independent_as_the_java_clients_demand() -> None:
    frame = compress(Compression.LZ4, b"chronik " * 100_000)
    block_independence = 0x20
    assert frame[4] & block_independence
    assert decompress(Compression.LZ4, frame) == b"chronik " * 100_000
