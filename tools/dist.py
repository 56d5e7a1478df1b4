"""Build what is released into dist/ (`make dist`): wheel, sdist, SBOM, licence list. Reproducibly.

Only files that git tracks are packed, as they are in the working tree, and the manual pages. Times come from
SOURCE_DATE_EPOCH, or from the last commit; owners, modes and order are set here, since setuptools takes them
from the machine. The wheel is made of the finished sdist, so that whoever builds from the sdist gets the same
wheel.
`dist.py --check` builds a second time under another umask and fails if a hash differs.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from chronik import __version__
from tools import man_pages
from tools.sbom import licence_list, sbom

ROOT = Path(__file__).parents[1]
MAN_PAGES = "share/man/man1"
"""Named in pyproject.toml, too. The pages are not tracked: they are made for each build."""
UMASK = 0o022
"""The modes of a wheel's files are those that the backend gave its copies."""
OTHER_UMASK = 0o077
"""Of the second build: what takes its modes from the machine differs then."""


def source_date() -> int:
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    command = ["git", "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def copy_tracked(target: Path) -> None:
    command = ["git", "ls-files", "-z", "--cached", "--", "src", "pyproject.toml", "README.md", "LICENSE"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)


def build(kind: str, source: Path, output: Path, date: int) -> Path:
    """One distribution by the build backend, which is the locked one of the development environment."""
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(output), "."]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(date), "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        command, cwd=source, env=environment, umask=UMASK, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"building the {kind} failed:\n{done.stdout}\n{done.stderr}")
    (made,) = output.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


def normalise(path: Path, date: int) -> None:
    """Write a tar.gz anew: sorted, owned by root, with one time and two modes."""
    content = io.BytesIO()
    with tarfile.open(path) as old, tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            entry = tarfile.TarInfo(member.name)
            entry.type, entry.size, entry.mtime = member.type, member.size, date
            entry.mode = 0o755 if member.isdir() else 0o644
            new.addfile(entry, old.extractfile(member))
    with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=date) as packed:
        packed.write(content.getvalue())


def make(output: Path) -> dict[str, str]:
    """Build everything into `output`; the hash of each file by its name."""
    date = source_date()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        tree.mkdir()
        copy_tracked(tree)
        man_pages.write(tree / MAN_PAGES)
        sdist = build("sdist", tree, output, date)
        normalise(sdist, date)
        with tarfile.open(sdist) as packed:
            packed.extractall(Path(folder, "unpacked"), filter="tar")
        unpacked = Path(folder, "unpacked", f"chronik-{__version__}")
        build("wheel", unpacked, output, date)
    (output / f"chronik-{__version__}.cdx.json").write_text(sbom(ROOT, __version__, date))
    (output / f"chronik-{__version__}.licences.txt").write_text(licence_list(ROOT, __version__))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(output.iterdir())}


def main() -> int:
    parser = argparse.ArgumentParser(description="Build wheel, sdist, SBOM and licence list.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--check", action="store_true", help="build twice and compare the hashes")
    given = parser.parse_args()
    shutil.rmtree(given.output, ignore_errors=True)
    os.umask(UMASK)
    made = make(given.output)
    for name, digest in made.items():
        print(f"{digest}  {name}")
    if given.check:
        os.umask(OTHER_UMASK)
        with tempfile.TemporaryDirectory() as folder:
            again = make(Path(folder))
        differing = sorted(name for name in made if made[name] != again.get(name))
        if differing or made.keys() != again.keys():
            print(f"not reproducible: {', '.join(differing)}", file=sys.stderr)
            return 1
    os.umask(UMASK)
    sums = "".join(f"{digest}  {name}\n" for name, digest in made.items())
    (given.output / "SHA256SUMS").write_text(sums)
    return 0


if __name__ == "__main__":
    sys.exit(main())
