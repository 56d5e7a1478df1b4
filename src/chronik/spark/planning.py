"""Questions of the driver to the cluster before it makes tasks: partitions, bounds, offsets by time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from chronik.client import Cluster
from chronik.client.offsets import EARLIEST, LATEST, list_offsets
from chronik.model import ChronikError, ErrorCode, TopicPartition
from chronik.spark.options import Connect, OptionError, Position, ReadOptions, Strategy, TopicSelection
from chronik.spark.ranges import OffsetRange

T = TypeVar("T")


class DataLoss(ChronikError):
    """Records that should be read are gone; `failOnDataLoss=false` goes on without them."""

    def __init__(
        self, what: str, then: str = "set failOnDataLoss to false to go on with what is there"
    ) -> None:
        super().__init__(f"{what}; {then}")


def ask(connect: Connect, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Run `work` with a client of the cluster, which is closed afterwards."""

    async def main() -> T:
        async with Cluster(connect.bootstrap, connect.client_options()) as cluster:
            return await work(cluster)

    return asyncio.run(main())


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetBounds:
    """The partitions of a subscription: first offset, and the offset behind the last readable record."""

    earliest: Mapping[TopicPartition, int]
    latest: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str]
    """Topic ids by name, to notice a topic that was created again. Empty if the cluster has no ids."""


def survey(options: ReadOptions, *, missing_ok: bool = False) -> OffsetBounds:
    async def work(cluster: Cluster) -> OffsetBounds:
        tps, topic_ids = await _partitions(cluster, options.subscription, missing_ok)
        earliest = await list_offsets(cluster, dict.fromkeys(tps, EARLIEST))
        latest = await list_offsets(
            cluster, dict.fromkeys(tps, LATEST), read_committed=options.read_committed
        )
        return OffsetBounds(
            earliest={tp: at.offset for tp, at in earliest.items()},
            latest={tp: at.offset for tp, at in latest.items()},
            topic_ids=topic_ids,
        )

    return ask(options.connect, work)


async def _partitions(
    cluster: Cluster, subscription: TopicSelection, missing_ok: bool
) -> tuple[list[TopicPartition], dict[str, str]]:
    names = subscription.topics or tuple({tp.topic: None for tp in subscription.assigned}) or None
    topics = await cluster.topics(names)
    if names is None:
        pattern = re.compile(subscription.pattern or "")
        topics = {
            name: info for name, info in topics.items() if pattern.fullmatch(name) and not info.is_internal
        }
    absent = [n for n in names or () if n not in topics or topics[n].error_code != ErrorCode.none]
    refused = [
        n for n in absent if n in topics and topics[n].error_code == ErrorCode.topic_authorization_failed
    ]
    if refused:
        raise OptionError(f"not authorized to read topic {refused[0]!r}")
    if absent and not missing_ok:
        raise OptionError(f"topic {absent[0]!r} does not exist")
    topics = {name: info for name, info in topics.items() if name not in absent}
    found = [TopicPartition(name, number) for name in sorted(topics) for number in topics[name].partitions]
    assigned = sorted(tp for tp in subscription.assigned if tp in found)
    if len(assigned) < len(subscription.assigned) and not missing_ok:
        gone = min(set(subscription.assigned) - set(assigned))
        raise OptionError(f"partition {gone} does not exist")
    ids = {name: str(info.topic_id) for name, info in topics.items() if info.topic_id is not None}
    return (assigned if subscription.assigned else found), ids


def place(
    options: ReadOptions, position: Position, bounds: OffsetBounds, *, is_end: bool
) -> dict[TopicPartition, int]:
    """The offset that `position` means in each partition."""
    times = dict(position.timestamps_ms)
    if position.timestamp_ms is not None:
        times = dict.fromkeys(bounds.latest, position.timestamp_ms)
    _known(times, bounds)
    _known(position.offsets, bounds)
    by_time = _by_time(options, times, bounds, "latest" if is_end else options.no_match)
    placed = {}
    for tp in bounds.latest:
        offset = by_time.get(tp, position.offsets.get(tp, position.default))
        if offset == LATEST:
            offset = bounds.latest[tp]
        elif offset == EARLIEST:
            offset = bounds.earliest[tp]
        placed[tp] = offset
    return placed


def _known(given: Iterable[TopicPartition], bounds: OffsetBounds) -> None:
    for tp in given:
        if tp not in bounds.latest:
            raise OptionError(f"an offset is given for {tp}, which is not among the partitions to read")


def _by_time(
    options: ReadOptions, times: Mapping[TopicPartition, int], bounds: OffsetBounds, no_match: Strategy
) -> dict[TopicPartition, int]:
    if not times:
        return {}
    found = ask(options.connect, lambda cluster: list_offsets(cluster, times))
    placed = {}
    for tp, at in found.items():
        if at.offset >= 0:
            placed[tp] = min(at.offset, bounds.latest[tp])
        elif no_match == "latest":
            placed[tp] = bounds.latest[tp]
        else:
            raise OptionError(
                f"{tp} has no record as young as {times[tp]}: set startingOffsetsByTimestampStrategy to "
                "latest to start behind its last one"
            )
    return placed


def present(
    ranges: Iterable[OffsetRange], bounds: OffsetBounds, *, fail_on_data_loss: bool
) -> list[OffsetRange]:
    """The part of the ranges that still exists. The rest is an error or left out, as `failOnDataLoss`
    says."""
    found = []
    for each in ranges:
        first = bounds.earliest.get(each.tp)
        last = bounds.latest.get(each.tp)
        if first is None or last is None:
            if fail_on_data_loss and each.size:
                raise DataLoss(f"partition {each.tp} is gone")
            continue
        if fail_on_data_loss and each.size and each.start < first:
            raise DataLoss(f"{each.tp}: offsets {each.start} to {first - 1} have been deleted")
        if fail_on_data_loss and each.end > last:
            raise DataLoss(f"{each.tp} ends at offset {last}, but offset {each.end} was to be reached")
        start = min(max(each.start, first), last)
        found.append(OffsetRange(each.tp, start, max(start, min(each.end, last))))
    return found
