"""Which nodes a local cluster has, who of them votes, and who has what: `chronik cluster add-node`,
`remove-node`, `promote`, `demote`, `rebalance`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chronik.cli.client import AsJson, CommandFailed, Timeout, print_json
from chronik.cli.cluster import (
    DEFAULT_DIR,
    DataDir,
    NodeOption,
    key_headers,
    process,
    read,
    refuse_taken_ports,
    wait_until_ready,
)
from chronik.model import ChronikError
from chronik.words import counted

if TYPE_CHECKING:
    from chronik.local import ClusterLayout


def register(group: typer.Typer) -> None:
    group.command("add-node")(add_node)
    group.command("remove-node")(remove_node)
    group.command()(promote)
    group.command()(demote)
    group.command()(rebalance)


def add_node(data_dir: DataDir = DEFAULT_DIR, timeout: Timeout = 60.0, as_json: AsJson = False) -> None:
    """Add one more node with the next id and the next ports, and start it.

    It gets replicas of new topics at once, of those that exist with `chronik cluster rebalance`.

    Examples:

      chronik cluster add-node

      chronik cluster add-node && chronik cluster rebalance
    """
    layout = read(data_dir)
    peer = layout.next_peer()
    grown = layout.with_node(peer)
    one = process(grown.node(peer.id))
    refuse_taken_ports([one])
    addresses = {name: str(getattr(peer, name)) for name in ("kafka", "wal", "raft", "http")}
    call(layout, "/admin/add-node", {"node_id": peer.id, **addresses}, timeout)
    grown.write()
    one.node.mark_joined()
    one.start()
    wait_until_ready(grown, [one], timeout, expected=[peer.id])
    if as_json:
        print_json({"node": peer.id, **addresses})
    else:
        print(f"node {peer.id} added, Kafka on {peer.kafka}: `chronik cluster rebalance` gives it replicas")


def remove_node(
    node: NodeOption,
    data_dir: DataDir = DEFAULT_DIR,
    force: Annotated[
        bool, typer.Option("--force", help="even if its replicas cannot be moved away first")
    ] = False,
    timeout: Timeout = 600.0,
) -> None:
    """Move everything away from a node, take it out of the cluster, and stop it. Its data stays on disk.

    Examples:

      chronik cluster remove-node --node 4
    """
    layout = read(data_dir)
    one = process(layout.node(node))
    if len(layout.peers) == 1:
        raise CommandFailed("this is the cluster's last node: `chronik cluster down` stops it")
    body = {"node_id": node, "force": force}
    answer = call(layout.without_node(node), "/admin/remove-node", body, timeout)
    layout.without_node(node).write()
    if one.is_running:
        one.stop()
    print(answer.get("message") or f"node {node} removed")


NodeArgument = Annotated[int, typer.Argument(help="the node's id", min=0)]


def promote(node: NodeArgument, data_dir: DataDir = DEFAULT_DIR, timeout: Timeout = 60.0) -> None:
    """Have a node vote on metadata; where enough nodes do, it takes the place of another one.

    Nodes that do not vote observe: they follow the metadata log, and nobody waits for them. An observer also
    takes the place of a voter that is gone for good (`voter_replace_ms`) without being asked.

    Examples:

      chronik cluster promote 4
    """
    print(call(read(data_dir), "/admin/promote-node", {"node_id": node}, timeout)["message"])


def demote(node: NodeArgument, data_dir: DataDir = DEFAULT_DIR, timeout: Timeout = 60.0) -> None:
    """Have a node only observe metadata; another one votes in its place.

    Examples:

      chronik cluster demote 1
    """
    print(call(read(data_dir), "/admin/demote-node", {"node_id": node}, timeout)["message"])


def rebalance(
    data_dir: DataDir = DEFAULT_DIR,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only count what would move")] = False,
    timeout: Timeout = 600.0,
    as_json: AsJson = False,
) -> None:
    """Spread replicas and leaders evenly over the nodes; returns when everything has moved.

    Examples:

      chronik cluster rebalance --dry-run

      chronik cluster rebalance
    """
    answer = call(read(data_dir), "/admin/rebalance", {"dry_run": dry_run}, timeout)
    if as_json:
        print_json(answer)
    else:
        moves = int(answer.get("moves", 0))
        verb = "would move" if dry_run else "moved"
        print(f"{counted(moves, 'replica')} {verb}" if moves else "nothing to move")


def call(layout: ClusterLayout, path: str, body: object, timeout: float) -> Mapping[str, Any]:
    """Have the first node that answers do it; nodes pass it on to the controller themselves."""
    from chronik.local.probe import ask_http

    headers = key_headers(layout)
    running = [node for node in layout.nodes if process(node).is_running]
    if not running:
        raise CommandFailed(f"no node runs: `chronik cluster up --data-dir {layout.folder}` starts them")

    async def ask() -> Mapping[str, Any]:
        return await ask_http(running[0].peer, "POST", path, body, headers=headers, timeout_s=timeout) or {}

    try:
        return asyncio.run(ask())
    except ChronikError as error:
        raise CommandFailed(f"node {running[0].id} refused: {error}") from None
