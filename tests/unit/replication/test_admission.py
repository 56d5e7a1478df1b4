"""What a topic's configuration demands of a client's batch."""

from __future__ import annotations

import pytest

from chronik.metadata.topic_config import TopicConfig
from chronik.model import ErrorCode, RequestError
from chronik.records.batch import BatchHeader, check_batch, reseal
from chronik.records.compression import Compression
from chronik.records.editing import all_have_keys, body_of
from chronik.records.reader import Record, read_records
from chronik.records.writer import build_batch, build_marker
from chronik.replication.admission import admit

NOW_MS = 1_000_000_000


def batch_of(*records: Record, **how: object) -> tuple[memoryview, BatchHeader]:
    made = memoryview(build_batch(list(records), **how))  # type: ignore[arg-type]
    return made, check_batch(made)


def keyed(count: int = 3, value: bytes = b"v" * 50) -> list[Record]:
    return [Record(key=b"k%d" % i, value=value, timestamp_ms=NOW_MS + i) for i in range(count)]


def refusal(batch: memoryview, header: BatchHeader, **configs: str) -> ErrorCode:
    config = TopicConfig.resolve({name.replace("_", "."): value for name, value in configs.items()})
    with pytest.raises(RequestError) as refused:
        admit(batch, header, config, NOW_MS)
    return refused.value.code


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
