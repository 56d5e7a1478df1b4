"""`chronik quota`: how much users and clients may take."""

from __future__ import annotations

from typing import Annotated

import typer

from chronik.cli.client import AsJson, Bootstrap, CommandFailed, parse_pairs, print_json, print_table, run
from chronik.security.quotas import IP_KEYS, USER_KEYS, Entity, check_quota

DEFAULT = "default"
User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="a user, or default")]
ClientId = Annotated[str | None, typer.Option("--client-id", metavar="NAME", help="a client id, or default")]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="an address, or default")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Set and list quotas of users, clients and addresses.", no_args_is_help=True)
    group.command("set")(set_)
    group.command("list")(list_)
    app.add_typer(group, name="quota")


def _entity(user: str | None, client_id: str | None, ip: str | None) -> Entity:
    given = (("client-id", client_id), ("ip", ip), ("user", user))
    parts = tuple((kind, None if name == DEFAULT else name) for kind, name in given if name is not None)
    if not parts:
        raise CommandFailed("name --user, --client-id, both, or --ip")
    return parts


def set_(
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...", help=f"{', '.join((*USER_KEYS, *IP_KEYS))}; no value removes"
        ),
    ],
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    servers: Bootstrap = None,
) -> None:
    """Set quotas; `name=` without a value removes one.

    Example: chronik quota set --user alice producer_byte_rate=1048576
    """
    from chronik.client.security import set_quota

    entity, parsed = _entity(user, client_id, ip), {}
    for name, text in parse_pairs(values, "quota").items():
        try:
            parsed[name] = float(text) if text else None
            check_quota(entity, name, parsed[name])
        except ValueError as error:
            raise CommandFailed(f"{name}={text}: {error}") from None
    run(servers, lambda cluster: set_quota(cluster, entity, parsed))
    print("quotas are set")


def list_(as_json: AsJson = False, servers: Bootstrap = None) -> None:
    """List all quotas."""
    from chronik.client.security import list_quotas

    quotas = run(servers, list_quotas)
    rows = [
        (
            " ".join(f"{kind}={DEFAULT if name is None else name}" for kind, name in entity),
            key,
            f"{value:g}",
        )
        for entity, values in sorted(quotas.items(), key=repr)
        for key, value in sorted(values.items())
    ]
    if as_json:
        print_json([{"entity": entity, "quota": key, "value": float(value)} for entity, key, value in rows])
    else:
        print_table(("entity", "quota", "#value"), rows)
