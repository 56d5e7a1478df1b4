"""A batch that nobody can decode costs that batch alone, whoever reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chronik.admin.routes.messages import message
from chronik.cli.render import renderer
from chronik.client.fetching import Fetched
from chronik.metadata.topic_config import TopicConfig
from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.records.batch import check_batch
from chronik.records.compression import Compression
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.replication.admission import admit
from chronik.storage import reading
from tests.unit.records.bombs import bomb, nonsense
from tests.unit.replication.support import Clock, Replicas, cleaner, put
from tests.unit.storage.support import opened
from tests.unit.storage.test_compaction import COMPACTED, EAGER, batches_of, close_segment

TP = TopicPartition("t", 0)
CODECS = (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD)


def fetched(bad: bytearray) -> Fetched:
    """Two sound records, the bad batch, and a sound one."""
    first = build_batch([Record(key=b"a", value=b"1"), Record(key=b"b", value=b"2")], base_offset=0)
    last = build_batch([Record(key=b"c", value=b"3")], base_offset=12)
    return Fetched(
        tp=TP,
        fetch_offset=1,
        next_offset=13,
        data=memoryview(first + bad + last),
        aborted=(),
        high_watermark=13,
        last_stable_offset=13,
        log_start_offset=0,
    )


@pytest.mark.parametrize("make", [bomb, nonsense])
def test_a_consumer_reads_on_behind_it_and_hears_of_it(make: object) -> None:
    bad = make(base_offset=2, record_count=10)  # type: ignore[operator]
    before, shown, after = fetched(bad).records()
    assert (before.offset, before.value, after.offset, after.value) == (1, b"2", 12, b"3")
    assert (shown.offset, shown.key, shown.value) == (11, None, None)
    assert shown.unreadable is not None
    assert shown.unreadable[:4] == (2, 11, 1000, len(bad))
    assert str(shown.unreadable).startswith(f"offsets 2 to 11 ({len(bad)} bytes) cannot be read: ")


def test_whoever_reads_rows_decides_what_becomes_of_it() -> None:
    part = fetched(nonsense(base_offset=2))
    with pytest.raises(RequestError):
        list(part.rows())
    told = []
    assert [row[0] for row in part.rows(told.append)] == [1, 12]
    assert len(told) == 1


def test_people_see_its_size_and_what_is_wrong() -> None:
    bad = bomb(base_offset=2)
    record = list(fetched(bad).records())[1]
    shown = message(0, record)
    assert (shown.value, shown.size_bytes, shown.offset) == (None, len(bad), 2)
    assert shown.error is not None
    assert "may be decompressed" in shown.error
    assert b"cannot be read" in renderer(None, as_json=False)(TP, record)
    assert "cannot be read" in json.loads(renderer(None, as_json=True)(TP, record))["error"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("configs", [{"cleanup.policy": "compact"}, {"compression.type": "uncompressed"}])
def test_a_leader_that_has_to_look_into_a_bomb_refuses_it(
    codec: Compression, configs: dict[str, str]
) -> None:
    batch = memoryview(bomb(codec))
    config = TopicConfig.resolve({**configs, "max.message.bytes": str(len(batch))})
    with pytest.raises(RequestError) as refused:
        admit(batch, check_batch(batch), config, 1000)
    assert refused.value.code is ErrorCode.message_too_large


@pytest.mark.parametrize("make", [bomb, nonsense])
async def test_compaction_leaves_it_and_compacts_the_rest(tmp_path: Path, make: object) -> None:
    clock = Clock()
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        partition = replicas.add("t", **COMPACTED)
        put(partition, (b"k", b"old"), now_ms=clock.now_ms)
        bad = make()  # type: ignore[operator]
        partition.log.append(memoryview(bad), check_batch(bad), 0, clock.now_ms)
        put(partition, (b"k", b"new"), (b"other", b"1"), now_ms=clock.now_ms)
        await close_segment(store, partition)
        busy = cleaner(replicas, clock, pace=EAGER)
        await busy.compact()
        assert [header.base_offset for header, _ in await batches_of(partition)] == [1, 2]
        assert (busy.stats.compactions, busy.stats.failing_partitions) == (1, 0)
        assert busy.stats.unreadable_batches == 1


async def test_a_look_up_by_time_takes_the_batch_as_a_whole(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        partition = Replicas(store).add("t")
        put(partition, (b"k", b"old"), now_ms=500)
        bad = bomb()
        partition.log.append(memoryview(bad), check_batch(bad), 0, 1000)
        put(partition, (b"k", b"new"), now_ms=2000)
        for sought, offset in ((400, 0), (600, 1), (1500, 2)):
            found = await reading.offset_for_timestamp(partition.log, sought, 3)
            assert found is not None
            assert found.offset == offset
