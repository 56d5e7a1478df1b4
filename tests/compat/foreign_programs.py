"""Clients in other languages: programs under `foreign/`, built once by `make foreign`, run to their end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).parent / "foreign"
BUILT = Path(os.environ.get("FOREIGN_DIR", ROOT / ".foreign"))
DEADLINE_S = 90


class ProgramFailed(AssertionError):
    """A foreign program ended with an error; the message holds what it printed."""


def run(*command: str, stdin: str | None = None, cwd: Path | None = None) -> str:
    """Run a program to its end and return what it printed."""
    if shutil.which(command[0]) is None:
        raise ProgramFailed(f"{command[0]} is not there; `make setup` installs or builds it")
    try:
        done = subprocess.run(
            command,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            cwd=cwd,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        said = (expired.stdout or b"") + (expired.stderr or b"")
        raise ProgramFailed(f"{command} did not end within {DEADLINE_S} s: {said.decode()[-2000:]}") from None
    if done.returncode != 0:
        raise ProgramFailed(f"{command} ended with {done.returncode}: {done.stdout}\n{done.stderr[-4000:]}")
    return done.stdout


def go(round_trip: str, bootstrap: str, topic: str) -> dict[str, Any]:
    seen: dict[str, Any] = json.loads(run(str(BUILT / "go" / "clients"), round_trip, bootstrap, topic))
    return seen


def node(bootstrap: str, topic: str) -> dict[str, Any]:
    seen: dict[str, Any] = json.loads(run("node", str(BUILT / "node" / "clients.js"), bootstrap, topic))
    return seen
