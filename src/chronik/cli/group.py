"""`chronik group`: list, describe, reset offsets of and delete consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from chronik.cli import group_reset
from chronik.cli.client import (
    AsJson,
    Bootstrap,
    end,
    explain,
    print_json,
    print_table,
    run,
)
from chronik.cli.printable import say
from chronik.model import RequestError, TopicPartition

if TYPE_CHECKING:
    from chronik.client import Cluster
    from chronik.client.group_types import GroupListing

_Names = Annotated[
    list[str], typer.Argument(metavar="GROUP...", help="one or more groups", show_default=False)
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Look at consumer groups and move their offsets.", no_args_is_help=True)
    group.command("list")(list_groups)
    group.command()(describe)
    group.command("reset-offsets")(group_reset.reset_offsets)
    group.command()(delete)
    app.add_typer(group, name="group")


def list_groups(as_json: AsJson = False, servers: Bootstrap = None) -> None:
    """List groups of every type, with type and state.

    Examples:

      chronik group list

      chronik group list --json | jq -r '.\\[].group'
    """

    async def work(cluster: Cluster) -> list[GroupListing]:
        from chronik.client.groups import Groups

        return await Groups(cluster).list()

    rows = [
        {
            "group": group.group_id,
            "state": group.state,
            "type": group.group_type.lower(),
            "protocol": group.protocol_type,
        }
        for group in run(servers, work)
    ]
    if as_json:
        print_json(rows)
    elif not rows:
        print("No groups yet: the first consumer with a group.id makes one.")
    else:
        print_table(("group", "state", "type", "protocol"), (list(row.values()) for row in rows))


def describe(groups: _Names, as_json: AsJson = False, servers: Bootstrap = None) -> None:
    """Show members, offsets and lag of groups of every type.

    Of a share group, `committed` is where its records begin that are not yet acknowledged by all; of a
    streams group, its members' tasks are told. No chronik node has such groups, but Apache Kafka may.

    Examples:

      chronik group describe billing

      chronik group describe billing --json | jq '\\[.\\[0].partitions\\[].lag] | add'
    """

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        return [await _described(cluster, group_id) for group_id in groups]

    described = run(servers, work)
    if as_json:
        print_json(described)
        return
    for group in described:
        members = f"{len(group['members'])} members" if len(group["members"]) != 1 else "1 member"
        facts = [group["state"].lower(), group["type"], group["assignor"], members]
        say(f"{group['group']}  {', '.join(fact for fact in facts if fact)}")
        keys = ("topic", "partition", "committed", "end", "lag", "member", "host")
        headings = ("topic", "#partition", "#committed", "#end", "#lag", "member", "host")
        print_table(headings, ([row[key] for key in keys] for row in group["partitions"]))
        for member in group["members"]:
            if member["tasks"]:
                say(f"  {member['member']} at {member['host']}: tasks {', '.join(member['tasks'])}")
            elif not member["partitions"]:
                say(f"  {member['member']} at {member['host']} has no partitions")


async def _described(cluster: Cluster, group_id: str) -> dict[str, Any]:
    from chronik.client.groups import Groups
    from chronik.client.offsets import LATEST, list_offsets
    from chronik.client.other_groups import share_offsets

    groups = Groups(cluster)
    group = await groups.describe(group_id)
    of_share = group.group_type == "share"
    committed = await (share_offsets(cluster, group_id) if of_share else groups.offsets(group_id))
    owners = {tp: member for member in group.members for tp in member.partitions}
    tps = sorted({*committed, *owners})
    there = await _existing(cluster, tps)
    ends = await list_offsets(cluster, dict.fromkeys(there, LATEST))
    rows = []
    for tp in tps:
        offset = committed[tp].offset if tp in committed and committed[tp].offset >= 0 else None
        end_offset = ends[tp].offset if tp in ends else None
        owner = owners.get(tp)
        rows.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": offset,
                "end": end_offset,
                "lag": max(0, end_offset - offset) if end_offset is not None and offset is not None else None,
                "member": owner.member_id if owner else None,
                "client_id": owner.client_id if owner else None,
                "host": owner.host if owner else None,
            }
        )
    return {
        "group": group_id,
        "state": group.state,
        "type": group.group_type,
        "assignor": group.assignor,
        "coordinator": group.coordinator_id,
        "partitions": rows,
        "members": [
            {
                "member": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": [str(tp) for tp in member.partitions],
                "tasks": list(member.tasks),
            }
            for member in group.members
        ],
    }


async def _existing(cluster: Cluster, tps: list[TopicPartition]) -> list[TopicPartition]:
    """The partitions that have a leader to ask: a group may outlive the topics it read."""
    await cluster.topics({tp.topic for tp in tps})
    return [tp for tp in tps if cluster.metadata.leader_of(tp) >= 0]


def delete(groups: _Names, as_json: AsJson = False, servers: Bootstrap = None) -> None:
    """Delete groups that have no members, with all they committed.

    Example: chronik group delete billing
    """

    async def work(cluster: Cluster) -> list[str | None]:
        from chronik.client.groups import Groups

        problems: list[str | None] = []
        for group_id in groups:
            try:
                await Groups(cluster).delete(group_id)
                problems.append(None)
            except RequestError as error:
                problems.append(explain(error))
        return problems

    problems = run(servers, work)
    deleted = [group for group, problem in zip(groups, problems, strict=True) if problem is None]
    if as_json:
        print_json([{"group": group, "deleted": True} for group in deleted])
    else:
        for group in deleted:
            say(f"{group} deleted")
    end([problem for problem in problems if problem is not None], done=len(deleted))
