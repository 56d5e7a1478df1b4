"""Every page of the console has its pictures, the documentation shows them, and they are small."""

from __future__ import annotations

import re
from pathlib import Path

from PIL import Image

from tests.browser.pages import FORMS, LOGIN, OF_A_TOPIC, PAGES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONSOLE = ROOT / "src" / "chronik" / "admin" / "console"
ALL = (*PAGES, *OF_A_TOPIC, LOGIN)
PICTURES = {name for one in ALL for name in one.pictures}
OF_TROUBLE = {"node-down.webp", "doctor-trouble.webp"}
BYTES_MAX = 4_000_000
WIDTHS = {"light": 1280, "dark": 1280, "phone": 390}


def test_every_page_has_its_pictures_and_there_are_no_others() -> None:
    assert len(PICTURES) == len(ALL) * len(FORMS)
    assert {path.name for path in (DOCS / "console").iterdir()} == PICTURES | OF_TROUBLE


def test_the_documentation_shows_each() -> None:
    shown = set(re.findall(r"\(console/([\w-]+\.webp)\)", (DOCS / "CONSOLE.md").read_text()))
    assert shown == PICTURES | OF_TROUBLE


def test_a_picture_is_as_wide_as_its_form_and_all_are_small() -> None:
    for name in PICTURES:
        with Image.open(DOCS / "console" / name) as picture:
            form = name.removesuffix(".webp").rsplit("-", 1)[1]
            assert (name, picture.format, picture.width) == (name, "WEBP", WIDTHS[form])
    assert sum(path.stat().st_size for path in (DOCS / "console").iterdir()) < BYTES_MAX


def test_the_list_of_pages_is_that_of_the_console() -> None:
    app = (CONSOLE / "app.js").read_text()
    sections = set(re.findall(r'\{ id: "(\w*)", name: ', app))
    assert len(sections) >= 10
    assert {one.path.split("/")[0] for one in PAGES} == sections
    drawn = set(re.findall(r'from "/console/pages/(\w+)\.js"', app))
    others = {"messages", "produce", "result", "verify", "release"}
    """Parts of pages."""
    assert {path.stem for path in (CONSOLE / "pages").glob("*.js")} == drawn | others
    assert {one.path.split("/")[0] for one in OF_A_TOPIC} == {"topics", "groups"}
