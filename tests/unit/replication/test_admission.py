"""What a topic's configuration demands of a client's batch."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest

from chronik.metadata.topic_config import TopicConfig
from chronik.model import BATCH_RECORDS_MAX, ErrorCode, InvalidRecords, RequestError
from chronik.records.batch import (
    MAX_TIMESTAMP_OFFSET,
    TIMESTAMP_TYPE_MASK,
    BatchHeader,
    check_batch,
    reseal,
)
from chronik.records.body import body_of
from chronik.records.compression import Compression
from chronik.records.editing import all_have_keys
from chronik.records.reader import Record, read_records
from chronik.records.writer import build_batch, build_marker
from chronik.replication.admission import (
    LOOP_BYTES_MAX,
    LOOP_RECORDS_MAX,
    RECORD_ERRORS_MAX,
    TooMuchForLoop,
    admit,
)
from tests.unit.records.bombs import crowd

NOW_MS = 1_000_000_000
MAX_TIMESTAMP = struct.Struct(">q")


def batch_of(*records: Record, **how: object) -> tuple[memoryview, BatchHeader]:
    made = memoryview(build_batch(list(records), **how))  # type: ignore[arg-type]
    return made, check_batch(made)


def keyed(count: int = 3, value: bytes = b"v" * 50) -> list[Record]:
    return [Record(key=b"k%d" % i, value=value, timestamp_ms=NOW_MS + i) for i in range(count)]


def refused(batch: memoryview, header: BatchHeader, **configs: str) -> RequestError:
    config = TopicConfig.resolve({name.replace("_", "."): value for name, value in configs.items()})
    with pytest.raises(RequestError) as raised:
        admit(batch, header, config, NOW_MS)
    return raised.value


def refusal(batch: memoryview, header: BatchHeader, **configs: str) -> ErrorCode:
    return refused(batch, header, **configs).code


def test_by_default_a_batch_stays_as_it_is() -> None:
    batch, header = batch_of(*keyed(), Record(key=None, value=b"x", timestamp_ms=NOW_MS))
    assert admit(batch, header, TopicConfig.resolve({}), NOW_MS) == (batch, header)


def test_a_batch_that_is_too_large() -> None:
    batch, header = batch_of(*keyed())
    assert refusal(batch, header, max_message_bytes=str(len(batch) - 1)) is ErrorCode.message_too_large
    fits = TopicConfig.resolve({"max.message.bytes": str(len(batch))})
    assert admit(batch, header, fits, NOW_MS)[0] is batch


@pytest.mark.parametrize(
    ("timestamp_ms", "configs"),
    [
        (NOW_MS - 2_000, {"message_timestamp_before_max_ms": "1000"}),
        (NOW_MS + 2_000, {"message_timestamp_after_max_ms": "1000"}),
    ],
)
def test_a_timestamp_too_far_from_now(timestamp_ms: int, configs: dict[str, str]) -> None:
    batch, header = batch_of(Record(key=b"k", value=b"v", timestamp_ms=timestamp_ms))
    assert refusal(batch, header, **configs) is ErrorCode.invalid_timestamp
    stamped = {name.replace("_", "."): value for name, value in configs.items()}
    own_clock = TopicConfig.resolve({**stamped, "message.timestamp.type": "LogAppendTime"})
    assert admit(batch, header, own_clock, NOW_MS)[0] is batch


@pytest.mark.parametrize("codec", list(Compression))
def test_each_record_with_a_timestamp_too_far_from_now_is_named(codec: Compression) -> None:
    """KIP-467. Their neighbours are in order, and so is a record that has no timestamp."""
    too_late = NOW_MS + 5_000
    times = [NOW_MS, too_late, NOW_MS + 1, too_late + 1, -1]
    records = [Record(key=b"k", value=b"v", timestamp_ms=one) for one in times]
    error = refused(*batch_of(*records, compression=codec), message_timestamp_after_max_ms="1000")
    assert isinstance(error, InvalidRecords)
    assert [one.batch_index for one in error.record_errors] == [1, 3]
    assert str(too_late) in error.record_errors[0].message


@pytest.mark.parametrize("codec", list(Compression))
def test_a_client_does_not_stamp_batches_in_the_brokers_name(codec: Compression) -> None:
    records = keyed(3)
    batch, header = batch_of(*records, compression=codec, extra_attributes=TIMESTAMP_TYPE_MASK)
    stored, admitted = admit(batch, header, TopicConfig.resolve({}), NOW_MS)
    assert check_batch(stored) == admitted._replace(crc=check_batch(stored).crc)
    assert (admitted.attributes, admitted.max_timestamp) == (int(codec), NOW_MS + 2)
    assert [one.timestamp_ms for one in read_records(stored)] == [one.timestamp_ms for one in records]


@pytest.mark.parametrize("first_ms", [NOW_MS, -1])
def test_a_record_that_is_older_than_the_first_is_seen(first_ms: int) -> None:
    """The header has no lowest timestamp: what the first record has says nothing about the others."""
    times = [first_ms, NOW_MS - 5_000, NOW_MS]
    records = [Record(key=b"k", value=b"v", timestamp_ms=one) for one in times]
    error = refused(*batch_of(*records), message_timestamp_before_max_ms="1000")
    assert isinstance(error, InvalidRecords)
    assert error.code is ErrorCode.invalid_timestamp
    assert [one.batch_index for one in error.record_errors] == [1]


def test_a_header_that_claims_what_no_record_has_is_corrected() -> None:
    batch, _ = batch_of(*keyed(3))
    MAX_TIMESTAMP.pack_into(batch, MAX_TIMESTAMP_OFFSET, NOW_MS + 10_000_000)
    reseal(batch, 0, len(batch))
    config = TopicConfig.resolve({"message.timestamp.after.max.ms": "1000"})
    stored, header = admit(batch, check_batch(batch), config, NOW_MS)
    assert header.max_timestamp == check_batch(stored).max_timestamp == NOW_MS + 2


@pytest.mark.parametrize("codec", list(Compression))
def test_each_record_without_a_key_is_named(codec: Compression) -> None:
    bare = [3, 11, 12, 47, 99]
    records = [Record(key=None if n in bare else b"k", value=b"v", timestamp_ms=NOW_MS) for n in range(100)]
    error = refused(*batch_of(*records, compression=codec), cleanup_policy="compact")
    assert isinstance(error, InvalidRecords)
    assert [one.batch_index for one in error.record_errors] == bare
    assert all("without key" in one.message for one in error.record_errors)


def test_a_refusal_names_a_bounded_number_of_records() -> None:
    records = [Record(key=None, value=b"v", timestamp_ms=NOW_MS)] * (RECORD_ERRORS_MAX + 1)
    error = refused(*batch_of(*records), cleanup_policy="compact")
    assert isinstance(error, InvalidRecords)
    assert len(error.record_errors) == RECORD_ERRORS_MAX


def test_a_refusal_makes_no_more_of_them_than_it_names() -> None:
    """Each is a string of a hundred bytes, and a few kilobytes can hold a million records to blame."""
    batch = memoryview(crowd(100_000, base_timestamp=NOW_MS + 10_000))
    header = check_batch(batch)
    tracemalloc.start()
    try:
        error = refused(batch, header, message_timestamp_after_max_ms="1000")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(error, InvalidRecords)
    assert error.code is ErrorCode.invalid_timestamp
    assert len(error.record_errors) == RECORD_ERRORS_MAX
    assert peak_bytes < 10_000_000


@pytest.mark.parametrize("codec", list(Compression))
def test_more_records_than_a_batch_may_have(codec: Compression) -> None:
    """Clients answer this error by splitting the batch, if it is a real one."""
    claims = {"record_count": BATCH_RECORDS_MAX + 1, "last_offset_delta": BATCH_RECORDS_MAX}
    batch = memoryview(crowd(3, codec, base_timestamp=NOW_MS, **claims))
    assert refusal(batch, check_batch(batch)) is ErrorCode.message_too_large


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("configs", [{"cleanup_policy": "compact"}, {"message_timestamp_after_max_ms": "1"}])
def test_more_records_than_the_bytes_can_hold(codec: Compression, configs: dict[str, str]) -> None:
    claims = {"record_count": 4, "last_offset_delta": 3}
    batch = memoryview(crowd(3, codec, base_timestamp=NOW_MS + 100, **claims))
    assert refusal(batch, check_batch(batch), **configs) is ErrorCode.corrupt_message


LOOKED_INTO = [
    ({"cleanup.policy": "compact"}, {"base_timestamp": NOW_MS}),
    ({}, {"base_timestamp": -1, "max_timestamp": 0}),
    ({"message.timestamp.after.max.ms": "1"}, {"base_timestamp": NOW_MS - 5, "max_timestamp": NOW_MS + 9}),
    ({"compression.type": "gzip"}, {"base_timestamp": NOW_MS}),
]


@pytest.mark.parametrize("codec", [one for one in Compression if one is not Compression.GZIP])
@pytest.mark.parametrize(("configs", "how"), LOOKED_INTO)
def test_what_takes_long_is_not_looked_into_on_the_loop(
    codec: Compression, configs: dict[str, str], how: dict[str, int]
) -> None:
    config = TopicConfig.resolve({**configs, "max.message.bytes": "10000000"})
    few = memoryview(crowd(LOOP_RECORDS_MAX, codec, **how))
    header = check_batch(few)
    on_loop, _ = admit(memoryview(bytearray(few)), header, config, NOW_MS, is_on_loop=True)
    assert on_loop == admit(few, header, config, NOW_MS)[0]
    many = crowd(LOOP_RECORDS_MAX + 1, codec, **how)
    large = crowd(100, codec, value_bytes=LOOP_BYTES_MAX // 100, **how)
    for batch in (many, large):
        before = bytes(batch)
        with pytest.raises(TooMuchForLoop):
            admit(memoryview(batch), check_batch(batch), config, NOW_MS, is_on_loop=True)
        assert bytes(batch) == before
        admit(memoryview(batch), check_batch(batch), config, NOW_MS)


def test_what_becomes_too_large_by_the_topics_codec_is_refused() -> None:
    """As in Kafka: a few kilobytes must not become many megabytes of log."""
    batch = memoryview(crowd(1_000, base_timestamp=NOW_MS))
    configs = {"compression_type": "uncompressed", "max_message_bytes": "7060"}
    assert refusal(batch, check_batch(batch), **configs) is ErrorCode.message_too_large
    taken = TopicConfig.resolve({"compression.type": "uncompressed", "max.message.bytes": "7061"})
    assert len(admit(batch, check_batch(batch), taken, NOW_MS)[0]) == 7061
    noise = memoryview(build_batch([Record(key=b"k", value=random.Random(1).randbytes(900))]))
    configs = {"compression_type": "snappy", "max_message_bytes": str(len(noise))}
    assert refusal(noise, check_batch(noise), **configs) is ErrorCode.message_too_large


@pytest.mark.parametrize("codec", list(Compression))
def test_a_compacted_topic_wants_keys(codec: Compression) -> None:
    compacted = TopicConfig.resolve({"cleanup.policy": "compact"})
    batch, header = batch_of(*keyed(300), Record(key=b"", value=None), compression=codec)
    assert admit(batch, header, compacted, NOW_MS)[0] is batch
    for place in (0, 150, 300):
        records = keyed(300)
        records.insert(place, Record(key=None, value=b"x", timestamp_ms=NOW_MS))
        without = batch_of(*records, compression=codec)
        assert refusal(*without, cleanup_policy="compact") is ErrorCode.invalid_record


def test_nonsense_in_a_batch_for_a_compacted_topic_is_corrupt() -> None:
    batch, header = batch_of(*keyed(3))
    for place in range(61, len(batch)):
        broken = bytearray(batch)
        broken[place] ^= 0xFF
        reseal(broken, 0, len(broken))
        try:
            all_have_keys(header, body_of(header, broken))
        except RequestError as error:
            assert error.code is ErrorCode.corrupt_message


@pytest.mark.parametrize("codec", list(Compression))
def test_the_topics_codec_wins(codec: Compression) -> None:
    batch, header = batch_of(*keyed(20), producer_id=7, producer_epoch=2, base_sequence=40)
    name = "uncompressed" if codec is Compression.NONE else codec.name.lower()
    stored, new = admit(batch, header, TopicConfig.resolve({"compression.type": name}), NOW_MS)
    assert new.compression == codec
    assert list(read_records(stored)) == list(read_records(batch))
    same = ("producer_id", "producer_epoch", "base_sequence", "base_timestamp", "max_timestamp")
    assert all(getattr(new, field) == getattr(header, field) for field in same)


def test_what_no_client_may_send() -> None:
    marker = memoryview(
        build_marker(commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1)
    )
    assert refusal(marker, check_batch(marker)) is ErrorCode.invalid_record
    batch, header = batch_of(*keyed(), producer_id=7, producer_epoch=0, base_sequence=-1)
    assert refusal(batch, header) is ErrorCode.invalid_record
    holes, header = batch_of(*keyed())
    assert refusal(holes, header._replace(last_offset_delta=7)) is ErrorCode.invalid_record
