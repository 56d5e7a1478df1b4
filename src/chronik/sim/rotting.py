"""How a run with bit rot ends: the node whose disk loses bits leads, so that readers meet its disk; then
every replica is read from its disk and has the same.

By then all replicas are in sync again, so whatever is damaged can be mended from another replica: no reader
is refused for long, and none is led past a record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from chronik.model import RequestError, TopicPartition
from chronik.records.batch import OVERHEAD_BYTES, headers
from chronik.storage.reading import read

if TYPE_CHECKING:
    from chronik.replication.partition import Partition
    from chronik.sim.cluster import SimCluster
    from chronik.sim.world import SimNode

LOST: Final = "lost on this disk, reading goes on"
"""What a node says when it has damaged records alone."""
_LEADS_SECONDS: Final = 3.0
_REPAIRED_SECONDS: Final = 60.0
_READ_BYTES: Final = 64 * 1024
_EPOCH_END: Final = OVERHEAD_BYTES + 4
"""Where length and leader epoch of a batch end: no checksum covers the latter."""


def complaints(cluster: SimCluster) -> list[str]:
    return [text for text in cluster.world.complaints if LOST in text]


async def lead_from_the_rotten_disk(cluster: SimCluster, tps: Sequence[TopicPartition]) -> None:
    """Damage that is found on the way may take the lead from it again, so this insists on nothing."""
    node = cluster.rotting
    if node is None or not node.is_serving:
        return
    for tp in tps:
        if cluster.leader_of(tp) is not node:
            node.run(node.lead(tp))
            await cluster.comes(lambda tp=tp: cluster.leader_of(tp) is node, _LEADS_SECONDS)  # type: ignore[misc]


async def replicas_differ(cluster: SimCluster, tps: Sequence[TopicPartition]) -> list[str]:
    """Read all replicas from their disks, mending what is damaged; what they do not agree on, and gaps."""
    wrong = []
    for tp in tps:
        copies = {node.name: await _read_replica(cluster, node, tp) for node in cluster.serving()}
        if cluster.rotting is None:
            wrong += [f"{tp} on {name}: {gap}" for name, copy in copies.items() if (gap := _gap(copy))]
        (first, wanted), *others = copies.items()
        for name, copy in others:
            # Each replica removes old records when it likes: what both have is compared.
            for offset in sorted(wanted.keys() | copy.keys()):
                if offset < max(min(wanted, default=0), min(copy, default=0)):
                    continue
                if wanted.get(offset) != copy.get(offset):
                    wrong.append(f"{tp}: the batch at {offset} is another one on {name} than on {first}")
                    break
    return wrong


def _gap(copy: Mapping[int, tuple[int, bytes]]) -> str:
    """Where offsets are missing between two batches; empty if nowhere."""
    expected = -1
    for offset, (next_offset, _) in copy.items():
        if expected not in (-1, offset):
            return f"{offset} follows {expected - 1}"
        expected = next_offset
    return ""


async def _read_replica(
    cluster: SimCluster, node: SimNode, tp: TopicPartition
) -> dict[int, tuple[int, bytes]]:
    """Batches by offset, with the next offset, as a reader gets them."""
    deadline = cluster.loop.now + _REPAIRED_SECONDS
    while True:
        partition = _partition(cluster, node, tp)
        if partition is not None:
            found = await node.run(_batches(partition))
            if found is not None:
                return found
        if cluster.loop.now > deadline:
            raise TimeoutError(f"{tp} on {node.name} could not be read for {_REPAIRED_SECONDS:.0f} s")
        await asyncio.sleep(0.1)


def _partition(cluster: SimCluster, node: SimNode, tp: TopicPartition) -> Partition | None:
    """None while it is being repaired: it has nothing then."""
    for one in cluster.partitions(node):
        if one.tp == tp and not one.is_damaged and len(one.isr) == len(one.replicas):
            return one
    return None


async def _batches(partition: Partition) -> dict[int, tuple[int, bytes]] | None:
    """None if something was damaged: it is repaired now."""
    log, batches = partition.log, dict[int, tuple[int, bytes]]()
    offset, end = log.log_start_offset, partition.high_watermark
    while offset < end:
        try:
            found = await read(log, offset, _READ_BYTES, end)
        except RequestError:
            return None
        data = b"".join(found.buffers)
        if not data:
            return None
        for place, header in headers(data):
            content = data[place + _EPOCH_END : place + header.size_bytes]
            batches[header.base_offset] = header.next_offset, content
            offset = max(offset + 1, header.next_offset)
    return batches
