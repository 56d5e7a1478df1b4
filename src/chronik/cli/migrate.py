"""`chronik migrate`: the way in from Apache Kafka, with Apache Kafka's own MirrorMaker 2 as the copier."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chronik.cli import migrate_config, migrate_end
from chronik.cli.client import (
    AsJson,
    Bootstrap,
    CommandFailed,
    print_json,
    print_table,
)
from chronik.cli.migrate_sides import (
    From,
    FromConfig,
    GroupNames,
    Replication,
    Topics,
    choices,
    properties_of,
    replicas_of,
    wanted_topics,
    with_both,
)
from chronik.cli.printable import complain, say
from chronik.words import counted

if TYPE_CHECKING:
    from chronik.client import Cluster


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Move here from Apache Kafka: copy by MirrorMaker 2, follow it, check that both sides agree.",
        no_args_is_help=True,
    )
    group.command()(plan)
    group.command("run")(run_mirror)
    group.command()(config)
    group.command()(status)
    group.command()(migrate_end.check)
    group.command()(migrate_end.finish)
    app.add_typer(group, name="migrate")


def plan(
    source: From,
    source_config: FromConfig = None,
    topics: Topics = ".*",
    groups: GroupNames = ".*",
    as_json: AsJson = False,
    servers: Bootstrap = None,
) -> None:
    """Show what would be moved, and what stands in its way. Nothing is changed; exit code 1: something does.

    Examples:

      chronik migrate plan --from kafka.example:9092

      chronik migrate plan --from kafka.example:9092 --topics 'orders,payments.*'
    """
    from chronik.cli.migrate_check import committed_offsets
    from chronik.cli.migrate_progress import MirrorWatch
    from chronik.cli.migrate_topics import in_the_way, refuse_same_cluster

    chosen, readers = choices(topics, groups)

    async def work(old: Cluster, new: Cluster) -> dict[str, Any]:
        await refuse_same_cluster(old, new)
        wanted = await wanted_topics(old, chosen)
        begun = {tp.topic for tp in (await MirrorWatch(new).look()).positions}
        return {
            "topics": [
                {
                    "topic": one.name,
                    "partitions": one.partitions,
                    "offsets": one.offsets,
                    "configs": one.configs,
                }
                for one in wanted
            ],
            "groups": sorted(await committed_offsets(old, readers)),
            "in_the_way": await in_the_way(new, wanted, begun),
            "by_hand": await _by_hand(old),
        }

    found = with_both(source, source_config, servers, work)
    if as_json:
        print_json(found)
    else:
        rows = [
            (one["topic"], one["partitions"], f"{one['offsets']:,}", _pairs(one["configs"]))
            for one in found["topics"]
        ]
        print_table(("topic", "#partitions", "#offsets", "configs"), rows)
        say(f"{counted(len(found['groups']), 'group')}: {', '.join(found['groups']) or 'none'}")
        for said in found["by_hand"]:
            say(f"to be made by hand: {said}")
        for said in found["in_the_way"]:
            say(f"in the way: {said}")
    if found["in_the_way"]:
        raise typer.Exit(1)


def run_mirror(
    source: From,
    kafka: Annotated[
        Path,
        typer.Option("--kafka", metavar="DIR", help="folder of an Apache Kafka distribution, 3.5 or later"),
    ],
    source_config: FromConfig = None,
    topics: Topics = ".*",
    groups: GroupNames = ".*",
    replication_factor: Replication = None,
    until_copied: Annotated[
        bool, typer.Option("--until-copied", help="end when everything is copied; else follow until Ctrl-C")
    ] = False,
    heap_mib: Annotated[
        int, typer.Option("--heap-mib", min=128, metavar="N", help="MirrorMaker's memory")
    ] = 1024,
    log: Annotated[Path, typer.Option("--log", metavar="FILE", help="what MirrorMaker says")] = Path(
        "mirrormaker.log"
    ),
    servers: Bootstrap = None,
) -> None:
    """Make the topics here, start MirrorMaker 2 and show how far it is. Run it again to go on.

    Records keep key, value, headers, time and order; aborted ones are left out. Nothing is written to the old
    cluster, and its clients notice nothing.

    Examples:

      chronik migrate run --from kafka.example:9092 --kafka /opt/kafka

      chronik migrate run --from kafka.example:9092 --kafka /opt/kafka --topics 'orders.*' --until-copied
    """
    from chronik.cli.migrate_progress import MirrorWatch
    from chronik.cli.migrate_run import MirrorMaker, bars, follow
    from chronik.cli.migrate_topics import in_the_way, make_topics, refuse_same_cluster

    chosen, readers = choices(topics, groups)

    async def work(old: Cluster, new: Cluster) -> bool:
        await refuse_same_cluster(old, new)
        wanted = await wanted_topics(old, chosen)
        begun = {tp.topic for tp in (await MirrorWatch(new).look()).positions}
        if found := await in_the_way(new, wanted, begun):
            raise CommandFailed("; ".join(found))
        replicas = await replicas_of(new, replication_factor)
        for said in await make_topics(new, wanted, replicas):
            say(said)
        properties = properties_of(source, source_config, servers, chosen, readers, replicas, wanted)
        mirror = await asyncio.to_thread(MirrorMaker, kafka, properties, log, heap_mib)
        try:
            with bars(enabled=True) as show:
                async for lag in follow(old, new, chosen, replicas, mirror):
                    show(lag)
                    if until_copied and lag.is_none:
                        return True
        finally:
            await asyncio.to_thread(mirror.close)
        return False

    with_both(source, source_config, servers, work)
    print("everything is copied; `chronik migrate check` compares both sides")


def config(
    source: From,
    source_config: FromConfig = None,
    topics: Topics = ".*",
    groups: GroupNames = ".*",
    replication_factor: Replication = None,
    servers: Bootstrap = None,
) -> None:
    """Make the topics here and print mirror.properties, to run MirrorMaker 2 somewhere else.

    It has the passwords of both clusters in it. `chronik migrate status` follows that MirrorMaker as well.

    Examples:

      chronik migrate config --from kafka.example:9092 > mirror.properties

      bin/connect-mirror-maker.sh mirror.properties
    """

    from chronik.cli.migrate_topics import make_topics, refuse_same_cluster

    chosen, readers = choices(topics, groups)

    async def work(old: Cluster, new: Cluster) -> dict[str, str]:
        await refuse_same_cluster(old, new)
        wanted = await wanted_topics(old, chosen)
        replicas = await replicas_of(new, replication_factor)
        for said in await make_topics(new, wanted, replicas):
            complain(said)
        return properties_of(source, source_config, servers, chosen, readers, replicas, wanted)

    print(migrate_config.as_text(with_both(source, source_config, servers, work)), end="")


def status(
    source: From,
    source_config: FromConfig = None,
    topics: Topics = ".*",
    as_json: AsJson = False,
    servers: Bootstrap = None,
) -> None:
    """How far the copy of each topic is. Exit code 1: MirrorMaker says that it failed.

    Examples:

      chronik migrate status --from kafka.example:9092
    """
    from chronik.cli.migrate_progress import MirrorWatch, lag_of

    chosen, _ = choices(topics, ".*")

    async def work(old: Cluster, new: Cluster) -> dict[str, Any]:
        wanted = await wanted_topics(old, chosen)
        state = await MirrorWatch(new).look()
        lag = await lag_of(old, [tp for one in wanted for tp in one.tps()], state.positions)
        sizes = lag.sizes()
        rows = [
            {"topic": name, "offsets": sizes[name], "left": left} for name, left in lag.by_topic().items()
        ]
        return {"topics": rows, "failed": state.failed}

    found = with_both(source, source_config, servers, work)
    if as_json:
        print_json(found)
    else:
        rows = [(one["topic"], f"{one['offsets']:,}", f"{one['left']:,}") for one in found["topics"]]
        print_table(("topic", "#offsets", "#to copy"), rows)
        for name, reason in found["failed"].items():
            say(f"MirrorMaker's {name} failed: {reason}")
    if found["failed"]:
        raise typer.Exit(1)


async def _by_hand(old: Cluster) -> list[str]:
    """What MirrorMaker does not copy and the old cluster has."""
    from chronik.client.security import describe_acls, list_quotas, list_users
    from chronik.model import ChronikError

    found = []
    for what, ask, remedy in (
        ("user", list_users, "chronik user add"),
        ("ACL", describe_acls, "chronik acl add"),
        ("quota", list_quotas, "chronik quota set"),
    ):
        with contextlib.suppress(ChronikError):  # an authorizer it does not have, or rights that we have not
            if count := len(await ask(old)):
                found.append(f"{counted(count, what)} (`{remedy}`)")
    return found


def _pairs(configs: Any) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(configs.items()))
