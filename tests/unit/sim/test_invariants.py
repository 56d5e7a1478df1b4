from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from chronik.replication.partition import Partition
from chronik.sim.invariants import Changes
from tests.unit.replication.support import Replicas
from tests.unit.storage.support import opened


class Watched:
    """As much of a node as is looked at."""

    def __init__(self, replicas: Replicas) -> None:
        self.settings = SimpleNamespace(node_id=1)
        self.parts = SimpleNamespace(
            replicas=replicas,
            metadata=SimpleNamespace(state=SimpleNamespace(applied_index=1)),
            raft=SimpleNamespace(is_open=False),
        )


async def test_what_invariants_look_at_is_noticed_when_it_changes(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        one, other = replicas.add("one"), replicas.add("other")
        changes, node = Changes(), cast(Any, Watched(replicas))
        assert changes.of(node) == [one, other]
        assert changes.of(node) is None
        log = one.log
        for owner, name in (
            (one, "high_watermark"),
            (one, "partition_epoch"),
            (log, "log_start_offset"),
            (log, "durable_end_offset"),
            (log, "flushed_offset"),
            (log, "log_end_offset"),
        ):
            former = getattr(owner, name)
            setattr(owner, name, former)
            assert changes.of(node) is None, name
            setattr(owner, name, former + 1)
            assert changes.of(node) == [one], name
            setattr(owner, name, former)
            assert changes.of(node) == [one], name
        other._propose_isr((1, 2))
        assert changes.of(node) == [other]
        new = replicas.add("new")
        assert changes.of(node) == [new]
        node.parts.metadata.state.applied_index = 2
        assert changes.of(node) == []
        assert isinstance(one, Partition)


async def test_a_replica_that_takes_the_place_of_another_is_noticed(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        replicas = Replicas(store)
        first = replicas.add("one")
        changes, node = Changes(), cast(Any, Watched(replicas))
        changes.of(node)
        replicas.partitions.clear()
        second = replicas.add("two")
        first.log.log_end_offset = 7
        assert changes.of(node) == [second]
        first.high_watermark = 1
        assert changes.of(node) is None
        second.high_watermark = 1
        changes.forget()
        assert changes.of(node) is None
