"""The rounds of tiered storage over the partitions of a node."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from chronik.metadata.bus import EventBus
from chronik.model import StorageError
from chronik.replication.partition import Partition
from chronik.tiering.service import Tiering
from chronik.tiering.uploader import SEGMENTS_A_COMMIT, Uploader
from tests.unit.tiering.support import CONFIGS, Tiered, tiered


def service(world: Tiered, interval_s: float) -> Tiering:
    return Tiering(
        catalog=world.catalog,
        fetches=world.fetches,
        logs=world.logs,
        replicas=world.replicas,
        is_controller=lambda: False,
        may_lead=lambda: True,
        interval_s=interval_s,
        stats=world.stats,
        now_ms=world.clock,
        bus=EventBus(),
    )


async def test_a_partition_that_always_has_more_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: Counter[str] = Counter()

    async def upload_some(self: Uploader, partition: Partition) -> bool:
        turns[partition.tp.topic] += 1
        return True

    monkeypatch.setattr(Uploader, "upload_some", upload_some)
    async with tiered(tmp_path) as world:
        world.replicas.add("other", **CONFIGS)
        await service(world, 0.05).round()
        assert turns["tiered"] == turns["other"] > 1


async def test_a_round_uploads_everything_if_there_is_time(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(300)
        await service(world, 60.0).round()
        assert world.stats.uploaded_segments > SEGMENTS_A_COMMIT
        assert world.stats.lag_segments == 0


async def test_a_partition_that_fails_is_counted_before_the_round_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a store that is away, a round over many partitions lasts for hours."""
    seen: list[int] = []

    async def upload_some(self: Uploader, partition: Partition) -> bool:
        seen.append(world.stats.failing_partitions)
        raise StorageError("the store is away")

    monkeypatch.setattr(Uploader, "upload_some", upload_some)
    async with tiered(tmp_path) as world:
        world.replicas.add("other", **CONFIGS)
        await service(world, 60.0).round()
        assert seen == [0, 1]
        assert world.stats.failing_partitions == 2
