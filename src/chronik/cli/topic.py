"""`chronik topic`: create, list, describe and delete topics; `alter` is in `topic_alter`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chronik.cli import topic_alter, topic_export, topic_reassign
from chronik.cli.client import (
    AsJson,
    Bootstrap,
    end,
    explain,
    parse_pairs,
    print_json,
    print_table,
    run,
    unknown_topic,
)
from chronik.cli.printable import say
from chronik.model import ErrorCode, NodeId, RequestError, TopicPartition
from chronik.words import counted

if TYPE_CHECKING:
    from chronik.client import Cluster
    from chronik.client.metadata import TopicInfo

Names = Annotated[
    list[str], typer.Argument(metavar="TOPIC...", help="one or more topics", show_default=False)
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Create, list, describe, alter, move, copy and delete topics.", no_args_is_help=True
    )
    group.command()(create)
    group.command("list")(list_topics)
    group.command()(describe)
    group.command()(topic_alter.alter)
    group.command()(topic_reassign.reassign)
    group.command()(topic_export.export)
    group.command("import")(topic_export.import_)
    group.command()(delete)
    app.add_typer(group, name="topic")


def create(
    topics: Names,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=-1, help="-1: the cluster's default", metavar="N")
    ] = -1,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", "-r", min=-1, help="-1: the cluster's default", metavar="N")
    ] = -1,
    configs: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="NAME=VALUE", help="a topic config, repeatable"),
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="an existing topic is fine")] = False,
    as_json: AsJson = False,
    servers: Bootstrap = None,
) -> None:
    """Create topics.

    Examples:

      chronik topic create orders

      chronik topic create orders payments --partitions 12 --replication-factor 3

      chronik topic create sessions --config cleanup.policy=compact
    """
    settings = parse_pairs(configs or (), "topic config")

    async def work(cluster: Cluster) -> list[Any]:
        from chronik.client.admin import Admin, NewTopic

        wanted = [
            NewTopic(
                name=name, partitions=partitions, replication_factor=replication_factor, configs=settings
            )
            for name in topics
        ]
        return list(await Admin(cluster).create_topics(wanted))

    results = run(servers, work)
    rows, failures = [], []
    for name, result in zip(topics, results, strict=True):
        if isinstance(result, RequestError):
            if if_not_exists and result.code == ErrorCode.topic_already_exists:
                rows.append({"topic": name, "created": False})
            else:
                failures.append(explain(result))
            continue
        rows.append(
            {
                "topic": name,
                "created": True,
                "topic_id": result.topic_id,
                "partitions": result.partitions,
                "replication_factor": result.replication_factor,
            }
        )
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            print(_created_line(row))
    end(failures, done=len(rows))


def _created_line(row: dict[str, Any]) -> str:
    if not row["created"]:
        return f"{row['topic']} exists already"
    if row["partitions"] < 1:  # an old node does not say
        return f"{row['topic']} created"
    copies = counted(row["replication_factor"], "replica")
    return f"{row['topic']} created with {counted(row['partitions'], 'partition')}, {copies} each"


def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="with the cluster's own topics")] = False,
    as_json: AsJson = False,
    servers: Bootstrap = None,
) -> None:
    """List topics.

    Examples:

      chronik topic list

      chronik topic list --json | jq -r '.\\[].topic'
    """

    async def work(cluster: Cluster) -> list[TopicInfo]:
        from chronik.client.admin import Admin

        return await Admin(cluster).list_topics(internal=internal)

    rows = [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "replicas": max((len(p.replicas) for p in topic.partitions.values()), default=0),
            "under_replicated": sum(len(p.isr) < len(p.replicas) for p in topic.partitions.values()),
            "without_leader": sum(p.leader_id < 0 for p in topic.partitions.values()),
            "internal": topic.is_internal,
        }
        for topic in run(servers, work)
    ]
    if as_json:
        print_json(rows)
    elif not rows:
        print("No topics yet: create one with `chronik topic create NAME`.")
    else:
        headings = ("topic", "#partitions", "#replicas", "#under-replicated", "#without leader")
        print_table(headings, ([row[key] for key in list(row)[:5]] for row in rows))


def describe(topics: Names, as_json: AsJson = False, servers: Bootstrap = None) -> None:
    """Show the partitions of topics: leader, replicas, offsets, and the configs that are set.

    Examples:

      chronik topic describe orders

      chronik topic describe orders --json | jq '.\\[0].partitions\\[] | .end_offset'
    """

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        try:
            return [await _described(cluster, name) for name in topics]
        except RequestError as error:
            if error.code == ErrorCode.unknown_topic_or_partition:
                missing = next((name for name in topics if repr(name) in str(error)), topics[0])
                raise unknown_topic(missing) from None
            raise

    described = run(servers, work)
    if as_json:
        print_json(described)
        return
    for topic in described:
        idle = set(topic["without_effect"])
        set_configs = ", ".join(
            f"{name}={value}" + (" (without effect)" if name in idle else "")
            for name, value in topic["configs"].items()
        )
        say(f"{topic['topic']}  id {topic['topic_id']}" + (f"  {set_configs}" if set_configs else ""))
        if topic["durability"] is not None:
            print(topic["durability"])
        keys = ("partition", "leader", "leader_epoch", "replicas", "isr", "start_offset", "end_offset")
        headings = ("#partition", "#leader", "#epoch", "replicas", "in sync", "#start", "#end")
        print_table(headings, ([partition[key] for key in keys] for partition in topic["partitions"]))


async def _described(cluster: Cluster, name: str) -> dict[str, Any]:
    from chronik.client.admin import Admin
    from chronik.client.offsets import EARLIEST, LATEST

    admin = Admin(cluster)
    (info,) = await admin.describe_topics([name])
    tps = [TopicPartition(name, number) for number, p in info.partitions.items() if p.leader_id >= 0]
    starts = await admin.offsets(dict.fromkeys(tps, EARLIEST))
    ends = await admin.offsets(dict.fromkeys(tps, LATEST))
    partitions = []
    for number, partition in info.partitions.items():
        tp = TopicPartition(name, number)
        partitions.append(
            {
                "partition": number,
                "leader": partition.leader_id if partition.leader_id >= 0 else None,
                "leader_epoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
                "start_offset": starts[tp].offset if tp in starts else None,
                "end_offset": ends[tp].offset if tp in ends else None,
            }
        )
    configs = await admin.describe_config("topic", name)
    own = {entry.name: entry.value or "" for entry in configs if entry.source == "topic"}
    return {
        "topic": name,
        "topic_id": info.topic_id,
        "internal": info.is_internal,
        "durability": await _durability(
            cluster, name, own, [info.partitions[tp.partition].leader_id for tp in tps]
        ),
        "configs": own,
        "without_effect": [
            entry.name for entry in configs if entry.source == "topic" and not entry.has_effect
        ],
        "partitions": partitions,
    }


async def _durability(cluster: Cluster, name: str, own: dict[str, str], leaders: list[NodeId]) -> str | None:
    """What an acknowledged write may rely on; None where another broker than chronik decides it."""
    from chronik.client.features import features_of
    from chronik.metadata.durability import DurabilityPromise
    from chronik.metadata.levels import FEATURE
    from chronik.metadata.topic_config import TopicConfig

    if not leaders or FEATURE not in (await features_of(cluster, leaders[0])).supported:
        return None
    return DurabilityPromise.of_topic(name, TopicConfig.resolve(own).durability).promise


def delete(
    topics: Names,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="a topic that is not there is fine")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    as_json: AsJson = False,
    servers: Bootstrap = None,
) -> None:
    """Delete topics and all their records. Asks first when a person is at the keyboard.

    Examples:

      chronik topic delete orders

      chronik topic delete orders payments --yes --if-exists
    """
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete {', '.join(topics)} with all records?", abort=True)

    async def work(cluster: Cluster) -> list[RequestError | None]:
        from chronik.client.admin import Admin

        return await Admin(cluster).delete_topics(topics)

    rows, failures = [], []
    for name, error in zip(topics, run(servers, work), strict=True):
        if error is None:
            rows.append({"topic": name, "deleted": True})
        elif error.code == ErrorCode.unknown_topic_or_partition:
            if if_exists:
                rows.append({"topic": name, "deleted": False})
            else:
                failures.append(f"topic {name!r} does not exist: `chronik topic list` shows those that do")
        else:
            failures.append(explain(error))
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            say(f"{row['topic']} deleted" if row["deleted"] else f"{row['topic']} was not there")
    end(failures, done=len(rows))
