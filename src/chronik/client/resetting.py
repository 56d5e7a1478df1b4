"""Where a group is to go on reading: the new offset of each partition, kept inside its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chronik.client.cluster import Cluster
from chronik.client.offsets import EARLIEST, LATEST, list_offsets
from chronik.model import TopicPartition

__all__ = ["ResetTarget", "resolve_reset"]


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """Exactly one of them is set."""

    at: int | None = None
    """A timestamp in milliseconds, or ListOffsets' own EARLIEST and LATEST."""
    offset: int | None = None
    shift: int | None = None


async def resolve_reset(
    cluster: Cluster,
    target: ResetTarget,
    tps: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """The new offset of each partition, kept between the beginning and the end of its log."""
    starts = await list_offsets(cluster, dict.fromkeys(tps, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(tps, LATEST))
    at = await list_offsets(cluster, dict.fromkeys(tps, target.at)) if target.at is not None else {}
    moved = {}
    for tp in tps:
        start, end = starts[tp].offset, ends[tp].offset
        if target.shift is not None:
            wanted = committed.get(tp, start) + target.shift
        elif target.offset is not None:
            wanted = target.offset
        else:
            # No record is as young as the time asked for: go on at the end.
            wanted = at[tp].offset if at[tp].offset >= 0 else end
        moved[tp] = min(max(wanted, start), end)
    return moved
