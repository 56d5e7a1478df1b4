"""The command line: one file per command group, put together here.

A group's file is named like its command and offers `register(app)`; adding a group is adding its name to the
list below. Only the file of the command asked for is read, so that `chronik version` answers at once.

What goes wrong is one sentence on stderr and exit code 2; a stack trace is a bug. Not its job: anything that
a program other than a person's terminal would call.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from chronik.cli.printable import complain
from chronik.model import ChronikError

EXIT_ERROR: Final = 2

GROUPS: Final = (
    "start",
    "cluster",
    "topic",
    "produce",
    "consume",
    "group",
    "transaction",
    "init",
    "user",
    "key",
    "acl",
    "quota",
    "search",
    "sql",
    "schema",
    "pipeline",
    "config",
    "check",
    "verify",
    "bench",
    "doctor",
    "explain",
    "upgrade",
    "backup",
    "migrate",
    "top",
    "version",
)


def build(only: str | None = None) -> typer.Typer:
    """The whole command line, or as much of it as the command `only` needs."""
    app = typer.Typer(
        name="chronik",
        help="A durable log broker that ordinary Kafka clients use unchanged.",
        epilog="Start with: chronik start",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in (only,) if only in GROUPS else GROUPS:
        importlib.import_module(f"chronik.cli.{name}").register(app)
    return app


def _root(
    client_config: Annotated[
        Path | None,
        typer.Option(
            "--client-config",
            metavar="FILE",
            help="client.properties for commands that ask a cluster [dim](or CHRONIK_CLIENT_CONFIG)[/dim]",
        ),
    ] = None,
) -> None:
    """A durable log broker that ordinary Kafka clients use unchanged."""
    if client_config is not None:
        from chronik.config_sources import use_client_config

        use_client_config(client_config)


def main() -> None:
    """For a process of its own, which this ends."""
    try:
        run_command()
    except SystemExit as end:
        if "obstore" in sys.modules:
            _end_now(end.code)
        raise


def _end_now(code: object) -> NoReturn:
    """End the process without taking the interpreter down.

    Threads of obstore go back into Python after they have delivered a result. One that does so while the
    interpreter is being taken down aborts the process, whose work is done by then.
    """
    if isinstance(code, str):
        print(code, file=sys.stderr)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def run_command() -> None:
    """What `main` does, but the process goes on: SystemExit says how the command ended."""
    try:
        build(sys.argv[1] if len(sys.argv) > 1 else None)(prog_name="chronik")
    except ChronikError as error:
        complain(f"chronik: {error}")
        sys.exit(EXIT_ERROR)
    except BrokenPipeError:
        # The reader of our output has gone (`chronik ... | head`): not an error, and nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)
