"""What commands that talk to a cluster share: options, one run of the loop, sentences for what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, TypeVar

import typer

from chronik.cli.printable import complain, printable
from chronik.config_sources import bootstrap, client_config, environment
from chronik.model import ChronikError, ErrorCode, RequestError

if TYPE_CHECKING:
    from chronik.client import ClientOptions, Cluster

T = TypeVar("T")

Bootstrap: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT,...",
        help="nodes to ask first [dim](default: 127.0.0.1:9092, or CHRONIK_BOOTSTRAP)[/dim]",
        show_default=False,
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="for scripts")]
Timeout: TypeAlias = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="give up after this time")
]

INTERRUPTED: Final = 130
NOT_ALL: Final = 1
"""Exit code of a command that did a part of what it was told."""
_NAME_WIDTH_MAX: Final = 40
"""Of a table's first column: what is wider is folded."""


class CommandFailed(ChronikError):
    """One sentence for a person, with the way out in it."""


def run(servers: str | None, work: Callable[[Cluster], Awaitable[T]], *, timeout: float = 30.0) -> T:
    """Run a command's work with a cluster behind it; every failure leaves as one sentence."""
    from chronik.cli.start import loop_factory
    from chronik.client import ClientOptions, Cluster, parse_bootstrap

    try:
        addresses = parse_bootstrap(bootstrap(servers, environment()))
    except ValueError as error:
        raise CommandFailed(str(error)) from None
    deadline_ms = max(1, int(timeout * 1000))
    options = ClientOptions(
        client_id="chronik-cli", deadline_ms=deadline_ms, connect_timeout_ms=min(5_000, deadline_ms)
    )

    options = secured_by_file(options)

    async def main() -> T:
        async with Cluster(addresses, options) as cluster:
            await cluster.probe()
            return await work(cluster)

    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(main())
    except CommandFailed:
        raise
    except ChronikError as error:
        raise CommandFailed(explain(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        silence_stdout()
        raise typer.Exit(0) from None


def secured_by_file(options: ClientOptions) -> ClientOptions:
    """The options with the protocol and the login of the `client.properties` file, if one was named."""
    path = client_config(environment())
    if path is None:
        return options
    from chronik.client.properties import read_properties, secured

    return secured(options, read_properties(path))


def explain(error: Exception) -> str:
    """What happened and what to do about it, in one sentence."""
    from chronik.client import Unanswered, Unreachable

    if isinstance(error, Unreachable):
        return f"{error}: start one with `chronik start`, or name another with --bootstrap"
    if isinstance(error, Unanswered):
        return f"{error}; whether the request took effect is not known"
    if isinstance(error, RequestError):
        hint = _HINTS.get(error.code)
        return f"{str(error).rstrip('.')}: {hint}" if hint else str(error)
    return str(error)


_HINTS: Final = {
    ErrorCode.topic_already_exists: "choose another name, or pass --if-not-exists",
    ErrorCode.not_enough_replicas: "too few replicas are in sync, start the missing nodes",
    ErrorCode.group_id_not_found: "`chronik group list` shows those there are",
    ErrorCode.non_empty_group: "stop its members first",
    ErrorCode.unsupported_version: "is it older than this command line?",
}


def silence_stdout() -> None:
    """The reader of our output has gone: the flush at exit must not complain either."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def unknown_topic(name: str) -> CommandFailed:
    return CommandFailed(f"topic {name!r} does not exist: create it with `chronik topic create {name}`")


async def partition_numbers(cluster: Cluster, topic: str) -> list[int]:
    """The partitions of a topic, or a sentence about a topic that is not there."""
    info = (await cluster.topics([topic])).get(topic)
    if info is None or info.error_code == ErrorCode.unknown_topic_or_partition:
        raise unknown_topic(topic)
    if info.error_code == ErrorCode.invalid_topic_exception:
        raise CommandFailed(f"{topic!r} cannot be a topic's name: letters, digits, '.', '_' and '-' can")
    return sorted(info.partitions)


def parse_pairs(pairs: Iterable[str], what: str) -> dict[str, str]:
    """`name=value` options as a dict."""
    parsed = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise CommandFailed(f"{pair!r} is no {what}: write name=value")
        parsed[name] = value
    return parsed


def end(failures: list[str], *, done: int) -> None:
    """All failed: an error. Some failed: say which and leave with another code."""
    if not failures:
        return
    for failure in failures[:-1] if not done else failures:
        complain(f"chronik: {failure}")
    if done:
        raise typer.Exit(NOT_ALL)
    raise CommandFailed(failures[-1])


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, default=str))


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None
) -> None:
    """A table for people; headings that start with '#' are numbers and stand right.

    The first column names its row. It is folded only if it is very wide, so that a name can be copied.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    cells = [[cell(value) for value in row] for row in rows]
    is_narrow = max((len(row[0]) for row in cells), default=0) <= _NAME_WIDTH_MAX
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for place, heading in enumerate(headings):
        table.add_column(
            heading.removeprefix("#"),
            justify="right" if heading.startswith("#") else "left",
            overflow="fold",
            no_wrap=is_narrow and place == 0,
        )
    for row in cells:
        table.add_row(*row)
    Console().print(table)


def cell(value: object) -> str:
    from rich.markup import escape

    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return printable(", ".join(map(str, value)))
    return escape(printable(str(value)))


@contextlib.contextmanager
def progress(
    description: str, total: int | None, *, unit: str = "records", enabled: bool = True
) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while a bulk command runs, if somebody looks; call it with the count so far."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (enabled and console.is_terminal),
    )
    with bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.update(task, completed=done)
