"""`chronik verify`: look at the data directory of a node that does not run."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from chronik.cli.printable import say
from chronik.model import ChronikError
from chronik.words import counted


class VerifyRefused(ChronikError):
    """The directory cannot be looked at."""


def register(app: typer.Typer) -> None:
    app.command()(verify)


def verify(
    data_dir: Annotated[
        Path,
        typer.Argument(help="data directory of a node that does not run, or a folder that holds several"),
    ],
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="rebuild what the rest of the directory tells (indexes, a checkpoint, batches that the WAL "
            "still holds) and cut torn tails; what is replaced or cut is kept in DIR/verify-aside",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="for scripts")] = False,
) -> None:
    """Check all files of a data directory: WAL, checkpoint, segments, indexes, metadata; exit code 1: damage.

    Findings that are harmless, such as files of a compaction that did not end, leave the exit code at 0.

    Given the folder of a machine with shards or of a local cluster, it checks every node's directory in it.

    Examples:

      chronik verify /var/lib/chronik

      chronik verify /var/lib/chronik --repair
    """
    from rich.console import Console
    from rich.progress import Progress

    from chronik.cli.verify_checks import Verification

    nodes = node_directories(data_dir)
    with contextlib.ExitStack() as locks:
        for node in nodes:
            locks.enter_context(unused(node))
        verifications = {node: Verification(node, repair=repair) for node in nodes}
        size_bytes = sum(one.size_bytes for one in verifications.values())
        is_shown = not as_json and sys.stderr.isatty()
        with Progress(console=Console(stderr=True), transient=True, disable=not is_shown) as progress:
            task = progress.add_task("reading", total=size_bytes)
            for one in verifications.values():
                one.run(lambda count: progress.advance(task, count))
    findings = [
        dataclasses.replace(finding, file=str((node / finding.file).relative_to(data_dir)))
        for node, one in verifications.items()
        for finding in one.findings
    ]
    damaged = sum(not finding.is_harmless for finding in findings)
    file_count = sum(one.file_count for one in verifications.values())
    if as_json:
        shown = {"files": file_count, "bytes": size_bytes}
        print(json.dumps({**shown, "findings": [finding.as_dict() for finding in findings]}))
    else:
        for finding in findings:
            say(str(finding))
        read = f"{file_count} files, {size_bytes / 1e6:.1f} MB"
        if len(nodes) > 1:
            read = f"{len(nodes)} nodes, {read}"
        print(f"{read}: {counted(damaged, 'finding')}" if damaged else f"{read}: no damage")
    if damaged:
        raise typer.Exit(1)


def node_directories(folder: Path) -> list[Path]:
    """The folder itself, or every node's data directory in the folder of a machine or a local cluster."""
    if is_data_directory(folder):
        return [folder]
    found = sorted(path for path in folder.glob("*/data") if is_data_directory(path))
    if not found:
        raise VerifyRefused(f"{folder}: no data directory of a node, and none in it")
    return found


def is_data_directory(folder: Path) -> bool:
    return (folder / "wal").is_dir() and (folder / "topics").is_dir()


@contextlib.contextmanager
def unused(data_dir: Path) -> Iterator[None]:
    """Keep nodes out meanwhile; refuse what a node is using."""
    with (data_dir / "lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise VerifyRefused(f"{data_dir}: a node is using this data directory; stop it first") from None
        yield
