"""Known vulnerabilities of the locked dependencies (`make audit`).

Advisories come with the package index's own answer about a release, so whoever can install can ask. Exit 1 if
a locked release has a known vulnerability, 2 if the advisories cannot be reached: then nothing was checked.
"""

from __future__ import annotations

import json
import re
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pip._internal.models.index import PyPI

LOCKS = Path(__file__).parents[1] / "requirements"
_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
TIMEOUT_S = 30
AT_ONCE = 8


def locked(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Name and version of every release that a lock pins."""
    return sorted({(name.lower(), version) for text in texts for name, version in _PINNED.findall(text)})


def advisories(answer: dict[str, Any]) -> list[str]:
    """One line for each vulnerability that still stands."""
    lines = []
    for found in answer.get("vulnerabilities") or ():
        if not found.get("withdrawn"):
            names = ", ".join([found["id"], *found.get("aliases", ())])
            fixed = ", ".join(found.get("fixed_in") or ()) or "no release"
            lines.append(f"{names}, fixed in {fixed}: {found.get('summary') or found.get('link') or ''}")
    return lines


def ask(release: tuple[str, str]) -> list[str]:
    name, version = release
    url = f"{PyPI.pypi_url}/{name}/{version}/json"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=ssl.create_default_context()) as response:
        return advisories(json.load(response))


def main() -> int:
    releases = locked(path.read_text() for path in sorted(LOCKS.glob("*.lock")))
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = list(pool.map(ask, releases))
    except (OSError, ValueError) as error:
        print(f"audit: the advisories of the package index cannot be reached ({error}): nothing was checked.")
        return 2
    found = [(release, line) for release, lines in zip(releases, answers, strict=True) for line in lines]
    for (name, version), line in found:
        print(f"{name} {version}: {line}")
    print(f"audit: {len(releases)} locked releases, {len(found)} known vulnerabilities.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
