"""`chronik cluster certs`: certificates for the links between nodes."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from chronik.cli.client import CommandFailed


def register(group: typer.Typer) -> None:
    group.command()(certs)


def certs(
    nodes: Annotated[
        str, typer.Option("--nodes", metavar="1,2,...", help="ids of the nodes to make certificates for")
    ],
    cluster_id: Annotated[
        str,
        typer.Option(
            "--cluster-id", metavar="ID", help="the cluster's id; of a running one see `cluster status`"
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="where the files go")] = Path(
        "chronik-certs"
    ),
    days: Annotated[int, typer.Option("--days", metavar="N", min=1, help="how long they are good")] = 365,
) -> None:
    """Make certificates for the links between nodes, and an authority that signs them if DIR has none.

    Each node needs ca.pem and its own two files. ca-key.pem signs further nodes: keep it elsewhere.
    Another DIR makes another authority.

    Example: chronik cluster certs --nodes 1,2,3 --cluster-id orders --out certs
    """
    from chronik.links.authority import CA_FILE, make_certificates

    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", cluster_id):
        raise CommandFailed(f"{cluster_id!r} is no cluster id: letters, digits, '_', '-' and '.' make one")
    ids = [part.strip() for part in nodes.split(",") if part.strip()]
    if not ids or not all(part.isdecimal() and int(part) < 2**31 for part in ids):
        raise CommandFailed(f"--nodes {nodes} is no list of node ids, such as 1,2,3")
    try:
        authority, made = make_certificates(
            out, cluster_id, [int(part) for part in ids], datetime.now(UTC), days
        )
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{out}: {error}") from None
    print(f"{out / CA_FILE} {'made' if authority.is_new else 'used'}")
    for node_id, (cert, key) in zip(ids, made, strict=True):
        print(f"node {node_id}: --node-tls-cert {cert} --node-tls-key {key} --node-tls-ca {out / CA_FILE}")
