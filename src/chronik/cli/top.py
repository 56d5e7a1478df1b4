"""`chronik top`: a live view of the nodes in the terminal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chronik.cli.client import Bootstrap
from chronik.cli.http import Http, HttpUrl, with_http
from chronik.words import counted, human_bytes

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS = (
    "#node",
    "state",
    "#records/s",
    "#in/s",
    "#out/s",
    "#requests/s",
    "#connections",
    "#leads",
    "#memory",
)

_Interval = Annotated[
    float, typer.Option("--interval", "-i", metavar="SECONDS", min=0.1, help="how often it looks")
]
_Once = Annotated[bool, typer.Option("--once", help="look twice, print one table, and end")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the cluster and its nodes said at one moment."""

    at_s: float
    cluster: Mapping[str, Any]
    nodes: Mapping[int, Mapping[str, Any]]
    """A NodeReport for each node."""


def register(app: typer.Typer) -> None:
    app.command()(top)


def top(
    interval: _Interval = 2.0, once: _Once = False, url: HttpUrl = None, servers: Bootstrap = None
) -> None:
    """Watch the nodes: records, bytes and requests per second, connections, memory. Ctrl-C ends it.

    Examples:

      chronik top

      chronik top --once --url http://127.0.0.1:6092
    """
    with_http(url, servers, lambda http: _watch(http, interval, once=once))


async def _watch(http: Http, interval: float, *, once: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    before = await _look(http)
    await asyncio.sleep(interval)
    now = await _look(http)
    if once:
        Console().print(_table(before, now))
        return
    with Live(_table(before, now), auto_refresh=False, screen=True) as live:
        while True:
            await asyncio.sleep(interval)
            before, now = now, await _look(http)
            live.update(_table(before, now), refresh=True)


async def _look(http: Http) -> Sample:
    cluster, reports = await http.get("/admin/cluster"), await http.get("/admin/nodes")
    return Sample(
        at_s=time.monotonic(), cluster=cluster, nodes={one["node_id"]: one for one in reports["nodes"]}
    )


def _table(before: Sample, now: Sample) -> Table:
    from rich import box
    from rich.table import Table

    cluster = now.cluster
    title = (
        f"{counted(cluster['topic_count'], 'topic')}, {counted(cluster['partition_count'], 'partition')}, "
        f"{cluster['under_replicated_count']:,} under-replicated, {cluster['offline_count']:,} offline; "
        f"controller: node {cluster['controller_id']}"
    )
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading.removeprefix("#"), justify="right" if heading.startswith("#") else "left")
    leads = {node["node_id"]: node["leader_count"] for node in cluster["nodes"]}
    for row in rows(before, now):
        table.add_row(
            str(row["node"]), row["state"], *_cells(row), str(leads.get(row["node"], 0)), row["memory"]
        )
    return table


def _cells(row: Mapping[str, Any]) -> list[str]:
    def number(value: float | None, show: Any) -> str:
        return "-" if value is None else show(value)

    plain = "{:,.0f}".format
    return [
        number(row["records"], plain),
        number(row["received"], human_bytes),
        number(row["sent"], human_bytes),
        number(row["requests"], plain),
        number(row["connections"], plain),
    ]


def rows(before: Sample, now: Sample) -> list[dict[str, Any]]:
    """One for each node; a rate is None unless the node answered both times and did not restart between."""
    seconds = now.at_s - before.at_s
    found = []
    for node_id, report in sorted(now.nodes.items()):
        status = report["status"]
        earlier = before.nodes.get(node_id, {}).get("status")
        is_same = status and earlier and status["up_seconds"] >= earlier["up_seconds"]

        def rate(key: str, new: Any = status, old: Any = earlier, known: Any = is_same) -> float | None:
            # Records are those of the partitions led here: fewer when leadership moved away.
            return max(0.0, (new[key] - old[key]) / seconds) if known else None

        state = "no answer" if not status else "ready" if status["is_ready"] else "not ready"
        found.append(
            {
                "node": node_id,
                "state": state,
                "records": rate("appended_records"),
                "received": rate("received_bytes"),
                "sent": rate("sent_bytes"),
                "requests": rate("request_count"),
                "connections": status["connections"] if status else None,
                "memory": human_bytes(status["resident_bytes"]) if status else "-",
            }
        )
    return found
