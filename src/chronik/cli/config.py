"""`chronik config`: `show` a node's own settings; `get` and `set`, in `config_live`, ask a cluster."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from chronik.cli import config_live
from chronik.cli.settings import CONFIG_OPTION, load, plain, with_settings
from chronik.config import Address, Peer
from chronik.config_sources import Resolved


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Look at settings; see and change configs of topics and nodes.", no_args_is_help=True
    )
    group.command()(with_settings(show))
    group.command("get")(config_live.get)
    group.command("set")(config_live.set_)
    app.add_typer(group, name="config")


def show(
    config: Annotated[Path | None, CONFIG_OPTION] = None,
    as_json: Annotated[bool, typer.Option("--json", help="for scripts")] = False,
    *,
    flags: dict[str, object],
) -> None:
    """Show every setting, its value and where it came from.

    Takes what `chronik start` takes, so it shows what a start would use.

    Example: chronik config show --config cluster.toml --node-id 2
    """
    resolved = load(flags, config)
    if as_json:
        print(json.dumps(as_plain(resolved), indent=2))
    else:
        print_table(resolved)
    for warning in resolved.warnings:
        print(f"warning: {warning}", file=sys.stderr)


def as_plain(resolved: Resolved) -> dict[str, object]:
    plain: dict[str, object] = {
        setting.name: {
            "value": value if isinstance(value, bool | int | None) else str(value),
            "origin": origin,
        }
        for setting, value, origin in resolved.rows()
    }
    plain["peers"] = [plain_peer(peer) for peer in resolved.settings.peers]
    return plain


def plain_peer(peer: Peer) -> dict[str, object]:
    values = ((field.name, getattr(peer, field.name)) for field in dataclasses.fields(peer))
    return {name: str(value) if isinstance(value, Address) else value for name, value in values}


def print_table(resolved: Resolved) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("setting", "value", "from"):
        table.add_column(heading, overflow="fold")
    for setting, value, origin in resolved.rows():
        table.add_row(setting.name, plain(value), origin, style="dim" if origin == "default" else "")
    for peer in resolved.settings.peers:
        addresses = ", ".join(f"{name} {value}" for name, value in plain_peer(peer).items() if name != "id")
        table.add_row(f"peer {peer.id}", addresses, resolved.origins["peers"])
    Console().print(table)
