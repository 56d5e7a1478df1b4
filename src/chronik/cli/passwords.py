"""Where commands take passwords from: a prompt, a file or stdin, never the command line."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from chronik.cli.client import CommandFailed

PasswordFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="read the password from the first line of FILE; - is stdin; by default it is asked for",
    ),
]


def read_password(file: Path | None, whose: str) -> str:
    if file is not None:
        try:
            text = sys.stdin.read() if str(file) == "-" else file.read_text()
        except OSError as error:
            raise CommandFailed(f"{file} cannot be read: {error.strerror}") from None
        password = text.split("\n", 1)[0].rstrip("\r")
    else:
        if not sys.stdin.isatty():
            raise CommandFailed(
                "there is nobody to ask for the password: pass --password-file FILE (- is stdin)"
            )
        password = getpass.getpass(f"Password of {whose}: ")
        if password != getpass.getpass("Again: "):
            raise CommandFailed("the two passwords differ")
    if not password:
        raise CommandFailed("the password is empty")
    return password
