"""The page on architecture names only files and folders that exist, and every package of the source."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tools.trace_produce import way_of_a_produce

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "chronik"
PAGES = (ROOT / "docs" / "ARCHITECTURE.md", ROOT / "docs" / "GLOSSARY.md")
PATH = re.compile(r"`((?:[a-z_]+/)+[a-z_]*(?:\.[a-z]+)?|[a-z_]+\.py)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_is_named_exists(page: Path) -> None:
    named = set(PATH.findall(page.read_text()))
    missing = sorted(one for one in named if not (ROOT / one).exists() and not (SOURCE / one).exists())
    assert missing == []


def test_every_package_is_on_the_page() -> None:
    page = PAGES[0].read_text()
    packages = sorted(one.parent.name for one in SOURCE.glob("*/__init__.py"))
    assert [name for name in packages if not re.search(rf"\b{name}\b", page)] == []


def test_every_folder_of_tests_is_on_the_page() -> None:
    page = PAGES[0].read_text()
    folders = sorted(one.parent.name for one in (ROOT / "tests").glob("*/__init__.py"))
    assert [name for name in folders if f"`tests/{name}`" not in page] == []


def test_the_layers_are_those_of_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [one for one in contracts if one["id"] == "layers"]
    layers = [re.findall(r"\w+", layer) for layer in contract["layers"]]
    drawn = PAGES[0].read_text().partition("## Layers")[2].split("```text")[1].split("```")[0]
    assert [line.split() for line in drawn.strip().splitlines()] == layers


def test_the_table_of_folders_has_every_package() -> None:
    table = PAGES[0].read_text().partition("## Where things are")[2].partition("## Layers")[0]
    packages = sorted(one.parent.name for one in SOURCE.glob("*/__init__.py"))
    assert [name for name in packages if not re.search(rf"[`/]{name}`", table)] == []


def test_the_walk_of_a_produce_is_as_long_as_the_page_says() -> None:
    """Counts again, so that the page notices when the way of a record grows or shrinks."""
    found = re.findall(r"^\| now: (.+?) \|(.+)\|$", PAGES[0].read_text(), flags=re.M)
    written = {title: tuple(map(int, numbers.split("|"))) for title, numbers in found}
    counted = {
        title: (len(way.hops), len(way.files), len(way.crossings), len(way.backwards))
        for title, way in zip(("leader", "one follower"), way_of_a_produce(), strict=True)
    }
    assert written == counted, "PYTHONPATH=src python tools/trace_produce.py lists the calls"
