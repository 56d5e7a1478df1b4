"""`chronik migrate check` and `finish`: the end of a migration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chronik.cli.client import AsJson, Bootstrap, Timeout, print_json, print_table, progress
from chronik.cli.migrate_config import OWN_TOPICS
from chronik.cli.migrate_sides import From, FromConfig, GroupNames, Topics, choices, wanted_topics, with_both
from chronik.cli.printable import say
from chronik.words import counted

if TYPE_CHECKING:
    from chronik.cli.migrate_check import Report
    from chronik.client import Cluster


def check(
    source: From,
    source_config: FromConfig = None,
    topics: Topics = ".*",
    groups: GroupNames = ".*",
    last: Annotated[
        int | None,
        typer.Option(
            "--last", min=1, metavar="N", help="compare only the newest N offsets of each partition"
        ),
    ] = None,
    set_offsets: Annotated[
        bool, typer.Option("--set-offsets", help="set groups without members here exactly to where they were")
    ] = False,
    as_json: AsJson = False,
    timeout: Timeout = 60.0,
    servers: Bootstrap = None,
) -> None:
    """Compare both sides: topics, configs, every record, and where groups go on. Exit code 1: they differ.

    MirrorMaker translates a group's offset so that it may read some records again, after a long lag many. The
    comparison knows the exact place, and --set-offsets sets it: do so when the group has been stopped.

    Examples:

      chronik migrate check --from kafka.example:9092

      chronik migrate check --from kafka.example:9092 --topics orders --last 100000 --set-offsets
    """
    from chronik.cli import migrate_check

    chosen, readers = choices(topics, groups)

    async def work(old: Cluster, new: Cluster) -> tuple[Report, list[str]]:
        # The new side first: what MirrorMaker translates meanwhile must not look as if it were ahead.
        there = await migrate_check.committed_offsets(new, readers)
        committed = await migrate_check.committed_offsets(old, readers)
        wanted = await wanted_topics(old, chosen)
        total = sum(one.offsets for one in wanted)
        with progress("comparing", total, unit="offsets", enabled=not as_json) as show:
            report = await migrate_check.check(old, new, wanted, committed, there, last, show)
        refused = []
        if set_offsets:
            refused = await migrate_check.set_offsets(new, report.groups)
        return report, refused

    report, refused = with_both(source, source_config, servers, work, timeout=timeout)
    findings = [*report.findings, *refused]
    if as_json:
        from dataclasses import asdict

        print_json(
            {
                "topics": [asdict(one) for one in report.topics],
                "groups": _groups(report),
                "findings": findings,
            }
        )
    else:
        _show(report, findings)
    if findings:
        raise typer.Exit(1)


def finish(
    source: From,
    source_config: FromConfig = None,
    topics: Topics = ".*",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    servers: Bootstrap = None,
) -> None:
    """End a migration: set the configs that a copy must not have, remove MirrorMaker's topics here.

    Those configs are `message.timestamp.type` and its kind. Afterwards a `run` would begin anew. The old
    cluster is left as it is.

    Examples:

      chronik migrate finish --from kafka.example:9092
    """
    from chronik.cli.migrate_topics import set_configs

    chosen, _ = choices(topics, ".*")
    if not yes:
        typer.confirm("Have all clients moved, and has MirrorMaker ended?", abort=True, err=True)

    async def work(old: Cluster, new: Cluster) -> list[str]:
        from chronik.client.admin import Admin

        known, refused = await new.topics(), []
        for topic in await wanted_topics(old, chosen):
            if topic.name in known:
                refused += await set_configs(new, topic, afterwards=True)
        own = [name for name in OWN_TOPICS if name in known]
        results = await Admin(new).delete_topics(own) if own else []
        return refused + [str(error) for error in results if error is not None]

    failures = with_both(source, source_config, servers, work)
    for said in failures:
        say(said)
    if failures:
        raise typer.Exit(1)
    print("the migration is over")


def _show(report: Report, findings: Sequence[str]) -> None:
    rows = [
        (one.name, f"{one.compared:,}", f"{one.older:,}", "differs" if one.findings else "agrees")
        for one in report.topics
    ]
    print_table(("topic", "#compared", "#expired on one side", "both sides"), rows)
    group_rows = [
        (name, f"{group.read_again:,}" if not group.findings else "-", len(group.corrected))
        for name, group in report.groups.items()
    ]
    if group_rows:
        print_table(("group", "#read again", "#offsets to correct"), group_rows)
    for said in (note for one in report.topics for note in one.notes):
        say(said)
    for said in findings:
        say(said)
    print(f"both sides differ: {counted(len(findings), 'finding')}" if findings else "both sides agree")


def _groups(report: Report) -> list[dict[str, Any]]:
    return [
        {
            "group": name,
            "read_again": group.read_again,
            "corrected": {str(tp): offset for tp, offset in group.corrected.items()},
        }
        for name, group in report.groups.items()
    ]
