"""Resolve the dependencies of pyproject.toml into requirements/*.lock (`make lock`); `--check` compares them.

The documentation site's generator has a lock of its own, from the dependency group `docs`: it runs in an
environment of its own (`make site`) and needs nothing of the project.

The locks carry hashes and no index address: where packages come from is the machine's business. Run it
with the oldest supported Python: a dependency that only old Pythons need is then in the lock, and a newer
Python merely installs one package too many.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OPTIONS = (
    "--quiet",
    "--generate-hashes",
    "--strip-extras",
    "--allow-unsafe",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-emit-trusted-host",
    "--no-emit-options",
)
BROKER_LOCK = "requirements/broker.lock"
RUN_LOCK = "requirements/run.lock"
LOCKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (BROKER_LOCK, ()),
    (RUN_LOCK, ("--extra=objects", "--extra=query", "--constraint", BROKER_LOCK)),
    (
        "requirements/dev.lock",
        (*(f"--extra={name}" for name in ("dev", "objects", "query", "spark")), "--constraint", RUN_LOCK),
    ),
)
"""Each lock, and what of the project it holds: a broker alone, what `make run` installs, everything."""
DOCS_LOCK = "requirements/docs.lock"
DOCS_GROUP = "docs"
PYTHON_OLDEST = (3, 11)


def stale() -> Iterator[str]:
    """What pyproject.toml asks for and a lock does not hold."""
    wanted = {DOCS_LOCK: docs_group()}
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    for lock, options in LOCKS:
        names = (option.removeprefix("--extra=") for option in options)
        extras = [name for name in names if name in project["optional-dependencies"]]
        groups = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
        wanted[lock] = [text for group in groups for text in group]
    for lock, texts in wanted.items():
        pins = re.findall(r"^([A-Za-z0-9._-]+)==([^ ]+)", Path(lock).read_text(), re.MULTILINE)
        held = {canonicalize_name(name): version for name, version in pins}
        for requirement in map(Requirement, texts):
            version = held.get(canonicalize_name(requirement.name))
            if version is None or not requirement.specifier.contains(version, prereleases=True):
                yield f"{lock} is stale, it has {version or 'no'} {requirement.name}: run make lock"


def docs_group() -> list[str]:
    groups: dict[str, list[str]] = tomllib.loads(Path("pyproject.toml").read_text())["dependency-groups"]
    return groups[DOCS_GROUP]


def main() -> int:
    if "--check" in sys.argv[1:]:
        found = list(stale())
        for sentence in found:
            print(sentence, file=sys.stderr)
        return 1 if found else 0
    if sys.version_info[:2] != PYTHON_OLDEST:
        print(
            f"make lock runs on Python {PYTHON_OLDEST[0]}.{PYTHON_OLDEST[1]}, "
            f"this is {sys.version_info[0]}.{sys.version_info[1]}"
        )
        return 1
    command = [sys.executable, "-m", "piptools", "compile", *OPTIONS, *sys.argv[1:]]
    for lock, options in LOCKS:
        Path(lock).parent.mkdir(exist_ok=True)
        subprocess.run([*command, *options, "--output-file", lock, "pyproject.toml"], check=True)
    group = "\n".join(docs_group())
    subprocess.run([*command, "--output-file", DOCS_LOCK, "-"], input=group, text=True, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
