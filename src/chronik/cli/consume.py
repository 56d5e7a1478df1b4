"""`chronik consume`: records to stdout, as text, in a format, as JSON, or only counted."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from chronik.cli.client import (
    NOT_ALL,
    Bootstrap,
    CommandFailed,
    counted,
    human_bytes,
    partition_numbers,
    print_json,
    progress,
    run,
)
from chronik.cli.render import Renderer, renderer
from chronik.model import TopicPartition

if TYPE_CHECKING:
    from chronik.client import Cluster, Consumer, Fetched

_ISOLATION: Final = ("read_uncommitted", "read_committed")
_FOREVER: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What to read and when to stop."""

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int] | None
    max_messages: int
    idle_ms: int | None


@dataclass(slots=True)
class _Read:
    records: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    timed_out: bool = False


def register(app: typer.Typer) -> None:
    app.command()(consume)


_Topic = Annotated[str, typer.Argument(help="topic to read", show_default=False)]
_FromBeginning = Annotated[
    bool, typer.Option("--from-beginning", help="all records, not only those that come from now on")
]
_Offset = Annotated[
    str | None,
    typer.Option(
        "--offset", "-o", metavar="N|-N|earliest|latest", help="where to start; -5: five before the end"
    ),
]
_Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", min=0, metavar="N", help="only this partition, repeatable"),
]
_MaxMessages = Annotated[
    int | None, typer.Option("--max-messages", "-n", min=1, metavar="N", help="stop after so many")
]
_ToEnd = Annotated[bool, typer.Option("--to-end", help="stop at what is the end now")]
_IdleTimeout = Annotated[
    float | None,
    typer.Option("--timeout", min=0.001, metavar="SECONDS", help="stop when nothing came for so long"),
]
_Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="TEXT",
        help="with {topic} {partition} {offset} {timestamp} {key} {value} {headers}, \\n and \\t",
    ),
]
_JsonLines = Annotated[bool, typer.Option("--json", help="one JSON object per line")]
_CountOnly = Annotated[bool, typer.Option("--count", help="count the records, print only the sum")]
_Isolation = Annotated[str, typer.Option("--isolation", metavar="LEVEL", help=" or ".join(_ISOLATION))]


def consume(
    topic: _Topic,
    from_beginning: _FromBeginning = False,
    offset: _Offset = None,
    partitions: _Partitions = None,
    max_messages: _MaxMessages = None,
    to_end: _ToEnd = False,
    timeout: _IdleTimeout = None,
    template: _Format = None,
    as_json: _JsonLines = False,
    count: _CountOnly = False,
    isolation: _Isolation = "read_uncommitted",
    servers: Bootstrap = None,
) -> None:
    """Read records: by default the values of those that arrive from now on, until Ctrl-C.

    Examples:

      chronik consume greetings --from-beginning

      chronik consume orders --offset -10 --to-end --format '{offset} {key}'

      chronik consume orders --partition 0 --offset 1000 --max-messages 5 --json

      chronik consume load --from-beginning --to-end --count
    """
    if isolation not in _ISOLATION:
        raise CommandFailed(f"--isolation {isolation!r} is not known: {' or '.join(_ISOLATION)}")
    if count and (max_messages is not None or template is not None):
        raise CommandFailed("--count prints only the sum, so --max-messages and --format do not go with it")
    if from_beginning and offset is not None:
        raise CommandFailed("--from-beginning and --offset both say where to start: give one of them")
    render = renderer(template, as_json=as_json)
    start = _parse_start("earliest" if from_beginning else offset or "latest")

    async def work(cluster: Cluster) -> _Read:
        from chronik.client import Consumer, FetchOptions

        committed = isolation == "read_committed"
        tps = await _chosen(cluster, topic, partitions)
        plan = _Plan(
            starts=await _starts(cluster, tps, start, committed),
            ends=await _ends(cluster, tps, committed) if to_end else None,
            max_messages=max_messages or _FOREVER,
            idle_ms=int(timeout * 1000) if timeout is not None else None,
        )
        consumer = Consumer(cluster, FetchOptions(read_committed=committed), on_out_of_range="earliest")
        async with consumer:
            return await _read(consumer, plan, None if count else render)

    read = run(servers, work, timeout=timeout if timeout is not None else 60.0)
    if count:
        _print_count(topic, read, as_json=as_json)
    if read.timed_out and max_messages is not None and read.records < max_messages:
        print(f"chronik: only {read.records} of {max_messages} records came in time", file=sys.stderr)
        raise typer.Exit(NOT_ALL)


@dataclass(frozen=True, slots=True)
class _Start:
    """A place in every partition: an offset, a number of records before the end, or an end of the log."""

    offset: int | None = None
    before_end: int | None = None
    is_latest: bool = False


def _parse_start(text: str) -> _Start:
    if text in ("earliest", "latest"):
        return _Start(is_latest=text == "latest")
    try:
        number = int(text)
    except ValueError:
        raise CommandFailed(
            f"--offset {text!r} is no place in a log: write a number, -N, earliest or latest"
        ) from None
    return _Start(before_end=-number) if text.startswith("-") else _Start(offset=number)


async def _chosen(cluster: Cluster, topic: str, wanted: list[int] | None) -> list[TopicPartition]:
    there = await partition_numbers(cluster, topic)
    for number in wanted or ():
        if number not in there:
            raise CommandFailed(f"topic {topic!r} has no partition {number}, only {there[0]}-{there[-1]}")
    return [TopicPartition(topic, number) for number in dict.fromkeys(wanted or there)]


async def _starts(
    cluster: Cluster, tps: list[TopicPartition], start: _Start, committed: bool
) -> dict[TopicPartition, int]:
    from chronik.client.offsets import EARLIEST, LATEST, list_offsets

    if start.offset is not None:
        return dict.fromkeys(tps, start.offset)
    beginnings = await list_offsets(cluster, dict.fromkeys(tps, EARLIEST))
    if not start.is_latest and start.before_end is None:
        return {tp: at.offset for tp, at in beginnings.items()}
    ends = await list_offsets(cluster, dict.fromkeys(tps, LATEST), read_committed=committed)
    return {tp: max(at.offset - (start.before_end or 0), beginnings[tp].offset) for tp, at in ends.items()}


async def _ends(cluster: Cluster, tps: list[TopicPartition], committed: bool) -> dict[TopicPartition, int]:
    from chronik.client.offsets import LATEST, list_offsets

    ends = await list_offsets(cluster, dict.fromkeys(tps, LATEST), read_committed=committed)
    return {tp: at.offset for tp, at in ends.items()}


async def _read(consumer: Consumer, plan: _Plan, render: Renderer | None) -> _Read:
    """Read until one of the plan's ends; without a renderer only count."""
    read = _Read()
    loop = asyncio.get_running_loop()
    started = loop.time()
    consumer.assign(plan.starts)
    total = _total(plan)
    out = sys.stdout.buffer
    # A bar and records on one terminal would overwrite each other.
    bar = total is not None and (render is None or not sys.stdout.isatty())
    with progress("read", total, enabled=bar) as show:
        while read.records < plan.max_messages and not _at_end(consumer, plan):
            fetched = await consumer.poll(plan.idle_ms)
            if not fetched and plan.idle_ms is not None:
                read.timed_out = True
                break
            for part in fetched:
                end = _FOREVER if plan.ends is None else plan.ends[part.tp]
                if render is None:
                    _count(part, end, read)
                else:
                    for record in part.records()[: plan.max_messages - read.records]:
                        if record.offset < end:
                            read.records += 1
                            out.write(render(part.tp, record))
            out.flush()
            show(read.records)
    read.seconds = loop.time() - started
    return read


def _count(part: Fetched, end: int, read: _Read) -> None:
    """Count by batch headers; only a batch that is not wanted as a whole is looked into."""
    from chronik.client.visibility import visible_batches
    from chronik.records.reader import read_records

    for position, header in visible_batches(part.data, part.aborted):
        if header.base_offset >= part.fetch_offset and header.last_offset < end:
            read.records += header.record_count
        else:
            records = read_records(part.data, position)
            read.records += sum(part.fetch_offset <= record.offset < end for record in records)
        read.size_bytes += header.size_bytes


def _total(plan: _Plan) -> int | None:
    if plan.ends is None:
        return plan.max_messages if plan.max_messages < _FOREVER else None
    behind = sum(max(0, end - plan.starts[tp]) for tp, end in plan.ends.items())
    return min(behind, plan.max_messages)


def _at_end(consumer: Consumer, plan: _Plan) -> bool:
    return plan.ends is not None and all(consumer.position(tp) >= end for tp, end in plan.ends.items())


def _print_count(topic: str, read: _Read, *, as_json: bool) -> None:
    per_second = read.records / read.seconds if read.seconds else 0.0
    if as_json:
        print_json(
            {
                "topic": topic,
                "records": read.records,
                "bytes": read.size_bytes,
                "seconds": round(read.seconds, 3),
                "records_per_second": round(per_second),
            }
        )
        return
    rate = human_bytes(read.size_bytes / read.seconds) if read.seconds else "-"
    print(
        f"{counted(read.records, 'record')} in {topic}, read in {read.seconds:.1f} s "
        f"({per_second:,.0f} records/s, {rate}/s)"
    )
