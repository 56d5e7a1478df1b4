"""`chronik cluster`: a cluster on this machine, its nodes in the background."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from chronik.cli.client import AsJson, CommandFailed, Timeout, print_json
from chronik.config_sources import api_key, environment
from chronik.model import ChronikError
from chronik.words import counted

if TYPE_CHECKING:
    from chronik.local import ClusterLayout, LocalNode, NodeProcess

DEFAULT_DIR: Final = Path("chronik-cluster")
NODES_MAX: Final = 99

DataDir: TypeAlias = Annotated[
    Path, typer.Option("--data-dir", "-d", metavar="DIR", help="where the cluster keeps everything")
]
NodeOption: TypeAlias = Annotated[
    int, typer.Option("--node", "-n", metavar="N", min=0, help="id of the node", show_default=False)
]


def register(app: typer.Typer) -> None:
    from chronik.cli import cluster_certs, cluster_members, cluster_status

    group = typer.Typer(help="Run a cluster on this machine.", no_args_is_help=True)
    for command in (up, down, kill, stop, restart):
        group.command()(command)
    cluster_status.register(group)
    cluster_members.register(group)
    cluster_certs.register(group)
    app.add_typer(group, name="cluster")


def up(
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", metavar="N", min=1, max=NODES_MAX, help="how many nodes [dim](default: 3)[/dim]"
        ),
    ] = None,
    data_dir: DataDir = DEFAULT_DIR,
    kafka_port: Annotated[
        int | None, typer.Option(metavar="N", help="of the first node [dim](default: 9092)[/dim]")
    ] = None,
    wal_port: Annotated[
        int | None, typer.Option(metavar="N", help="of the first node [dim](default: 9291)[/dim]")
    ] = None,
    raft_port: Annotated[
        int | None, typer.Option(metavar="N", help="of the first node [dim](default: 5001)[/dim]")
    ] = None,
    http_port: Annotated[
        int | None, typer.Option(metavar="N", help="of the first node [dim](default: 10001)[/dim]")
    ] = None,
    rack: Annotated[
        str | None,
        typer.Option("--rack", metavar="A,B,...", help="where the nodes of a new cluster stand, in turn"),
    ] = None,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
) -> None:
    """Start a cluster in the background; returns when every node is ready.

    Each next node takes the next port of each kind. A second `up` starts the nodes that do not run.
    Variables such as CHRONIK_WAL_PROFILE reach every node.

    Examples:

      chronik cluster up

      chronik cluster up --nodes 5 --data-dir /tmp/five --kafka-port 19092

      chronik cluster up --rack a,b,c
    """
    ports = {"kafka": kafka_port, "wal": wal_port, "raft": raft_port, "http": http_port}
    given = {name: port for name, port in ports.items() if port is not None}
    racks = tuple(filter(None, map(str.strip, (rack or "").split(","))))
    layout = open_or_make(data_dir, nodes, given, racks)
    processes = [process(node) for node in layout.nodes]
    idle = [one for one in processes if not one.is_running]
    refuse_taken_ports(idle)
    try:
        layout.write()
    except OSError as error:
        raise CommandFailed(f"{data_dir}: {(error.strerror or str(error)).lower()}") from None
    began = time.monotonic()
    for one in idle:
        one.start()
    wait_until_ready(layout, processes, timeout)
    if as_json:
        print_json(summary(layout))
        return
    took = f"{time.monotonic() - began:.1f} s"
    if idle:
        print(f"{counted(len(processes), 'node')} ready after {took}")
    else:
        print(f"{counted(len(processes), 'node')} ran already")
    for node in layout.nodes:
        print(f"  node {node.id}  Kafka {node.peer.kafka}  HTTP {node.peer.http}  log {node.log_file}")
    print(f"Use it: chronik topic list --bootstrap {layout.bootstrap}")
    print(f"Stop it: chronik cluster down --data-dir {data_dir}")


def down(
    data_dir: DataDir = DEFAULT_DIR,
    timeout: Timeout = 30.0,
    force: Annotated[bool, typer.Option("--force", help="kill what does not stop in time")] = False,
) -> None:
    """Stop every node in order (SIGTERM). The data stays.

    Examples:

      chronik cluster down

      chronik cluster down --data-dir /tmp/five --timeout 5 --force
    """
    from chronik.local import ProcessFailed

    layout = read(data_dir)
    running = [one for one in map(process, layout.nodes) if one.is_running]
    for one in running:
        one.signal(signal.SIGTERM)
    deadline = time.monotonic() + timeout
    for one in running:
        try:
            one.wait(max(0.1, deadline - time.monotonic()))
        except ProcessFailed:
            if not force:
                raise CommandFailed(
                    f"node {one.node.id} (process {one.pid}) still runs after {timeout:g} s: "
                    f"its log is {one.node.log_file}, and --force kills it"
                ) from None
            one.kill()
            print(f"node {one.node.id} killed")
    print(f"{counted(len(running), 'node')} stopped" if running else "no node was running")


def kill(node: NodeOption, data_dir: DataDir = DEFAULT_DIR) -> None:
    """Kill a node as a power cut would (SIGKILL).

    Examples:

      chronik cluster kill --node 2
    """
    process(read(data_dir).node(node)).kill()
    print(f"node {node} killed")


def stop(node: NodeOption, data_dir: DataDir = DEFAULT_DIR, timeout: Timeout = 30.0) -> None:
    """Stop a node in order (SIGTERM): what it leads moves to other nodes first.

    Examples:

      chronik cluster stop --node 2
    """
    process(read(data_dir).node(node)).stop(timeout_s=timeout)
    print(f"node {node} stopped")


def restart(node: NodeOption, data_dir: DataDir = DEFAULT_DIR, timeout: Timeout = 60.0) -> None:
    """Stop a node in order if it runs, start it, and wait until the cluster knows it again.

    Examples:

      chronik cluster restart --node 2
    """
    layout = read(data_dir)
    one = process(layout.node(node))
    if one.is_running:
        one.stop(timeout_s=timeout)
    one.start()
    began = time.monotonic()
    wait_until_ready(layout, [one], timeout, expected=(node,))
    print(f"node {node} ready after {time.monotonic() - began:.1f} s")


# --- shared with the other cluster commands ---------------------------------------------------------


def read(data_dir: Path) -> ClusterLayout:
    from chronik.local import ClusterLayout

    return ClusterLayout.read(data_dir)


def key_headers(layout: ClusterLayout) -> dict[str, str]:
    """The API key of the cluster's file or of the environment. Its nodes' addresses are the user's own."""
    key = layout.settings.get("admin_api_key") or api_key(environment())
    return {"x-api-key": str(key)} if key else {}


def process(node: LocalNode) -> NodeProcess:
    from chronik.local import NodeProcess

    return NodeProcess(node)


def open_or_make(
    data_dir: Path, nodes: int | None, ports: dict[str, int], racks: tuple[str, ...] = ()
) -> ClusterLayout:
    """The cluster in this folder; a new one if there is none. What was asked for must fit what is there."""
    from chronik.local import ClusterLayout, FirstPorts
    from chronik.local.layout import CONFIG_NAME, ports_of

    if not (data_dir / CONFIG_NAME).exists():
        _check_ports(ports)
        return ClusterLayout.new(data_dir, nodes or 3, FirstPorts(**ports), racks)
    layout = ClusterLayout.read(data_dir)
    if nodes is not None and nodes != len(layout.peers):
        raise CommandFailed(
            f"{data_dir} holds a cluster of {counted(len(layout.peers), 'node')}: "
            "`chronik cluster add-node` and `remove-node` change that"
        )
    if racks and racks != tuple(peer.rack for peer in layout.peers[: len(racks)]):
        raise CommandFailed(f"{data_dir} holds a cluster with other racks: they stand in its {CONFIG_NAME}")
    kept = ports_of(layout.peers[0])
    for name, port in ports.items():
        if kept.get(name) != port:
            raise CommandFailed(f"{data_dir} holds a cluster whose first {name} port is {kept.get(name)}")
    return layout


def _check_ports(ports: dict[str, int]) -> None:
    for name, port in ports.items():
        if not 1 <= port <= 65_535:
            raise CommandFailed(f"--{name}-port: {port} is outside 1 to 65535")


def refuse_taken_ports(processes: Sequence[NodeProcess]) -> None:
    from chronik.local.layout import taken_port

    found = taken_port(one.node.peer for one in processes)
    if found is not None:
        peer, listener, port = found
        raise CommandFailed(
            f"port {port} ({listener} of node {peer.id}) is taken: is another cluster running? "
            f"--{listener}-port chooses others for a new one"
        )


def wait_until_ready(
    layout: ClusterLayout,
    processes: Sequence[NodeProcess],
    timeout: float,
    *,
    expected: Sequence[int] | None = None,
) -> None:
    from chronik.local import wait_ready

    def check() -> None:
        for one in processes:
            if not one.is_running:
                raise CommandFailed(
                    f"node {one.node.id} did not start ({one.log_tail() or 'it said nothing'}): "
                    f"its log is {one.node.log_file}"
                )

    try:
        ready = wait_ready(
            [one.node.peer for one in processes],
            timeout_s=timeout,
            expected=expected if expected is not None else [peer.id for peer in layout.peers],
            check=check,
        )
        asyncio.run(ready)
    except CommandFailed:
        raise
    except ChronikError as error:
        raise CommandFailed(f"{error}: the logs are in {layout.folder}/node*/node.log") from None


def summary(layout: ClusterLayout) -> dict[str, Any]:
    return {
        "data_dir": str(layout.folder),
        "bootstrap": layout.bootstrap,
        "nodes": [
            {
                "node": node.id,
                "pid": process(node).pid,
                "kafka": str(node.peer.kafka),
                "wal": str(node.peer.wal),
                "raft": str(node.peer.raft),
                "http": str(node.peer.http) if node.peer.http else None,
                "rack": node.peer.rack,
                "log": str(node.log_file),
            }
            for node in layout.nodes
        ],
    }
