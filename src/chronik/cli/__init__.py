"""The command line: one file per command group, put together here.

A group's file offers `register(app)`; adding a group is adding its file to the list below. Heavy imports (the
node, the client) belong inside the commands, so that `chronik version` and `--help` answer at once.

What goes wrong is one sentence on stderr and exit code 2; a stack trace is a bug. Not its job: anything that
a program other than a person's terminal would call.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final

import typer

from chronik.cli import config, consume, group, produce, start, topic, transaction, version
from chronik.model import ChronikError

EXIT_ERROR: Final = 2

GROUPS: Final[tuple[Callable[[typer.Typer], None], ...]] = (
    start.register,
    topic.register,
    produce.register,
    consume.register,
    group.register,
    transaction.register,
    config.register,
    version.register,
)


def build() -> typer.Typer:
    app = typer.Typer(
        name="chronik",
        help="A durable log broker that ordinary Kafka clients use unchanged.",
        epilog="Start with: chronik start",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for register in GROUPS:
        register(app)
    return app


def main() -> None:
    try:
        build()()
    except ChronikError as error:
        print(f"chronik: {error}", file=sys.stderr)
        sys.exit(EXIT_ERROR)
    except BrokenPipeError:
        # The reader of our output has gone (`chronik ... | head`): not an error, and nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)
