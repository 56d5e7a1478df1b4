"""`chronik topic alter`: more partitions, other configs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from chronik.cli.client import AsJson, Bootstrap, CommandFailed, parse_pairs, print_json, run, unknown_topic
from chronik.model import ErrorCode, RequestError

if TYPE_CHECKING:
    from chronik.client import Cluster

_Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="which topic", show_default=False)]
_Partitions = Annotated[
    int | None, typer.Option("--partitions", "-p", min=1, metavar="N", help="how many it has afterwards")
]
_Configs = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="NAME=VALUE", help="a topic config, repeatable"),
]
_Unset = Annotated[
    list[str] | None,
    typer.Option("--unset", metavar="NAME", help="back to the default, repeatable"),
]


def alter(
    topic: _Topic,
    partitions: _Partitions = None,
    configs: _Configs = None,
    unset: _Unset = None,
    as_json: AsJson = False,
    servers: Bootstrap = None,
) -> None:
    """Give a topic more partitions, or change its configs; both hold at once.

    Partitions cannot be taken away. Records with a key go to another partition once there are more.

    Examples:

      chronik topic alter orders --partitions 12

      chronik topic alter orders --config retention.ms=86400000 --unset cleanup.policy
    """
    changes: dict[str, str | None] = {
        **parse_pairs(configs or (), "config"),
        **dict.fromkeys(unset or (), None),
    }
    if partitions is None and not changes:
        raise CommandFailed("say what to change: --partitions, --config or --unset")
    before = run(servers, lambda cluster: _alter(cluster, topic, partitions, changes))
    if as_json:
        print_json({"topic": topic, "partitions": partitions or before, "configs": changes})
        return
    if partitions is not None:
        print(f"{topic} has {partitions} partitions now, {before} before")
    for name, value in changes.items():
        print(f"{name} back to its default" if value is None else f"{name}={value}")


async def _alter(cluster: Cluster, topic: str, partitions: int | None, changes: dict[str, str | None]) -> int:
    """Configs come first, checked by the cluster, so that a mistake in them adds no partitions."""
    from chronik.client.admin import Admin

    admin = Admin(cluster)
    try:
        (info,) = await admin.describe_topics([topic])
        before = len(info.partitions)
        if partitions is not None and partitions <= before:
            raise CommandFailed(f"{topic} has {before} partitions: give --partitions a larger number")
        if changes:
            await admin.alter_config("topic", topic, changes)
        if partitions is not None:
            await admin.create_partitions(topic, partitions)
    except RequestError as error:
        if error.code == ErrorCode.unknown_topic_or_partition:
            raise unknown_topic(topic) from None
        raise
    return before
