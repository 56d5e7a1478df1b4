"""`chronik search`: full-text search over searchable topics, from the terminal."""

from __future__ import annotations

import datetime
import json
from typing import Annotated, Any

import typer

from chronik.cli.client import AsJson, Bootstrap, CommandFailed
from chronik.cli.http import Http, HttpUrl, with_http
from chronik.cli.printable import printable


def register(app: typer.Typer) -> None:
    app.command()(search)


_Topic = Annotated[
    str, typer.Argument(help="topic to search, or several separated by commas", show_default=False)
]
_Query = Annotated[
    str, typer.Argument(help='words, "a phrase", field:value, total:>100, AND, OR', show_default=False)
]
_Size = Annotated[int, typer.Option("--size", "-n", min=0, max=1000, metavar="N", help="hits to show")]
_From = Annotated[int, typer.Option("--from", min=0, metavar="N", help="number of hits to skip")]
_Newest = Annotated[bool, typer.Option("--newest", help="newest first instead of best first")]
_Refresh = Annotated[
    bool, typer.Option("--refresh", help="wait until everything written by now can be found")
]


def search(
    topic: _Topic,
    query: _Query = "*",
    size: _Size = 10,
    skip: _From = 0,
    newest: _Newest = False,
    refresh: _Refresh = False,
    as_json: AsJson = False,
    url: HttpUrl = None,
    servers: Bootstrap = None,
) -> None:
    """Search topics that have searchable=true. Counts are exact.

    Examples:

      chronik search orders 'express delivery'

      chronik search orders 'customer:ada AND total:>100' --newest

      chronik search orders,payments '"gift wrapped"' --size 50 --json
    """
    body: dict[str, Any] = {
        "from": skip,
        "size": size,
        "refresh": refresh,
        "highlight": {"fields": {"*": {}}},
    }
    body["query"] = {"match_all": {}} if query.strip() == "*" else {"query_string": {"query": query}}
    if newest:
        body["sort"] = [{"@timestamp": "desc"}]

    async def work(http: Http) -> Any:
        return await http.post(f"/{topic}/_search", body)

    answer = with_http(url, servers, work)
    if as_json:
        print(json.dumps(answer, indent=2, ensure_ascii=False))
        return
    _print(answer)
    failed = answer["_shards"]["failures"]
    if failed:
        one = failed[0]
        raise CommandFailed(
            f"{len(failed)} partitions could not be searched ({one['index']}-{one['shard']}: {one['reason']})"
        )


def _print(answer: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    for hit in answer["hits"]["hits"]:
        when = datetime.datetime.fromtimestamp(hit["timestamp_ms"] / 1000, datetime.UTC)
        console.print(
            f"[bold]{escape(hit['_index'])}[/bold] {hit['partition']} @ {hit['offset']}  "
            f"[dim]{when:%Y-%m-%d %H:%M:%S}Z  {escape(printable(hit['key'] or ''))}[/dim]"
        )
        source = hit["_source"]
        text = source if isinstance(source, str) else json.dumps(source, ensure_ascii=False)
        console.print("  " + escape(printable(text)), soft_wrap=True, highlight=not isinstance(source, str))
    total = answer["hits"]["total"]["value"]
    lag = f", {answer['lag']:,} records are not indexed yet" if answer["lag"] else ""
    console.print(f"[dim]{total:,} hits in {answer['took']:.1f} ms{lag}[/dim]")
