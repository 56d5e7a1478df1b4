"""`chronik upgrade`: which releases the nodes run, and the step after which none of them goes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chronik.cli.client import AsJson, Bootstrap, CommandFailed, print_json, print_table, run
from chronik.metadata.levels import FEATURE, LEVEL_FIRST, LEVELS
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
        print_json(found)
        return
    rows = [
        (node["node"], node["release"], f"{node['levels'][0]} to {node['levels'][1]}")
        for node in found["nodes"]
    ]
    print_table(("#node", "release", "levels"), rows)
    print(f"the cluster is at level {found['level']}{_released(found['level'])}: {_next(found)}")


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
    before, level = found["level"], found["highest"]
    if level <= before:
        raise CommandFailed(f"the cluster is at level {before} already: {_next(found)}")
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


async def _look(cluster: Cluster) -> dict[str, Any]:
    from chronik.client.features import features_of

    nodes: list[dict[str, Any]] = []
    level = LEVEL_FIRST
    for node_id in await cluster.node_ids():
        features = await features_of(cluster, node_id)
        levels = features.supported.get(FEATURE, (LEVEL_FIRST, LEVEL_FIRST))
        level = max(level, features.finalized.get(FEATURE, LEVEL_FIRST))
        nodes.append({"node": node_id, "levels": list(levels), "release": _release(levels[1])})
    return {"level": level, "highest": min(node["levels"][1] for node in nodes), "nodes": nodes}


async def _raise(cluster: Cluster, level: int, *, dry_run: bool) -> None:
    from chronik.client.features import raise_feature

    try:
        await raise_feature(cluster, FEATURE, level, validate_only=dry_run)
    except RequestError as error:
        if error.code != ErrorCode.invalid_update_version:
            raise
        raise CommandFailed(f"the upgrade cannot be finalized: {error}") from None


def _release(level: int) -> str:
    return LEVELS[level][0] if level in LEVELS else "newer than this command line"


def _released(level: int) -> str:
    return f" (release {LEVELS[level][0]})" if level in LEVELS else ""


def _next(found: Mapping[str, Any]) -> str:
    newest = max(node["levels"][1] for node in found["nodes"])
    behind = [str(node["node"]) for node in found["nodes"] if node["levels"][1] < newest]
    if behind:
        noun = "node" if len(behind) == 1 else "nodes"
        return f"{noun} {', '.join(behind)} can be upgraded, or the others taken back"
    if newest > found["level"]:
        return "all nodes can do more, `chronik upgrade finalize` raises it"
    return "there is nothing to finalize"
