"""Moves for even loads give way to what operators, or anybody else, decided meanwhile."""

from __future__ import annotations

import asyncio

from chronik.cluster.load import NodeLoad, PartitionLoad
from chronik.cluster.load_balancer import LOOKS, LoadBalancer
from chronik.metadata import commands as c
from chronik.metadata.levels import LEVEL_FIRST, LEVEL_REASSIGN_EPOCH
from chronik.metadata.store import MetadataStore
from chronik.model import NodeId
from tests.unit.metadata.test_state import ORDERS, orders, register
from tests.unit.metadata.test_store import InstantLog, make

MB = 1_000_000
BUSY = NodeLoad(
    taken=4 * MB,
    given=0,
    busiest=tuple(
        PartitionLoad(topic="orders", partition=number, taken=2 * MB, given=0) for number in range(2)
    ),
)


async def uneven(level: int) -> tuple[MetadataStore, InstantLog]:
    """Three nodes, of which the first leads both busy partitions."""
    store, log = make()
    for broker_id in (1, 2, 3):
        await store.submit(register(broker_id))
    await store.submit(orders((1, 2, 3), (1, 3, 2)))
    if level > LEVEL_FIRST:
        await store.submit(c.SetLevel(level=level))
    return store, log


def balancer_of(store: MetadataStore) -> LoadBalancer:
    async def load_of(node: NodeId) -> NodeLoad:
        return BUSY if node == 1 else NodeLoad(taken=0, given=0)

    return LoadBalancer(
        mode="leaders",
        interval_seconds=1.0,
        difference_min=1000,
        metadata=store,
        is_in_charge=lambda: True,
        load_of=load_of,
    )


async def test_an_operators_move_that_is_not_applied_yet_is_not_replaced() -> None:
    store, log = await uneven(LEVEL_REASSIGN_EPOCH)
    balancer = balancer_of(store)
    for _ in range(LOOKS - 1):
        await balancer._look()
    log.held, known = True, len(log.entries)
    asked = [c.Reassign(topic_id=ORDERS, partition=number, target=(1, 2)) for number in range(2)]
    changes = asyncio.gather(store.submit(c.Batch(commands=tuple(asked))), balancer._look())
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(log.entries) == known + 2
    log.held = False
    log.release(*log.entries[known:])
    await changes
    assert [one.replicas for one in store.state.topics["orders"].partitions] == [(1, 2), (1, 2)]
    assert balancer.moved == {"leader": 0, "replica": 0}


async def test_loads_are_evened_out_where_nobody_else_changed_anything() -> None:
    store, _ = await uneven(LEVEL_REASSIGN_EPOCH)
    balancer = balancer_of(store)
    for _ in range(LOOKS):
        await balancer._look()
    assert balancer.moved == {"leader": 1, "replica": 0}
    assert {one.leader for one in store.state.topics["orders"].partitions} != {1}


async def test_nodes_of_the_level_before_get_no_epoch_that_they_would_overlook() -> None:
    """They would apply a move that others refuse."""
    store, log = await uneven(LEVEL_FIRST)
    balancer = balancer_of(store)
    for _ in range(LOOKS):
        await balancer._look()
    batches = [c.decode_entry(entry.data).command for entry in log.entries]
    (moved,) = [
        part
        for batch in batches
        if isinstance(batch, c.Batch)
        for part in batch.commands
        if isinstance(part, c.Reassign)
    ]
    assert moved.partition_epoch is None
    assert balancer.moved["leader"] == 1
