"""`chronik topic reassign`: move replicas by a plan that is shown first; watch it, or give it up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from chronik.cli.client import (
    AsJson,
    Bootstrap,
    CommandFailed,
    Timeout,
    print_json,
    print_table,
    progress,
    run,
    unknown_topic,
)
from chronik.model import NodeId, RequestError, TopicPartition
from chronik.words import counted

if TYPE_CHECKING:
    from chronik.client import Cluster
    from chronik.cluster.rebalance import Move

LOOK_SECONDS: Final = 0.2

_Topics = Annotated[
    list[str] | None, typer.Argument(metavar="[TOPIC...]", help="which topics (default: all)")
]
_Drain = Annotated[
    list[int] | None,
    typer.Option("--drain", metavar="NODE", help="take all replicas away from this node, repeatable"),
]
_Cancel = Annotated[bool, typer.Option("--cancel", help="give up moves that are under way")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]
_NoWait = Annotated[bool, typer.Option("--no-wait", help="return when the moves have begun")]


def reassign(
    topics: _Topics = None,
    drain: _Drain = None,
    cancel: _Cancel = False,
    yes: _Yes = False,
    no_wait: _NoWait = False,
    timeout: Timeout = 3600.0,
    as_json: AsJson = False,
    servers: Bootstrap = None,
) -> None:
    """Spread the replicas of topics evenly over the nodes, or take them away from some.

    The plan is shown and nothing moves before you agree. Replicas stay in as many racks as they are in,
    or get into more; none is dropped before its successor is in sync. Ctrl-C stops watching, the moves go on.

    Examples:

      chronik topic reassign

      chronik topic reassign orders --drain 3 --yes

      chronik topic reassign --cancel
    """
    if cancel:
        _give_up(servers, topics, as_json=as_json)
        return
    plan = run(servers, lambda cluster: _plan(cluster, topics, drain or ()))
    if as_json:
        print_json([{"partition": str(one.tp), "before": one.before, "after": one.target} for one in plan])
    elif plan:
        print_table(("partition", "replicas now", "replicas then"), plan)
    if not plan:
        if not as_json:
            print("nothing to move")
        return
    if not yes:
        typer.confirm(f"Move {counted(len(plan), 'partition')}?", abort=True, err=True)
    targets = {one.tp: one.target for one in plan}

    async def work(cluster: Cluster) -> None:
        from chronik.client.reassigning import alter_reassignments

        await alter_reassignments(cluster, targets)
        if not no_wait:
            await _watch(cluster, targets, timeout)

    run(servers, work, timeout=max(timeout, 1.0))
    if not as_json:
        print(f"{counted(len(plan), 'partition')} {'on the move' if no_wait else 'moved'}")


async def _plan(cluster: Cluster, topics: Sequence[str] | None, drained: Sequence[NodeId]) -> list[Move]:
    """Move by move; a node that is drained gets nothing of what leaves another."""
    from chronik.cluster.placement import Slot
    from chronik.cluster.rebalance import plan_moves

    known = await cluster.topics(topics or None)
    for name in topics or ():
        if name not in known or not known[name].partitions:
            raise unknown_topic(name)
    nodes = cluster.metadata.nodes
    slots = [Slot(one.node_id, one.rack) for _, one in sorted(nodes.items()) if one.node_id not in drained]
    before = {
        TopicPartition(name, number): one.replicas
        for name, info in sorted(known.items())
        for number, one in info.partitions.items()
    }
    try:
        return plan_moves(before, slots, drained)
    except RequestError as error:
        raise CommandFailed(f"there is no such plan: {error}") from None


async def _watch(
    cluster: Cluster, targets: Mapping[TopicPartition, tuple[NodeId, ...]], timeout: float
) -> None:
    """Wait until none of these partitions is being moved."""
    from chronik.client.reassigning import list_reassignments

    deadline = asyncio.get_running_loop().time() + timeout
    with progress("moving", len(targets), unit="partitions") as show:
        while moving := targets.keys() & (await list_reassignments(cluster)).keys():
            show(len(targets) - len(moving))
            if asyncio.get_running_loop().time() > deadline:
                raise CommandFailed(
                    f"{counted(len(moving), 'partition')} of {len(targets)} still on the move: they go on, "
                    "`chronik topic reassign --cancel` gives them up"
                )
            await asyncio.sleep(LOOK_SECONDS)
        show(len(targets))


def _give_up(servers: str | None, topics: Sequence[str] | None, *, as_json: bool) -> None:
    async def work(cluster: Cluster) -> list[TopicPartition]:
        from chronik.client.reassigning import alter_reassignments, list_reassignments

        moving = [tp for tp in await list_reassignments(cluster) if not topics or tp.topic in topics]
        if moving:
            await alter_reassignments(cluster, dict.fromkeys(moving, None))
        return moving

    given_up = run(servers, work)
    if as_json:
        print_json([str(tp) for tp in given_up])
    else:
        print(f"{counted(len(given_up), 'move')} given up" if given_up else "nothing is on the move")
