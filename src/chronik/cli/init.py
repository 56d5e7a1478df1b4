"""`chronik init`: the first user of a cluster, before its first start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chronik.cli.passwords import PasswordFile, read_password


def register(app: typer.Typer) -> None:
    app.command()(init)


def init(
    admin: Annotated[str, typer.Option("--admin", metavar="NAME", help="name of the first user")],
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="data directory of the node")
    ] = Path("chronik-data"),
    password_file: PasswordFile = None,
) -> None:
    """Name the first user of a cluster, who may do everything. Run it for one node, before its first start.

    The node makes the user when it has joined a cluster that has none.

    Example: chronik init --admin admin --data-dir /var/lib/chronik
    """
    from chronik.server.first_user import write_first_user

    path = write_first_user(data_dir, admin, read_password(password_file, admin))
    print(f"{path} written: `chronik start --data-dir {data_dir}` makes user {admin} from it")
