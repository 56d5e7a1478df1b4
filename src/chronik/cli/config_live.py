"""`chronik config get` and `chronik config set`: the configs of topics and brokers, in a running cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from chronik.cli.client import (
    AsJson,
    Bootstrap,
    CommandFailed,
    parse_pairs,
    print_json,
    print_table,
    run,
    unknown_topic,
)
from chronik.model import ErrorCode, RequestError

if TYPE_CHECKING:
    from chronik.client import Cluster
    from chronik.client.admin import Admin, ConfigEntry, ResourceType

_Topic = Annotated[str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="configs of this topic")]
_Broker = Annotated[
    str | None,
    typer.Option("--broker", metavar="ID", help="configs of this node; 'all' for the cluster-wide default"),
]
_Keys = Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="only these", show_default=False)]
_Pairs = Annotated[
    list[str] | None, typer.Argument(metavar="NAME=VALUE...", help="what to set", show_default=False)
]
_Unset = Annotated[
    list[str] | None,
    typer.Option("--unset", "-u", metavar="NAME", help="back to the default; repeatable"),
]
_All = Annotated[bool, typer.Option("--all", "-a", help="with those that have their default")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="check only, change nothing")]


def get(
    names: _Keys = None,
    topic: _Topic = None,
    broker: _Broker = None,
    everything: _All = False,
    as_json: AsJson = False,
    servers: Bootstrap = None,
) -> None:
    """Show the configs of a topic or a node in a running cluster.

    Examples:

      chronik config get --topic orders

      chronik config get --topic orders retention.ms segment.bytes

      chronik config get --broker 1 --all --json
    """
    kind, name = _resource(topic, broker)
    entries = run(servers, lambda cluster: _describe(cluster, kind, name, names))
    if names:
        missing = sorted(set(names) - {entry.name for entry in entries})
        if missing:
            whose = f"{kind} {name!r} has" if name else f"all {kind}s together have"
            raise CommandFailed(f"{whose} no config {missing[0]!r}: --all shows all there are")
    elif not everything:
        entries = [entry for entry in entries if not entry.is_default]
    if as_json:
        print_json([_plain(entry) for entry in entries])
    elif not entries:
        print("Everything has its default: --all shows what that is.")
    else:
        rows = (
            (
                entry.name,
                "(hidden)" if entry.is_sensitive else entry.value,
                entry.source if entry.has_effect else f"{entry.source}, without effect",
            )
            for entry in entries
        )
        print_table(("name", "value", "from"), rows)


def set_(
    pairs: _Pairs = None,
    topic: _Topic = None,
    broker: _Broker = None,
    unset: _Unset = None,
    dry_run: _DryRun = False,
    servers: Bootstrap = None,
) -> None:
    """Change configs of a topic or a node in a running cluster; they hold at once.

    Examples:

      chronik config set --topic orders retention.ms=86400000 cleanup.policy=delete

      chronik config set --topic orders --unset retention.ms
    """
    kind, name = _resource(topic, broker)
    changes: dict[str, str | None] = {
        **parse_pairs(pairs or (), "config"),
        **dict.fromkeys(unset or (), None),
    }
    if not changes:
        raise CommandFailed("say what to change: NAME=VALUE, or --unset NAME")

    async def work(cluster: Cluster) -> None:
        await _check_node(cluster, kind, name)
        try:
            await _admin(cluster).alter_config(kind, name, changes, validate_only=dry_run)
        except RequestError as error:
            raise _named(error, kind, name) from error

    run(servers, work)
    for key, value in changes.items():
        print(f"{key} back to its default" if value is None else f"{key}={value}")
    if dry_run:
        print("Nothing was changed: leave out --dry-run to do it.")


def _resource(topic: str | None, broker: str | None) -> tuple[ResourceType, str]:
    if (topic is None) == (broker is None):
        raise CommandFailed("say whose configs: give --topic or --broker")
    if topic is not None:
        return "topic", topic
    if broker is None or not (broker == "all" or broker.isdecimal()):
        raise CommandFailed(f"--broker {broker!r} is no node's id: write a number, or all")
    return "broker", "" if broker == "all" else broker


def _admin(cluster: Cluster) -> Admin:
    from chronik.client.admin import Admin

    return Admin(cluster)


async def _describe(
    cluster: Cluster, kind: ResourceType, name: str, names: list[str] | None
) -> list[ConfigEntry]:
    await _check_node(cluster, kind, name)
    try:
        return await _admin(cluster).describe_config(kind, name, names)
    except RequestError as error:
        raise _named(error, kind, name) from error


def _named(error: RequestError, kind: str, name: str) -> Exception:
    if kind == "topic" and error.code == ErrorCode.unknown_topic_or_partition:
        return unknown_topic(name)
    return error


async def _check_node(cluster: Cluster, kind: ResourceType, name: str) -> None:
    """A node that is not there would be waited for: say so instead."""
    if kind == "broker" and name and int(name) not in (there := await cluster.node_ids()):
        raise CommandFailed(f"the cluster has no node {name}, only {', '.join(map(str, there))}")


def _plain(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": None if entry.is_sensitive else entry.value,
        "source": entry.source,
        "default": entry.is_default,
        "read_only": entry.is_read_only,
        "sensitive": entry.is_sensitive,
        "has_effect": entry.has_effect,
    }
