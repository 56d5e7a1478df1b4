"""`chronik version`."""

from __future__ import annotations

import json
import platform
from typing import Annotated

import typer

import chronik


def register(app: typer.Typer) -> None:
    app.command()(version)


def version(
    as_json: Annotated[bool, typer.Option("--json", help="for scripts")] = False,
) -> None:
    """Show the version."""
    if as_json:
        print(json.dumps({"version": chronik.__version__, "python": platform.python_version()}))
    else:
        print(f"chronik {chronik.__version__} (Python {platform.python_version()})")
