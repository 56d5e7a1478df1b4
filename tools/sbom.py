"""What an installation of chronik consists of, out of the locks: a CycloneDX SBOM and a list of licences.

Names, versions, hashes and who needs whom come from requirements/dev.lock, which holds every extra; licences
come from the metadata of the installed packages. What a broker needs is `required`, what an extra adds is
`optional`. The console's libraries come in the package itself: their lock is tools/console/package-lock.json.
"""

from __future__ import annotations

import base64
import datetime
import importlib.metadata
import json
import re
import tomllib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = ("objects", "query", "spark")
PROJECT = "chronik"
CLASSIFIERS = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: BSD License": "BSD-3-Clause",
    "License :: OSI Approved :: ISC License (ISCL)": "ISC",
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: Python Software Foundation License": "PSF-2.0",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "License :: OSI Approved :: Historical Permission Notice and Disclaimer (HPND)": "HPND",
}
"""For packages whose metadata has no licence expression (PEP 639) yet."""
EXPRESSION = re.compile(r"\(*[\w.+-]+\)*(?: (?:AND|OR|WITH) \(*[\w.+-]+\)*)*")
"""SPDX identifiers and what joins them; anything else is a name in the package's own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """One package of a lock."""

    name: str
    version: str
    hashes: tuple[str, ...]
    needed_by: frozenset[str]


class LicenceUnknown(Exception):
    """A package that says nothing about its licence cannot be shipped without a person having looked."""


def read_lock(path: Path) -> dict[str, Locked]:
    found: dict[str, Locked] = {}
    for block in re.split(r"^(?=[A-Za-z0-9])", path.read_text(), flags=re.MULTILINE):
        match = re.match(r"([A-Za-z0-9._-]+)==([^\s\\]+)", block)
        if match is None:
            continue
        name = canonicalize_name(match[1])
        needed_by = re.findall(r"^    #(?: via|  ) ([A-Za-z0-9._-]+)", block, re.MULTILINE)
        found[name] = Locked(
            name=name,
            version=match[2],
            hashes=tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", block)),
            needed_by=frozenset(canonicalize_name(one) for one in needed_by),
        )
    return found


def closure(roots: Iterable[str], locked: Mapping[str, Locked]) -> set[str]:
    """The roots and all that they need."""
    found: set[str] = set()
    todo = {str(canonicalize_name(Requirement(root).name)) for root in roots} & locked.keys()
    while todo:
        found |= todo
        todo = {name for name, one in locked.items() if one.needed_by & todo} - found
    return found


def shipped(root: Path) -> dict[str, tuple[Locked, str]]:
    """Every package of an installation with all extras, and whether a broker alone needs it."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    locked = read_lock(root / "requirements" / "dev.lock")
    required = closure(project["dependencies"], locked)
    extras = project["optional-dependencies"]
    everything = required | closure([one for extra in EXTRAS for one in extras[extra]], locked)
    return {
        name: (locked[name], "required" if name in required else "optional") for name in sorted(everything)
    }


def licence(package: Locked) -> str:
    """What a package says about its licence: an expression, else its classifiers, else its own words."""
    metadata = importlib.metadata.metadata(package.name)
    if metadata["Version"] != package.version:
        raise LicenceUnknown(
            f"{package.name} {metadata['Version']} is installed, {package.version} is locked"
        )
    if expression := metadata["License-Expression"]:
        return expression
    classifiers = metadata.get_all("Classifier") or []
    known = sorted({CLASSIFIERS[one] for one in classifiers if one in CLASSIFIERS})
    if known:
        return " AND ".join(known)
    words = (metadata["License"] or "").strip()
    if not words or words == "UNKNOWN":
        raise LicenceUnknown(f"{package.name} {package.version} does not say under which licence it is")
    return words.splitlines()[0]


def purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def sbom(root: Path, version: str, date: int) -> str:
    """CycloneDX 1.6 as JSON; the same locks and the same date give the same text."""
    packages = shipped(root)
    own = purl(PROJECT, version)
    inside = [_vendored_component(*one) for one in vendored(root)]
    components = [*(_component(package, scope) for package, scope in packages.values()), *inside]
    needs: dict[str, list[str]] = {own: [one["bom-ref"] for one in inside]}
    needs |= {one["bom-ref"]: [] for one in inside}
    for package, _ in packages.values():
        needs.setdefault(purl(package.name, package.version), [])
        for parent in sorted(package.needed_by):
            ref = own if parent == PROJECT else _ref(parent, packages)
            if ref is not None:
                needs.setdefault(ref, []).append(purl(package.name, package.version))
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, own + json.dumps(components))}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(date, datetime.UTC).isoformat(),
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": PROJECT,
                "version": version,
                "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": needs[ref]} for ref in sorted(needs)],
    }
    return json.dumps(document, indent=2) + "\n"


def vendored(root: Path) -> list[tuple[str, str, str, str]]:
    """Name, version, licence and SHA-512 of each npm package that is built into the console."""
    folder = root / "src" / "chronik" / "admin" / "console" / "vendor"
    files = json.loads((folder / "vendor.json").read_text()).values()
    locked = json.loads((root / "tools" / "console" / "package-lock.json").read_text())["packages"]
    names = sorted({name for file in files for name in file["packages"]})
    return [
        (
            name,
            locked[f"node_modules/{name}"]["version"],
            locked[f"node_modules/{name}"]["license"],
            base64.b64decode(locked[f"node_modules/{name}"]["integrity"].removeprefix("sha512-")).hex(),
        )
        for name in names
    ]


def _vendored_component(name: str, version: str, said: str, digest: str) -> dict[str, Any]:
    ref = f"pkg:npm/{name.replace('@', '%40')}@{version}"
    return {
        "type": "library",
        "bom-ref": ref,
        "name": name,
        "version": version,
        "scope": "required",
        "purl": ref,
        "hashes": [{"alg": "SHA-512", "content": digest}],
        "licenses": [{"expression": said}],
    }


def _ref(name: str, packages: Mapping[str, tuple[Locked, str]]) -> str | None:
    found = packages.get(name)
    return None if found is None else purl(name, found[0].version)


def _component(package: Locked, scope: str) -> dict[str, Any]:
    said = licence(package)
    is_expression = EXPRESSION.fullmatch(said) is not None
    return {
        "type": "library",
        "bom-ref": purl(package.name, package.version),
        "name": package.name,
        "version": package.version,
        "scope": scope,
        "purl": purl(package.name, package.version),
        # Of each file that the lock allows: wheels for several platforms, and the sdist.
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in package.hashes],
        "licenses": [{"expression": said} if is_expression else {"license": {"name": said}}],
    }


def licence_list(root: Path, version: str) -> str:
    rows = [
        f"{package.name:28} {package.version:14} {scope:9} {licence(package)}"
        for package, scope in shipped(root).values()
    ]
    rows += [f"{name:28} {number:14} console   {said}" for name, number, said, _ in vendored(root)]
    head = f"chronik {version} is under Apache-2.0. What an installation adds to it:\n\n"
    return head + "\n".join(rows) + "\n"
