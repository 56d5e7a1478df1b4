"""`chronik user`: who can log in with a password."""

from __future__ import annotations

from typing import Annotated

import typer

from chronik.cli.client import AsJson, Bootstrap, CommandFailed, print_json, print_table, run
from chronik.cli.passwords import PasswordFile, read_password
from chronik.cli.printable import say
from chronik.security.scram import ITERATIONS_DEFAULT, ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS

Name = Annotated[str, typer.Argument(metavar="USER", show_default=False)]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Add, list and delete users, who log in with a password.", no_args_is_help=True)
    group.command()(add)
    group.command("list")(list_)
    group.command()(delete)
    app.add_typer(group, name="user")


def add(
    user: Name,
    password_file: PasswordFile = None,
    mechanisms: Annotated[
        list[str] | None,
        typer.Option("--mechanism", metavar="NAME", help="SCRAM-SHA-256 or SCRAM-SHA-512; by default both"),
    ] = None,
    iterations: Annotated[
        int, typer.Option("--iterations", min=ITERATIONS_MIN, max=ITERATIONS_MAX, metavar="N")
    ] = ITERATIONS_DEFAULT,
    servers: Bootstrap = None,
) -> None:
    """Add a user, or give one a new password.

    Example: chronik user add alice
    """
    from chronik.client.security import put_user

    names = mechanisms or list(MECHANISMS)
    for name in names:
        if name not in MECHANISMS:
            raise CommandFailed(f"{name} is no mechanism: {' or '.join(MECHANISMS)}")
    password = read_password(password_file, user)
    run(servers, lambda cluster: put_user(cluster, user, password, mechanisms=names, iterations=iterations))
    say(f"user {user} can log in with {' and '.join(names)}")


def list_(as_json: AsJson = False, servers: Bootstrap = None) -> None:
    """List users and how they log in."""
    from chronik.client.security import list_users

    users = run(servers, list_users)
    if as_json:
        print_json(users)
        return
    rows = [
        (user, name, count) for user, held in sorted(users.items()) for name, count in sorted(held.items())
    ]
    print_table(("user", "mechanism", "#iterations"), rows)


def delete(user: Name, servers: Bootstrap = None) -> None:
    """Delete a user. Connections that are open stay; ACLs that name the user stay too."""
    from chronik.client.security import delete_user

    run(servers, lambda cluster: delete_user(cluster, user))
    say(f"user {user} is deleted")
