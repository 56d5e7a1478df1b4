"""Builds the libraries of the console from npm packages into src/chronik/admin/console/vendor.

Versions and hashes of the packages stand in tools/console/package.json and its lock. The same lock gives the
same bytes: `--check` builds again and compares. What was built is recorded in vendor.json, which a test
compares with the files; the licences of everything inside lie in LICENSES.txt beside it.

Usage: python tools/vendor_console.py [--check]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "tools" / "console"
VENDOR = ROOT / "src" / "chronik" / "admin" / "console" / "vendor"
MODULES = ("preact", "uplot", "codemirror")
STYLES = {"uplot.css": "uplot/dist/uPlot.min.css"}
ESBUILD = (
    "--bundle",
    "--format=esm",
    "--minify",
    "--target=es2022",
    "--legal-comments=none",
    "--charset=utf8",
)


def run(*command: str, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL)


def package_of(path: str) -> str | None:
    """The package that a source file belongs to; None for our own entry files."""
    match = re.match(r"node_modules/((?:@[^/]+/)?[^/]+)/", path)
    return match[1] if match else None


def build(folder: Path) -> dict[str, bytes]:
    """Every file of the vendor directory, built in a folder of its own."""
    for file in RECIPE.iterdir():
        shutil.copy(file, folder)
    run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent", cwd=folder)
    files: dict[str, bytes] = {}
    recorded: dict[str, object] = {}
    inside: set[str] = set()
    for name in MODULES:
        out, meta = folder / f"out-{name}.js", folder / f"meta-{name}.json"
        esbuild = "node_modules/.bin/esbuild"
        run(esbuild, f"{name}.js", *ESBUILD, f"--outfile={out}", f"--metafile={meta}", cwd=folder)
        packages = {package_of(path) for path in json.loads(meta.read_text())["inputs"]} - {None}
        files[f"{name}.js"] = out.read_bytes()
        recorded[f"{name}.js"] = described(folder, files[f"{name}.js"], {str(one) for one in packages})
        inside |= {str(one) for one in packages}
    for name, source in STYLES.items():
        files[name] = (folder / "node_modules" / source).read_bytes()
        recorded[name] = described(folder, files[name], {source.split("/")[0]})
    files["vendor.json"] = (json.dumps(recorded, indent=2, sort_keys=True) + "\n").encode()
    files["LICENSES.txt"] = "\n".join(licence(folder, one) for one in sorted(inside)).encode()
    return files


def described(folder: Path, data: bytes, packages: set[str]) -> dict[str, object]:
    return {
        "sha256": hashlib.sha256(data).hexdigest(),
        "packages": {one: manifest(folder, one)["version"] for one in sorted(packages)},
    }


def manifest(folder: Path, package: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / "node_modules" / package / "package.json").read_text())
    return found


def licence(folder: Path, package: str) -> str:
    found = manifest(folder, package)
    text = next((folder / "node_modules" / package).glob("LICEN[CS]E*")).read_text().strip()
    line = "-" * 80
    return f"{line}\n{package} {found['version']}, {found['license']}\n{line}\n\n{text}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a build differs")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        files = build(Path(folder))
    if check:
        other = [name for name, data in files.items() if (VENDOR / name).read_bytes() != data]
        if other:
            sys.exit(f"Other bytes than a build gives: {', '.join(other)}.")
        return
    VENDOR.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (VENDOR / name).write_bytes(data)


if __name__ == "__main__":
    main()
