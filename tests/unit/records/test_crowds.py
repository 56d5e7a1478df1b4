"""Very many small records in one batch: whoever looks into it takes bounded memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chronik.client.fetching import Fetched
from chronik.model import BATCH_RECORDS_MAX, ErrorCode, RequestError, TopicPartition
from chronik.records.batch import check_batch, read_header
from chronik.records.body import body_of
from chronik.records.compression import Compression
from chronik.records.editing import raw_records, timestamps_of
from chronik.records.reader import ROWS_AT_ONCE_MAX, Record, read_records, read_rows, rows_until_fault
from chronik.records.writer import build_batch
from chronik.storage import reading
from tests.unit.records.bombs import batch_with_body, crowd
from tests.unit.replication.support import Replicas, put
from tests.unit.storage.support import opened

MIB_MAX = 170
"""A node may grow by 200 MiB. A batch takes twice what may be decompressed, while it is copied."""

MEASURE = """
import asyncio, itertools, sys, tempfile
from pathlib import Path
from chronik.client.fetching import Fetched
from chronik.metadata.topic_config import TopicConfig
from chronik.model import RequestError, TopicPartition
from chronik.query import tail
from chronik.query.unreadable_records import Skipped, readable_rows
from chronik.records.batch import check_batch
from chronik.records.compression import Compression
from chronik.replication.admission import admit
from chronik.storage import reading
from tests.unit.records.bombs import crowd, full_crowd
from tests.unit.replication.support import Replicas
from tests.unit.storage.support import opened

NOW_MS = 1_000_000_000_000

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024

def produce(codec="ZSTD", config={}, **how):
    batch = memoryview(full_crowd(Compression[codec], **{"base_timestamp": NOW_MS, **how}))
    yield
    taken = TopicConfig.resolve({"max.message.bytes": "100000000", **config})
    try:
        admit(batch, check_batch(batch), taken, NOW_MS)
    except RequestError as error:
        assert "rejected" in str(error), error

def part():
    data = full_crowd(base_timestamp=NOW_MS)
    return Fetched(tp=TopicPartition("t", 0), fetch_offset=0, next_offset=500_000, data=memoryview(data),
                   aborted=(), high_watermark=1, last_stable_offset=1, log_start_offset=0)

def console():
    one = part()
    yield
    assert len(list(itertools.islice(one.records(), 50))) == 50

def indexing():
    one = part()
    yield
    assert sum(1 for _ in readable_rows(one, Skipped())) == 500_000

def search(query, **how):
    batches = {0: tail.fresh([part()], 0)}
    tail.SECONDS_MAX = 600
    yield
    tail.choose(batches, query, 10, **{"order": None, "ascending": True, "by_value": False, **how})

def offset_by_time():
    bad = full_crowd(base_timestamp=NOW_MS, max_timestamp=NOW_MS + 1)
    yield
    async def work():
        with tempfile.TemporaryDirectory() as folder:
            async with opened(Path(folder)) as (store, _):
                partition = Replicas(store).add("t")
                partition.log.append(memoryview(bad), check_batch(bad), 0, NOW_MS)
                found = await reading.offset_for_timestamp(partition.log, NOW_MS + 1, 1 << 40)
                assert found is not None and found.offset == 0
    asyncio.run(work())

work = eval(sys.argv[1])
next(work)
Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making the batch
before = peak()
for _ in work:
    pass
print(peak() - before)
"""


@pytest.mark.parametrize(
    "work",
    [
        "produce(config={'cleanup.policy': 'compact'})",
        "produce('GZIP', config={'cleanup.policy': 'compact'})",
        "produce('SNAPPY', config={'cleanup.policy': 'compact'})",
        "produce('LZ4', config={'cleanup.policy': 'compact'})",
        "produce(config={'cleanup.policy': 'compact', 'message.timestamp.type': 'LogAppendTime'})",
        "produce(config={'cleanup.policy': 'compact'}, has_key=False)",
        "produce(base_timestamp=-1)",
        "produce(base_timestamp=NOW_MS + 10**9)",
        "produce(config={'compression.type': 'lz4'})",
        "console()",
        "indexing()",
        "search({'match_all': {}}, order='_offset', ascending=False)",
        "search({'match_all': {}}, order='_timestamp', ascending=False)",
        "search({'term': {'_partition': 0}})",
        "offset_by_time()",
    ],
)
def test_no_reader_takes_more_memory_than_its_budget(work: str) -> None:
    run = [sys.executable, "-c", MEASURE, work]
    root = Path(__file__).parents[3]
    found = subprocess.run(run, capture_output=True, text=True, check=False, cwd=root)
    assert not found.returncode, found.stderr
    assert int(found.stdout) < MIB_MAX


def code_of(batch: bytearray) -> ErrorCode:
    with pytest.raises(RequestError) as refused:
        read_rows(batch)
    return refused.value.code


@pytest.mark.parametrize("codec", list(Compression))
def test_more_records_than_a_batch_may_have_are_not_even_decompressed(codec: Compression) -> None:
    batch = batch_with_body(b"no codec can read this", codec)
    crowded = crowd(3, codec, record_count=BATCH_RECORDS_MAX + 1)
    assert code_of(crowded) is ErrorCode.message_too_large
    if codec is not Compression.NONE:
        assert code_of(batch) is ErrorCode.corrupt_message


@pytest.mark.parametrize("codec", list(Compression))
def test_a_count_that_the_bytes_cannot_hold_is_noticed_at_once(codec: Compression) -> None:
    batch = crowd(100, codec, record_count=101)
    assert code_of(batch) is ErrorCode.corrupt_message
    with pytest.raises(RequestError, match="101 records cannot be in the 700 bytes"):
        body_of(read_header(batch), batch)


@pytest.mark.parametrize("count", [ROWS_AT_ONCE_MAX, ROWS_AT_ONCE_MAX + 1])
def test_a_batch_is_read_as_a_whole_or_not_at_all(count: int) -> None:
    """However many records it has: a reader must not see the first half of what makes no sense."""
    assert sum(1 for _ in read_rows(crowd(count))) == count
    broken = crowd(count, Compression.NONE)
    broken[-1] = 0x7F  # the last record has headers that are not there
    assert code_of(broken) is ErrorCode.corrupt_message
    seen: list[object] = []
    with pytest.raises(RequestError):
        seen.extend(rows_until_fault(broken))
    assert len(seen) == count - 1


def test_timestamps_are_those_that_the_records_have() -> None:
    times = [1000, 1063, 1064, 900, -1, 2**40, 1000]
    values = [b"v", b"v" * 63, b"v" * 64, b"", b"v" * 9000, b"", b""]
    records = [
        Record(key=b"k", value=value, timestamp_ms=time) for time, value in zip(times, values, strict=True)
    ]
    batch = build_batch(records)
    header = check_batch(batch)
    body = body_of(header, batch)
    assert list(timestamps_of(header, body)) == times
    assert [header.base_timestamp + one.timestamp_delta for one in raw_records(header, body)] == times
    assert [record.timestamp_ms for record in read_records(batch)] == times


def test_a_consumer_is_told_of_a_batch_with_too_many() -> None:
    bad = crowd(3, record_count=BATCH_RECORDS_MAX + 1)
    part = Fetched(
        tp=TopicPartition("t", 0),
        fetch_offset=0,
        next_offset=3,
        data=memoryview(bad),
        aborted=(),
        high_watermark=3,
        last_stable_offset=3,
        log_start_offset=0,
    )
    (shown,) = part.records()
    assert shown.unreadable is not None
    assert (shown.unreadable.size_bytes, shown.offset) == (len(bad), 2)
    assert f"at most {BATCH_RECORDS_MAX}" in str(shown.unreadable)


@pytest.mark.parametrize("limit", ["MISSED_RECORDS_MAX", "MISSED_BATCHES_MAX"])
async def test_a_look_up_by_time_looks_into_few_batches_that_lie_and_not_into_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """A header may claim a later time than any record has. One request would decode every such batch."""
    batches = 8
    monkeypatch.setattr(reading, limit, 2 * batches if limit == "MISSED_RECORDS_MAX" else batches)
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store).add("t")
        put(partition, (b"k", b"old"), now_ms=500)
        for _ in range(batches + 2):
            liar = crowd(2, max_timestamp=9000)
            partition.log.append(memoryview(liar), check_batch(liar), 0, 1000)
        put(partition, (b"k", b"new"), now_ms=5000)
        found = await reading.offset_for_timestamp(partition.log, 4000, 100)
        assert found is not None
        last_decoded = 1 + 2 * (batches - 1)
        assert (found.offset, found.timestamp_ms) == (last_decoded, 9000)
        await partition.log.advance_start(last_decoded + 4)
        found = await reading.offset_for_timestamp(partition.log, 4000, 100)
        assert found is not None
        assert found.timestamp_ms == 5000, "few batches lie: the record itself is found"
