"""The loop of `chronik consume`: fetch, print or count, stop when it is time to."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from chronik.cli.client import progress
from chronik.cli.render import Renderer
from chronik.model import RequestError, TopicPartition

if TYPE_CHECKING:
    from chronik.client import Cluster, Consumer, Fetched

FOREVER: Final = 1 << 62
_COMMIT_S: Final = 1.0
"""How often a member of a group commits what it printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """When reading ends, apart from Ctrl-C and the end of the log."""

    max_messages: int
    idle_ms: int | None


@dataclass(slots=True)
class Read:
    started_at: float
    records: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    timed_out: bool = False

    def gave_up(self, fetched: Sequence[Fetched], stop: Stop) -> bool:
        self.timed_out = not fetched and stop.idle_ms is not None
        return self.timed_out


async def read_partitions(
    cluster: Cluster,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int] | None,
    committed: bool,
    stop: Stop,
    render: Renderer | None,
) -> Read:
    """Read partitions from where they should start; without a renderer only count."""
    from chronik.client import Consumer, FetchOptions

    total = _total(starts, ends, stop)
    # A bar and records on one terminal would overwrite each other.
    bar = total is not None and (render is None or not sys.stdout.isatty())
    read = Read(_now())
    async with Consumer(
        cluster, FetchOptions(read_committed=committed), on_out_of_range="earliest"
    ) as consumer:
        consumer.assign(starts)
        with progress("read", total, enabled=bar) as show:
            while read.records < stop.max_messages and not _at_end(consumer, ends):
                fetched = await consumer.poll(stop.idle_ms)
                if read.gave_up(fetched, stop):
                    break
                for part in fetched:
                    end = FOREVER if ends is None else ends[part.tp]
                    if render is None:
                        _count(part, end, read)
                    else:
                        _print(part, end, stop, render, read)
                sys.stdout.buffer.flush()
                show(read.records)
    read.seconds = _now() - read.started_at
    return read


async def read_as_member(
    cluster: Cluster,
    topic: str,
    group: str,
    start: Literal["earliest", "latest"],
    committed: bool,
    stop: Stop,
    render: Renderer | None,
) -> Read:
    """Read what the group gives us; an offset is committed only after its record was printed."""
    from chronik.client import FetchOptions, GroupConsumer

    read = Read(_now())
    options = FetchOptions(read_committed=committed)
    async with GroupConsumer(cluster, group, [topic], options, start=start) as member:
        commit_at = read.started_at + _COMMIT_S
        while read.records < stop.max_messages:
            fetched = await member.poll(stop.idle_ms)
            if read.gave_up(fetched, stop):
                break
            for part in fetched:
                if render is not None and read.records < stop.max_messages:
                    member.done(part.tp, _print(part, FOREVER, stop, render, read))
            sys.stdout.buffer.flush()
            if _now() >= commit_at:
                await member.commit()
                commit_at = _now() + _COMMIT_S
    return read


def _now() -> float:
    return asyncio.get_running_loop().time()


def _print(part: Fetched, end: int, stop: Stop, render: Renderer, read: Read) -> int:
    """Print records up to the limits; returns the offset behind the last one that is dealt with."""
    for record in part.records():
        if record.offset >= end or read.records >= stop.max_messages:
            return record.offset
        read.records += 1
        sys.stdout.buffer.write(render(part.tp, record))
    return part.next_offset


def _count(part: Fetched, end: int, read: Read) -> None:
    """Count by batch headers; only a batch that is not wanted as a whole is looked into."""
    from chronik.client.visibility import visible_batches
    from chronik.records.batch import check_batch
    from chronik.records.reader import read_rows

    for position, header in visible_batches(part.data, part.aborted):
        if header.base_offset >= part.fetch_offset and header.last_offset < end:
            read.records += header.record_count
        else:
            check_batch(part.data, position)
            try:
                rows = read_rows(part.data, position)
            except RequestError:
                continue  # nothing in it can be counted
            read.records += sum(part.fetch_offset <= row[0] < end for row in rows)
        read.size_bytes += header.size_bytes


def _total(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int] | None, stop: Stop
) -> int | None:
    if ends is None:
        return stop.max_messages if stop.max_messages < FOREVER else None
    behind = sum(max(0, end - starts[tp]) for tp, end in ends.items())
    return min(behind, stop.max_messages)


def _at_end(consumer: Consumer, ends: Mapping[TopicPartition, int] | None) -> bool:
    return ends is not None and all(consumer.position(tp) >= end for tp, end in ends.items())
