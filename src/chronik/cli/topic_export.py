"""`chronik topic export` and `import`: one topic in one file, records and their offsets as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chronik.cli.client import Bootstrap, CommandFailed, Timeout, unknown_topic
from chronik.cli.http import HttpUrl, with_http

_Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="which topic", show_default=False)]
_File = Annotated[Path, typer.Argument(metavar="FILE", help="a file of `topic export`", show_default=False)]


def export(
    topic: _Topic, file: _File, url: HttpUrl = None, timeout: Timeout = 60.0, servers: Bootstrap = None
) -> None:
    """Write a topic with its configs and records into a file, as far as it is committed now.

    Examples:

      chronik topic export orders orders.zip
    """
    from chronik.cli.backup import described, take_shown
    from chronik.cli.backup_files import BackupZip

    if file.exists():
        raise CommandFailed(f"{file} exists already: choose another name, or remove it")
    shape = with_http(url, servers, lambda http: http.get("/admin/backup/metadata?with_users=false"))
    wanted = [one for one in shape["topics"] if one["name"] == topic]
    if not wanted:
        raise unknown_topic(topic)
    packed = BackupZip(file, "w")
    try:
        manifest = take_shown(servers, {"topics": wanted, "cluster_id": shape["cluster_id"]}, packed, timeout)
    finally:
        packed.close()
    print(f"{file}: {described(manifest)}")


def import_(
    file: _File,
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="TOPIC", help="another name than it had", show_default=False),
    ] = None,
    url: HttpUrl = None,
    timeout: Timeout = 60.0,
    servers: Bootstrap = None,
) -> None:
    """Make a topic of a file that `chronik topic export` wrote. Records get the offsets that they had.

    Examples:

      chronik topic import orders.zip

      chronik topic import orders.zip --as orders-copy
    """
    from chronik.cli.backup import described, put_shown
    from chronik.cli.backup_files import BackupZip, read_manifest

    packed = BackupZip(file, "r")
    manifest = read_manifest(packed)
    (topic,) = manifest.topics
    names = {topic.name: name or topic.name}
    put_shown(servers, url, packed, manifest, names, timeout)
    print(f"{names[topic.name]}: {described(manifest)}")
