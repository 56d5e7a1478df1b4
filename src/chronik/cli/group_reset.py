"""`chronik group reset-offsets`: where a group goes on reading."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chronik.cli.client import (
    AsJson,
    Bootstrap,
    CommandFailed,
    partition_numbers,
    print_json,
    print_table,
    run,
)
from chronik.model import ErrorCode, RequestError, TopicPartition

if TYPE_CHECKING:
    from chronik.client import Cluster
    from chronik.client.resetting import ResetTarget

_Group = Annotated[str, typer.Argument(help="a group without members", show_default=False)]
_Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:0,1]",
        help="only this topic, or these partitions of it; repeatable [dim](default: all it committed)[/dim]",
    ),
]
_Earliest = Annotated[bool, typer.Option("--to-earliest", help="to where the logs begin")]
_Latest = Annotated[bool, typer.Option("--to-latest", help="to where the logs end")]
_Offset = Annotated[int | None, typer.Option("--to-offset", min=0, metavar="N", help="to this offset")]
_Time = Annotated[
    str | None,
    typer.Option(
        "--to-time", metavar="TIME", help="to the first record from 2026-01-31T12:00:00Z or later, say"
    ),
]
_Shift = Annotated[
    int | None, typer.Option("--shift-by", metavar="N", help="forward, or back with a negative number")
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="show what would change, change nothing")]


def reset_offsets(
    group: _Group,
    topics: _Topics = None,
    to_earliest: _Earliest = False,
    to_latest: _Latest = False,
    to_offset: _Offset = None,
    to_time: _Time = None,
    shift_by: _Shift = None,
    dry_run: _DryRun = False,
    as_json: AsJson = False,
    servers: Bootstrap = None,
) -> None:
    """Move the committed offsets of a group that has no members. Offsets stay inside the logs.

    Examples:

      chronik group reset-offsets billing --to-earliest --dry-run

      chronik group reset-offsets billing --topic orders:0,1 --shift-by -100

      chronik group reset-offsets billing --to-time 2026-01-31T12:00:00Z
    """
    target = _target(to_earliest, to_latest, to_offset, to_time, shift_by)

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        from chronik.client.groups import Groups
        from chronik.client.resetting import resolve_reset

        groups = Groups(cluster)
        if await groups.type_of(group) == "share":
            # Apache Kafka 4.1 answers such a request without an error and changes nothing.
            raise CommandFailed(
                f"group {group!r} is a share group, whose offsets cannot be set: `chronik group delete` lets "
                "it begin anew where share.auto.offset.reset says"
            )
        committed = {
            tp: found.offset for tp, found in (await groups.offsets(group)).items() if found.offset >= 0
        }
        tps = await _chosen(cluster, topics, committed)
        if not tps:
            raise CommandFailed(f"group {group!r} has committed nothing: name a topic with --topic")
        moved = await resolve_reset(cluster, target, tps, committed)
        if not dry_run:
            try:
                await groups.commit(group, moved)
            except RequestError as error:
                if error.code in (ErrorCode.unknown_member_id, ErrorCode.rebalance_in_progress):
                    raise CommandFailed(f"group {group!r} has members: stop them first") from None
                raise
        return [
            {"topic": tp.topic, "partition": tp.partition, "before": committed.get(tp), "after": offset}
            for tp, offset in moved.items()
        ]

    rows = run(servers, work)
    if as_json:
        print_json({"group": group, "dry_run": dry_run, "offsets": rows})
        return
    print_table(("topic", "#partition", "#before", "#after"), (list(row.values()) for row in rows))
    if dry_run:
        print("Nothing was changed: leave out --dry-run to do it.")


def _target(
    to_earliest: bool, to_latest: bool, to_offset: int | None, to_time: str | None, shift_by: int | None
) -> ResetTarget:
    from chronik.client.offsets import EARLIEST, LATEST
    from chronik.client.resetting import ResetTarget

    given = [
        ResetTarget(at=EARLIEST) if to_earliest else None,
        ResetTarget(at=LATEST) if to_latest else None,
        ResetTarget(offset=to_offset) if to_offset is not None else None,
        ResetTarget(at=parse_time_ms(to_time)) if to_time is not None else None,
        ResetTarget(shift=shift_by) if shift_by is not None else None,
    ]
    targets = [target for target in given if target is not None]
    if len(targets) != 1:
        raise CommandFailed(
            "say where to: give one of --to-earliest, --to-latest, --to-offset, --to-time and --shift-by"
        )
    return targets[0]


def parse_time_ms(text: str) -> int:
    """ISO 8601 (local time without a zone) or milliseconds since 1970."""
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise CommandFailed(
            f"{text!r} is no time: write it like 2026-01-31T12:00:00Z, or in milliseconds since 1970"
        ) from None


async def _chosen(
    cluster: Cluster, topics: list[str] | None, committed: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    if not topics:
        return sorted(committed)
    chosen: dict[TopicPartition, None] = {}
    for text in topics:
        topic, colon, numbers = text.partition(":")
        there = await partition_numbers(cluster, topic)
        try:
            wanted = [int(number) for number in numbers.split(",")] if colon else there
        except ValueError:
            raise CommandFailed(f"--topic {text!r}: write TOPIC, or TOPIC:0,1 for partitions of it") from None
        for number in wanted:
            if number not in there:
                raise CommandFailed(f"topic {topic!r} has no partition {number}, only {there[0]}-{there[-1]}")
            chosen[TopicPartition(topic, number)] = None
    return list(chosen)
