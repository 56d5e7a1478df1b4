"""`chronik upgrade`: which releases the nodes run, and the step after which none of them goes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from chronik.cli.client import AsJson, Bootstrap, CommandFailed, print_json, print_table, run
from chronik.doctor.levels import NodeLevels, Upgrade, look_at_levels, released
from chronik.metadata.levels import FEATURE
from chronik.model import ErrorCode, RequestError

if TYPE_CHECKING:
    from chronik.client import Cluster


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="See and finish the upgrade of a cluster.", no_args_is_help=True)
    group.command()(status)
    group.command()(finalize)
    app.add_typer(group, name="upgrade")


def status(as_json: AsJson = False, servers: Bootstrap = None) -> None:
    """Which levels each node can work at, at which one the cluster is, and what to do next.

    A node may go back to the release before as long as the cluster is at that release's level.

    Examples:

      chronik upgrade status
    """
    found = run(servers, _look)
    if as_json:
        nodes = [
            {"node": one.node_id, "levels": [one.low, one.high], "release": _release(one)}
            for one in found.nodes
        ]
        print_json({"level": found.level, "highest": found.highest, "nodes": nodes})
        return
    rows = [(one.node_id, _release(one), f"{one.low} to {one.high}") for one in found.nodes]
    print_table(("#node", "release", "levels"), rows)
    print(f"the cluster is at level {found.level}{_released(found.level)}: {found.next_step}")


def finalize(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only ask whether it could be done")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    as_json: AsJson = False,
    servers: Bootstrap = None,
) -> None:
    """Raise the cluster to the highest level that all its nodes know. There is no way back.

    Do it when all nodes run the new release and you have seen it work: nodes of the release before cannot
    join any more, and no node can be taken back to it.

    Examples:

      chronik upgrade finalize --dry-run

      chronik upgrade finalize --yes
    """
    found = run(servers, _look)
    before, level = found.level, found.highest
    if level <= before:
        raise CommandFailed(f"the cluster is at level {before} already: {found.next_step}")
    if not (dry_run or yes):
        typer.confirm(
            f"Raise the cluster from level {before} to {level}{_released(level)}? No node can go back then",
            abort=True,
            err=True,
        )
    run(servers, lambda cluster: _raise(cluster, level, dry_run=dry_run))
    if as_json:
        print_json({"before": before, "level": level, "dry_run": dry_run})
    else:
        print(f"level {level} {'is possible' if dry_run else 'holds now'}, {before} before")


async def _look(cluster: Cluster) -> Upgrade:
    return await look_at_levels(cluster)


async def _raise(cluster: Cluster, level: int, *, dry_run: bool) -> None:
    from chronik.client.features import raise_feature

    try:
        await raise_feature(cluster, FEATURE, level, validate_only=dry_run)
    except RequestError as error:
        if error.code != ErrorCode.invalid_update_version:
            raise
        raise CommandFailed(f"the upgrade cannot be finalized: {error}") from None


def _released(level: int) -> str:
    name = released(level)
    return "" if name is None else f" (release {name})"


def _release(node: NodeLevels) -> str:
    return released(node.high) or "newer than this command line"
