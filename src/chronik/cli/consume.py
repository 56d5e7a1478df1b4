"""`chronik consume`: records to stdout, as text, in a format, as JSON, or only counted."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from chronik.cli.client import NOT_ALL, Bootstrap, CommandFailed, partition_numbers, print_json, run
from chronik.cli.reading import FOREVER, Read, Stop, read_as_member, read_partitions
from chronik.cli.render import renderer
from chronik.model import TopicPartition
from chronik.words import counted, human_bytes

if TYPE_CHECKING:
    from chronik.client import Cluster

_ISOLATION: Final = ("read_uncommitted", "read_committed")


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
    int | None, typer.Option("--max-messages", "-n", min=1, metavar="N", help="stop after this many records")
]
_ToEnd = Annotated[bool, typer.Option("--to-end", help="stop at what is the end now")]
_IdleTimeout = Annotated[
    float | None,
    typer.Option("--timeout", min=0.001, metavar="SECONDS", help="stop when no record came within this time"),
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
_Group = Annotated[
    str | None,
    typer.Option(
        "--group", "-g", metavar="GROUP", help="as a member of this group, which remembers the place"
    ),
]
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
    group: _Group = None,
    isolation: _Isolation = "read_uncommitted",
    servers: Bootstrap = None,
) -> None:
    """Read records: by default the values of those that arrive from now on, until Ctrl-C.

    Examples:

      chronik consume greetings --from-beginning

      chronik consume orders --offset -10 --to-end --format '{offset} {key}'

      chronik consume orders --partition 0 --offset 1000 --max-messages 5 --json

      chronik consume orders --group billing --from-beginning

      chronik consume load --from-beginning --to-end --count
    """
    if isolation not in _ISOLATION:
        raise CommandFailed(f"--isolation {isolation!r} is not known: {' or '.join(_ISOLATION)}")
    if count and (max_messages is not None or template is not None):
        raise CommandFailed("--count prints only the sum, so --max-messages and --format do not go with it")
    if from_beginning and offset is not None:
        raise CommandFailed("--from-beginning and --offset both say where to start: give one of them")
    if group is not None and (to_end or partitions or offset is not None or count):
        raise CommandFailed(
            "a --group knows its place: --offset, --partition, --to-end and --count do not go with it"
        )
    render = None if count else renderer(template, as_json=as_json)
    start = _parse_start("earliest" if from_beginning else offset or "latest")
    stop = Stop(
        max_messages=max_messages or FOREVER,
        idle_ms=int(timeout * 1000) if timeout is not None else None,
    )

    async def work(cluster: Cluster) -> Read:
        committed = isolation == "read_committed"
        if group is not None:
            await partition_numbers(cluster, topic)
            where: Literal["earliest", "latest"] = "earliest" if from_beginning else "latest"
            return await read_as_member(cluster, topic, group, where, committed, stop, render)
        tps = await _chosen(cluster, topic, partitions)
        starts = await _starts(cluster, tps, start, committed)
        ends = await _ends(cluster, tps, committed) if to_end else None
        return await read_partitions(cluster, starts, ends, committed, stop, render)

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


def _print_count(topic: str, read: Read, *, as_json: bool) -> None:
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
