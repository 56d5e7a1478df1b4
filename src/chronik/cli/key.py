"""`chronik key`: API keys of HTTP, each with a name, so that one can be revoked without the others."""

from __future__ import annotations

import datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer

from chronik.cli.client import AsJson, Bootstrap, print_json, print_table
from chronik.cli.http import HttpUrl, with_http
from chronik.cli.printable import say

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Make, list and revoke API keys for HTTP.", no_args_is_help=True)
    group.command()(add)
    group.command("list")(list_)
    group.command()(revoke)
    app.add_typer(group, name="key")


def add(
    name: Name,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="may look at everything and change nothing")
    ] = False,
    url: HttpUrl = None,
    servers: Bootstrap = None,
) -> None:
    """Make an API key and print it: it is shown this once.

    Example: chronik key add grafana --read-only > grafana.key
    """
    made: dict[str, Any] = with_http(
        url, servers, lambda http: http.post("/admin/keys", {"name": name, "read_only": read_only})
    )
    print(made["key"])


def list_(as_json: AsJson = False, url: HttpUrl = None, servers: Bootstrap = None) -> None:
    """List the names of keys, what they may do and since when they are there.

    Example: chronik key list
    """
    found = with_http(url, servers, lambda http: http.get("/admin/keys"))["keys"]
    if as_json:
        print_json(found)
        return
    rows = [
        (one["name"], "read only" if one["read_only"] else "full", _time(one["created_ms"])) for one in found
    ]
    print_table(("name", "may", "made"), rows)


def revoke(name: Name, url: HttpUrl = None, servers: Bootstrap = None) -> None:
    """Revoke a key: the next request that carries it is refused.

    Example: chronik key revoke grafana
    """
    with_http(url, servers, lambda http: http.request("DELETE", f"/admin/keys/{quote(name, safe='')}", None))
    say(f"key {name} is revoked")


def _time(ms: int) -> str:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M")
