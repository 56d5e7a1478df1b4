"""Keep the wheel of the release before, for the test that upgrades from it and goes back.

    python tools/previous_release.py REVISION

builds the wheel of that revision into tests/cluster/previous, and writes its name, its SHA-256 and where it
came from beside it. It is in the repository because a clone need not have the history, and a release is not
always on an index.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PREVIOUS: Final = ROOT / "tests" / "cluster" / "previous"
FACTS: Final = PREVIOUS / "release.json"
PARTS: Final = ("src", "pyproject.toml", "README.md", "LICENSE")


def build(tree: Path, output: Path, date: str) -> Path:
    """The wheel of a source tree, by the build backend of this environment."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(output), str(tree)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": date, "PYTHONHASHSEED": "0"}
    subprocess.run(command, env=environment, umask=0o022, check=True, stdout=subprocess.DEVNULL)
    (made,) = output.glob("*.whl")
    return made


def keep(wheel: Path, revision: str) -> str:
    """Takes the place of what was kept before."""
    PREVIOUS.mkdir(exist_ok=True)
    data = wheel.read_bytes()
    for old in PREVIOUS.iterdir():
        old.unlink()
    (PREVIOUS / wheel.name).write_bytes(data)
    facts = {"wheel": wheel.name, "sha256": hashlib.sha256(data).hexdigest(), "revision": revision}
    FACTS.write_text(json.dumps(facts, indent=2) + "\n")
    return f"{(PREVIOUS / wheel.name).relative_to(ROOT)}: {len(data):,} bytes"


def kept() -> Path:
    """The wheel, if it is the one that was built."""
    facts = json.loads(FACTS.read_text())
    wheel = PREVIOUS / str(facts["wheel"])
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != facts["sha256"]:
        raise SystemExit(f"{wheel} has the SHA-256 {found}, not the one in {FACTS.name}")
    return wheel


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def main() -> None:
    revision = git("rev-parse", "--verify", f"{sys.argv[1]}^{{commit}}").decode().strip()
    date = git("log", "-1", "--format=%ct", revision).decode().strip()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        with tarfile.open(fileobj=io.BytesIO(git("archive", "--format=tar", revision, *PARTS))) as packed:
            packed.extractall(tree, filter="data")
        print(keep(build(tree, Path(folder, "dist"), date), revision))


if __name__ == "__main__":
    main()
