"""`chronik backup`: a whole cluster into a directory or an object store and back, without a stop."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chronik.cli.client import (
    AsJson,
    Bootstrap,
    CommandFailed,
    Timeout,
    print_json,
    print_table,
    progress,
    run,
)
from chronik.cli.http import HttpUrl, with_http
from chronik.cli.printable import complain, say
from chronik.cli.settings import CONFIG_OPTION
from chronik.words import counted, human_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chronik.cli.backup_files import BackupFolder, BackupManifest
    from chronik.client import Cluster

Where = Annotated[
    str,
    typer.Argument(
        metavar="DIR|URL",
        help="where the backups lie: a directory, file:///folder or s3://bucket/prefix",
        show_default=False,
    ),
]
NodeConfig = Annotated[Path | None, CONFIG_OPTION]
BackupId = Annotated[
    str | None,
    typer.Option("--backup", metavar="ID", help="which one (default: the newest)", show_default=False),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Back up a cluster and restore it.", no_args_is_help=True)
    group.command()(create)
    group.command("list")(list_)
    group.command()(verify)
    group.command()(restore)
    app.add_typer(group, name="backup")


def create(
    where: Where,
    config: NodeConfig = None,
    url: HttpUrl = None,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
    servers: Bootstrap = None,
) -> None:
    """Back up topics, records, group offsets, users, ACLs and quotas while the cluster works.

    Records are copied up to where each partition ended at the start. If there is a backup of the same topics
    already, only what came since is copied. Passwords are kept as the cluster keeps them, never in clear:
    where ACLs decide, that takes a super user or a full API key. Endpoint, region and credentials of an
    object store are the settings object_store_*, from the environment or --config.

    Examples:

      chronik backup create /backups/orders

      chronik backup create s3://backups/orders

      chronik backup create /backups/orders -b 10.0.0.1:9092 --url https://10.0.0.1:6092
    """
    from chronik.cli.backup_objects import open_place

    with open_place(where, config) as place:
        shape = with_http(url, servers, lambda http: http.get("/admin/backup/metadata"))
        manifest = take_shown(servers, shape, place, timeout)
    if as_json:
        print_json(_row(manifest))
    else:
        print(f"backup {manifest.backup_id}: {described(manifest)}")


def take_shown(
    servers: str | None, shape: Mapping[str, Any], folder: BackupFolder, timeout: float
) -> BackupManifest:
    from chronik.cli.backup_take import take

    async def work(cluster: Cluster) -> BackupManifest:
        with progress("backing up", None) as show:
            return await take(cluster, shape, folder, lambda done, _total: show(done))

    return run(servers, work, timeout=timeout)


def described(manifest: BackupManifest) -> str:
    return (
        f"{counted(len(manifest.topics), 'topic')}, {counted(manifest.offset_count, 'offset')}, "
        f"{human_bytes(manifest.size_bytes)}, {counted(len(manifest.groups), 'group')}"
    )


def _row(manifest: BackupManifest) -> dict[str, Any]:
    return {
        "backup": manifest.backup_id,
        "created": datetime.fromtimestamp(manifest.created_ms / 1000, UTC).isoformat(timespec="seconds"),
        "cluster": manifest.cluster_id,
        "topics": len(manifest.topics),
        "offsets": manifest.offset_count,
        "bytes": manifest.size_bytes,
        "groups": len(manifest.groups),
    }


def list_(where: Where, config: NodeConfig = None, as_json: AsJson = False) -> None:
    """List the backups that lie in a place, oldest first.

    Examples:

      chronik backup list /backups/orders
    """
    from chronik.cli.backup_files import manifest_ids, read_manifest
    from chronik.cli.backup_objects import open_place

    with open_place(where, config) as place:
        rows = [_row(read_manifest(place, backup_id)) for backup_id in manifest_ids(place)]
    if as_json:
        print_json(rows)
    else:
        shown = [(*row.values(),) for row in rows]
        print_table(
            ("backup", "created", "cluster", "#topics", "#offsets", "#bytes", "#groups"), shown, title=None
        )


def verify(
    where: Where, backup_id: BackupId = None, config: NodeConfig = None, as_json: AsJson = False
) -> None:
    """Read a whole backup and check every file against its checksums; exit code 1: damage.

    Examples:

      chronik backup verify /backups/orders
    """
    from chronik.cli.backup_files import problems, read_manifest
    from chronik.cli.backup_objects import open_place

    found = []
    with open_place(where, config) as place:
        manifest = read_manifest(place, backup_id)
        pieces = sum(1 for _ in manifest.pieces())
        with progress("checking", pieces, unit="files", enabled=not as_json) as show:
            for number, problem in enumerate(problems(place, manifest), 1):
                show(min(number, pieces))
                if problem is not None:
                    found.append(problem)
    if as_json:
        print_json({**_row(manifest), "files": pieces, "problems": found})
    else:
        for problem in found:
            say(problem)
        state = counted(len(found), "problem") if found else "no damage"
        print(f"backup {manifest.backup_id}: {counted(pieces, 'file')}, {described(manifest)}: {state}")
    if found:
        raise typer.Exit(1)


def restore(
    where: Where,
    backup_id: BackupId = None,
    go_on: Annotated[
        bool, typer.Option("--continue", help="go on with a restore that was interrupted")
    ] = False,
    config: NodeConfig = None,
    url: HttpUrl = None,
    timeout: Timeout = 60.0,
    servers: Bootstrap = None,
) -> None:
    """Put a backup into a cluster that has none of its topics. Records get the offsets that they had.

    Users, ACLs, quotas and configs are added to what is there; groups go on where they were.

    Examples:

      chronik backup restore /backups/orders -b 10.0.0.9:9092

      chronik backup restore /backups/orders --backup 20260101T120000.000Z
    """
    from chronik.cli.backup_files import read_manifest
    from chronik.cli.backup_objects import open_place
    from chronik.cli.backup_restore import as_named

    with open_place(where, config) as place:
        manifest = read_manifest(place, backup_id)
        put_shown(servers, url, place, manifest, as_named(manifest.topics), timeout, go_on=go_on)
    print(f"backup {manifest.backup_id} restored: {described(manifest)}")


def put_shown(
    servers: str | None,
    url: str | None,
    folder: BackupFolder,
    manifest: BackupManifest,
    names: Mapping[str, str],
    timeout: float,
    *,
    go_on: bool = False,
) -> None:
    from chronik.cli.backup_restore import make_topics, put_groups, put_records, put_shape
    from chronik.cli.http import find_http

    http = find_http(url, servers)

    async def work(cluster: Cluster) -> None:
        for sentence in await make_topics(cluster, manifest, names, go_on=go_on):
            complain(f"chronik: {sentence}")
        await put_shape(http, manifest)
        with progress("restoring", manifest.size_bytes, unit="bytes") as show:
            await put_records(cluster, http, folder, manifest, names, show)
        await put_groups(cluster, manifest, names)

    try:
        run(servers, work, timeout=timeout)
    except CommandFailed as error:
        raise CommandFailed(f"the restore stopped: {error}") from None
