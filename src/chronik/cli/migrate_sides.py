"""The two sides of a migration: options that name them, what is chosen of them, one run with both."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from chronik.cli import migrate_config
from chronik.cli.client import CommandFailed, run
from chronik.cli.migrate_config import GROUPS_EXCLUDED, TOPICS_EXCLUDED, Choice, Side
from chronik.config_sources import bootstrap, client_config, environment

if TYPE_CHECKING:
    from chronik.cli.migrate_topics import OldTopic
    from chronik.client import ClientOptions, Cluster

T = TypeVar("T")

REPLICAS: Final = 3

From = Annotated[
    str,
    typer.Option("--from", metavar="HOST:PORT,...", help="the cluster to move away from", show_default=False),
]
FromConfig = Annotated[
    Path | None,
    typer.Option(
        "--from-config",
        metavar="FILE",
        help="client.properties for that cluster: protocol, certificates, login",
    ),
]
Topics = Annotated[
    str, typer.Option("--topics", metavar="REGEX,...", help="names of topics; internal ones are left out")
]
GroupNames = Annotated[str, typer.Option("--groups", metavar="REGEX,...", help="names of consumer groups")]
Replication = Annotated[
    int | None,
    typer.Option(
        "--replication-factor",
        "-r",
        min=1,
        metavar="N",
        help="of the new topics [dim](default: 3, or all nodes)[/dim]",
    ),
]


def choices(topics: str, groups: str) -> tuple[Choice, Choice]:
    try:
        return (
            migrate_config.choice(topics, TOPICS_EXCLUDED),
            migrate_config.choice(groups, GROUPS_EXCLUDED),
        )
    except re.error as error:
        raise CommandFailed(f"{error.pattern!r} is no regular expression: {error}") from None


async def wanted_topics(old: Cluster, topics: Choice) -> list[OldTopic]:
    from chronik.cli.migrate_topics import old_topics

    found = await old_topics(old, topics)
    if not found:
        raise CommandFailed(
            "the old cluster has no topic of these names: `chronik topic list -b` shows those it has"
        )
    return found


async def replicas_of(new: Cluster, wanted: int | None) -> int:
    nodes = len(await new.node_ids())
    if wanted is not None and wanted > nodes:
        raise CommandFailed(f"--replication-factor {wanted} needs as many nodes, and there are {nodes}")
    return wanted or min(REPLICAS, nodes)


def properties_of(
    source: str,
    source_config: Path | None,
    servers: str | None,
    topics: Choice,
    groups: Choice,
    replicas: int,
    wanted: Sequence[OldTopic],
) -> dict[str, str]:
    new = Side(bootstrap=bootstrap(servers, environment()), properties=_read(client_config(environment())))
    return migrate_config.mirror_properties(
        Side(bootstrap=source, properties=_read(source_config)),
        new,
        topics=topics,
        groups=groups,
        replication_factor=replicas,
        partitions=sum(one.partitions for one in wanted),
    )


def _read(path: Path | None) -> dict[str, str]:
    from chronik.client.properties import read_properties

    return {} if path is None else read_properties(path)


def with_both(
    source: str,
    source_config: Path | None,
    servers: str | None,
    work: Callable[[Cluster, Cluster], Awaitable[T]],
    *,
    timeout: float = 60.0,
) -> T:
    """Run a command's work with both clusters behind it."""

    async def on_new(new: Cluster) -> T:
        from chronik.client import Cluster, Unreachable, parse_bootstrap
        from chronik.client.properties import secured

        options: ClientOptions = secured(new.options, _read(source_config))
        try:
            addresses = parse_bootstrap(source)
        except ValueError as error:
            raise CommandFailed(f"--from: {error}") from None
        async with Cluster(addresses, options) as old:
            try:
                await old.probe()
            except Unreachable as error:
                raise CommandFailed(f"--from: {error}") from None
            return await work(old, new)

    return run(servers, on_new, timeout=timeout)
