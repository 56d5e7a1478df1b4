"""The console's files: libraries as they were recorded, imports that lead somewhere, no inline code."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from pathlib import Path

import pytest

from chronik.admin.app import _HEADERS
from chronik.admin.errors import HttpError
from chronik.admin.routes.console import _asset

ROOT = Path(__file__).parents[3]
CONSOLE = ROOT / "src" / "chronik" / "admin" / "console"
VENDOR = CONSOLE / "vendor"
OWN = [path for path in CONSOLE.rglob("*.js") if path.parent != VENDOR]


def test_the_libraries_have_the_bytes_that_were_recorded() -> None:
    recorded = json.loads((VENDOR / "vendor.json").read_text())
    code = {path.name for path in VENDOR.iterdir()} - {"vendor.json", "LICENSES.txt"}
    assert code == set(recorded)
    for name, entry in recorded.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == entry["sha256"], name


def test_every_library_is_locked_and_has_its_licence() -> None:
    recorded = json.loads((VENDOR / "vendor.json").read_text())
    locked = json.loads((ROOT / "tools" / "console" / "package-lock.json").read_text())["packages"]
    licences = (VENDOR / "LICENSES.txt").read_text()
    for entry in recorded.values():
        for package, version in entry["packages"].items():
            found = locked[f"node_modules/{package}"]
            assert found["version"] == version
            assert found["integrity"].startswith("sha512-")
            assert f"{package} {version}, {found['license']}" in licences


@pytest.mark.parametrize("path", OWN, ids=lambda path: str(path.relative_to(CONSOLE)))
def test_imports_lead_to_files_of_the_console(path: Path) -> None:
    text = path.read_text()
    imports = re.findall(r"^(?:import|export) .*?from \"([^\"]+)\";$", text, re.M | re.S)
    imports += re.findall(r"^const LIBRARY = \"([^\"]+)\";$", text, re.M)
    for one in imports:
        assert one.startswith("/console/"), one
        assert (CONSOLE / one.removeprefix("/console/")).is_file(), one
    assert len(text.splitlines()) <= 300


def test_the_pages_need_no_inline_code_and_the_policy_allows_none() -> None:
    policy = _HEADERS["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    for page in CONSOLE.glob("*.html"):
        assert not re.search(r"<style|style=|<script(?![^>]*src=)|\bon\w+=", page.read_text()), page.name


def test_the_wheel_has_every_folder_of_the_console() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["chronik"]
    folders = {str(path.parent.relative_to(CONSOLE.parents[1])) for path in CONSOLE.rglob("*.*")}
    assert {f"{folder}/*" for folder in folders} <= set(patterns)


@pytest.mark.parametrize("name", ["app.js", "pages/sql.js", "vendor/LICENSES.txt", "docs.css"])
def test_files_are_served(name: str) -> None:
    assert _asset(name).body == (CONSOLE / name).read_bytes()


@pytest.mark.parametrize(
    "name", ["../app.py", "pages/../app.js", "vendor/vendor.json", "a/b.js", ".js", "pages/"]
)
def test_nothing_else_is(name: str) -> None:
    with pytest.raises(HttpError):
        _asset(name)
