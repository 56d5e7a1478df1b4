"""`chronik verify`: look at the data directory of a node that does not run."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chronik.cli.printable import say
from chronik.cli.settings import CONFIG_OPTION
from chronik.model import ChronikError
from chronik.words import counted, human_bytes

if TYPE_CHECKING:
    from rich.progress import Progress

    from chronik.cli.object_thread import ObjectThread
    from chronik.cli.verify_checks import Verification
    from chronik.cli.verify_findings import FileFinding
    from chronik.cli.verify_remote import RemoteCheck
    from chronik.metadata.state import ClusterState


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
    remote: Annotated[
        bool,
        typer.Option(
            "--remote",
            help="read what lies in the object store too; which one, and its credentials, are the settings "
            "object_store_*, from the environment or --config",
        ),
    ] = False,
    config: Annotated[Path | None, CONFIG_OPTION] = None,
    as_json: Annotated[bool, typer.Option("--json", help="for scripts")] = False,
) -> None:
    """Check all files of a data directory: WAL, checkpoint, segments, indexes, metadata; exit code 1: damage.

    Findings that are harmless, such as files of a compaction that did not end, leave the exit code at 0.

    Given the folder of a machine with shards or of a local cluster, it checks every node's directory in it.

    With --remote it reads every manifest and segment that the metadata names in the object store, too.

    Examples:

      chronik verify /var/lib/chronik

      chronik verify /var/lib/chronik --repair

      chronik verify /var/lib/chronik --remote --config /etc/chronik/chronik.toml
    """
    from rich.console import Console
    from rich.progress import Progress

    from chronik.cli.verify_checks import Verification

    nodes = node_directories(data_dir)
    with contextlib.ExitStack() as stack:
        objects = stack.enter_context(_object_store(config)) if remote else None
        for node in nodes:
            stack.enter_context(unused(node))
        verifications = {node: Verification(node, repair=repair) for node in nodes}
        size_bytes = sum(one.size_bytes for one in verifications.values())
        is_shown = not as_json and sys.stderr.isatty()
        with Progress(console=Console(stderr=True), transient=True, disable=not is_shown) as progress:
            task = progress.add_task("reading", total=size_bytes)
            for one in verifications.values():
                one.run(lambda count: progress.advance(task, count))
            states = [one.metadata for one in verifications.values() if one.metadata is not None]
            state = max(states, key=lambda each: each.applied_index, default=None)
            found = None
            if objects is not None and state is not None:
                shown = progress if is_shown else None
                found = _remote_check(objects, state, nodes, data_dir, shown, repair=repair)
    findings = _findings(verifications, data_dir) + (found.findings if found is not None else [])
    if objects is not None and state is None:
        findings.append(_not_known(objects.door.address))
    unread = 0 if found is not None or state is None else _remote_bytes(state)
    _tell(list(verifications.values()), found, findings, unread, as_json=as_json)
    if not all(finding.is_harmless for finding in findings):
        raise typer.Exit(1)


def _findings(verifications: dict[Path, Verification], data_dir: Path) -> list[FileFinding]:
    return [
        dataclasses.replace(finding, file=str((node / finding.file).relative_to(data_dir)))
        for node, one in verifications.items()
        for finding in one.findings
    ]


def _tell(
    checked: list[Verification],
    remote: RemoteCheck | None,
    findings: list[FileFinding],
    unread_bytes: int,
    *,
    as_json: bool,
) -> None:
    file_count, size_bytes = sum(one.file_count for one in checked), sum(one.size_bytes for one in checked)
    if as_json:
        shown: dict[str, object] = {"files": file_count, "bytes": size_bytes}
        if remote is not None:
            shown |= {"objects": remote.object_count, "object_bytes": remote.size_bytes}
        shown["object_bytes_not_read"] = unread_bytes
        print(json.dumps({**shown, "findings": [finding.as_dict() for finding in findings]}))
        return
    for finding in findings:
        say(str(finding))
    read = f"{file_count} files, {size_bytes / 1e6:.1f} MB"
    if len(checked) > 1:
        read = f"{len(checked)} nodes, {read}"
    if remote is not None:
        read += f"; {counted(remote.object_count, 'object')}, {remote.size_bytes / 1e6:.1f} MB"
    damaged = sum(not finding.is_harmless for finding in findings)
    print(f"{read}: {counted(damaged, 'finding')}" if damaged else f"{read}: no damage")
    if unread_bytes:
        print(f"{human_bytes(unread_bytes)} in the object store were not read: --remote does that")


@contextlib.contextmanager
def _object_store(config: Path | None) -> Iterator[ObjectThread]:
    import random

    from chronik.assembly import open_object_store
    from chronik.cli.object_thread import ObjectThread
    from chronik.cli.settings import load

    door = open_object_store(load({}, config).settings, random.Random())
    if door is None:
        raise VerifyRefused(
            "no object store is set: give the node's settings object_store and object_store_* by --config or "
            "as CHRONIK_OBJECT_STORE and its relatives"
        )
    objects = ObjectThread(door)
    try:
        yield objects
    finally:
        objects.close()


def _remote_check(
    objects: ObjectThread,
    state: ClusterState,
    nodes: list[Path],
    data_dir: Path,
    progress: Progress | None,
    *,
    repair: bool,
) -> RemoteCheck:
    from chronik.cli.verify_put_back import PutBack
    from chronik.cli.verify_remote import RemoteCheck, without_hole

    task = None

    def advance(count: int) -> None:
        if progress is not None and task is not None:
            progress.advance(task, count)

    check = RemoteCheck(objects, state, advance, PutBack(objects, nodes) if repair else None)
    if progress is not None:
        task = progress.add_task("reading objects", total=check.expected_bytes)
    check.run()
    check.findings += without_hole(check.partitions, nodes, data_dir)
    return check


def _not_known(address: str) -> FileFinding:
    """A finding, no refusal: why it is so stands in those of the directory, which may have been repaired."""
    from chronik.cli.verify_findings import FileFinding

    what = "the directory's metadata cannot be read, so what the store should hold is not known"
    return FileFinding(address, -1, "object store not read", what)


def _remote_bytes(state: ClusterState) -> int:
    """Of all segments that the metadata says are in an object store."""
    return sum(
        one.remote.size_bytes
        for topic in state.topics.values()
        for one in topic.partitions
        if one.remote is not None
    )


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
