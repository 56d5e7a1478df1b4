"""`chronik cluster status`: how the nodes of a local cluster are doing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from chronik.cli.client import AsJson, print_json, print_table
from chronik.cli.cluster import DEFAULT_DIR, DataDir, key_headers, process, read
from chronik.model import NO_LEADER, NodeId
from chronik.words import counted

if TYPE_CHECKING:
    from chronik.local import ClusterLayout, ProbedNode

NOT_HEALTHY = 1
"""Exit code when something is missing, so that scripts can wait for a healthy cluster."""


def register(group: typer.Typer) -> None:
    group.command()(status)


def status(data_dir: DataDir = DEFAULT_DIR, as_json: AsJson = False) -> None:
    """Show the nodes, who leads, how far the metadata log is, what is under-replicated.

    Exit code 0 if every node answers and every partition has a leader and all its replicas in sync, else 1.

    Examples:

      chronik cluster status

      chronik cluster status --json | jq .controller
    """
    found = gather(read(data_dir))
    if as_json:
        print_json(found)
    else:
        show(found, data_dir)
    if not found["healthy"]:
        raise typer.Exit(NOT_HEALTHY)


def gather(layout: ClusterLayout) -> dict[str, Any]:
    from chronik.local import look

    views = asyncio.run(look(layout.peers, details=True, headers=key_headers(layout)))
    best = max(views, key=lambda view: (_term(view), view.answers, view.controller_id))
    partitions = [(topic.name, partition) for topic in best.topics for partition in topic.partitions]
    led: dict[NodeId, int] = {}
    for _, partition in partitions:
        led[partition.leader_id] = led.get(partition.leader_id, 0) + 1
    short = [
        {
            "topic": topic,
            "partition": partition.partition_index,
            "leader": partition.leader_id if partition.leader_id >= 0 else None,
            "replicas": list(partition.replica_nodes),
            "isr": list(partition.isr_nodes),
        }
        for topic, partition in partitions
        if len(partition.isr_nodes) < len(partition.replica_nodes) or partition.leader_id < 0
    ]
    nodes = [_node(layout, view, best, led.get(view.node_id, 0)) for view in views]
    controller = best.controller_id if best.controller_id != NO_LEADER else None
    all_well = all(node["state"] == "ready" for node in nodes)
    return {
        "healthy": all_well and not short and controller is not None,
        "controller": controller,
        "bootstrap": layout.bootstrap,
        "topics": len(best.topics),
        "partitions": len(partitions),
        "under_replicated": short,
        "nodes": nodes,
    }


def _term(view: ProbedNode) -> int:
    return int(view.raft["term"]) if view.raft is not None else -1


def _node(layout: ClusterLayout, view: ProbedNode, best: ProbedNode, led: int) -> dict[str, Any]:
    from chronik.local.layout import machine_of

    local = layout.node(view.node_id)
    pid = process(local).pid
    if not view.answers:
        state = "no answer" if pid is not None else "stopped"
    elif view.node_id not in best.brokers:
        state = "not in the cluster"
    else:
        state = "ready"
    raft = view.raft or {}
    return {
        "node": view.node_id,
        "state": state,
        "pid": pid,
        "role": raft.get("role"),
        "leader": None if raft.get("leader_id") in (None, NO_LEADER) else raft["leader_id"],
        "term": raft.get("term"),
        "committed_index": raft.get("last_committed_index"),
        "applied_index": raft.get("last_applied_index"),
        "partitions_led": led,
        "machine": "/".join(machine_of(local.peer)),
        "kafka": str(local.peer.kafka),
        "http": str(local.peer.http) if local.peer.http else None,
    }


def show(found: dict[str, Any], data_dir: Path) -> None:
    keys = ["node", "state", "role", "term", "committed_index", "applied_index", "partitions_led", "kafka"]
    headings = ["#node", "state", "role", "#term", "#committed", "#applied", "#leads", "Kafka"]
    machines = {node["machine"] for node in found["nodes"]}
    if len(machines) < len(found["nodes"]):
        keys.insert(0, "machine")
        headings.insert(0, "machine")
        print(f"{counted(len(machines), 'machine')}, {counted(len(found['nodes']), 'shard')}")
    print_table(headings, ([node[key] for key in keys] for node in found["nodes"]))
    controller = found["controller"]
    leads = f"node {controller} is the controller" if controller is not None else "there is no controller"
    print(
        f"{leads}; {counted(found['topics'], 'topic')}, {counted(found['partitions'], 'partition')}, "
        f"{len(found['under_replicated']):,} under-replicated"
    )
    if found["under_replicated"]:
        columns = ("topic", "partition", "leader", "replicas", "isr")
        rows = ([row[key] for key in columns] for row in found["under_replicated"][:20])
        print_table(("topic", "#partition", "#leader", "replicas", "in sync"), rows)
    if all(node["state"] == "stopped" for node in found["nodes"]):
        print(f"Start it: chronik cluster up --data-dir {data_dir}")
