"""Every link and anchor of the documentation leads somewhere, and the site lists every page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import site

NAV = '[project]\nnav = [{ "Start" = "index.md" }, { "More" = [%s] }]\n'
LISTED = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "PAGE.md", "decisions/index.md")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a page and a decision, and nothing wrong in it."""
    (tmp_path / "docs" / "decisions").mkdir(parents=True)
    for name in (site.START, *site.OUTSIDE):
        (tmp_path / name).write_text(f"# {name}\n\n[page](docs/PAGE.md#a-heading)\n")
    (tmp_path / "docs" / "PAGE.md").write_text(
        "# Page\n\n## A heading\n\n```\n## not a heading\n[nor](a-link.md)\n```\n\n"
        "[up](../SECURITY.md), [why](decisions/0001-why.md)\n"
    )
    (tmp_path / "docs" / "decisions" / "0001-why.md").write_text("# 0001: why\n\n[back](../PAGE.md)\n")
    listed(tmp_path, *LISTED)
    return tmp_path


def listed(root: Path, *names: str) -> None:
    (root / site.CONFIG).write_text(NAV % ", ".join(f'{{ "x" = "{name}" }}' for name in names))


def test_the_documentation_has_no_mistake() -> None:
    assert list(site.site_mistakes()) == []


def test_nothing_is_found_where_nothing_is_wrong(root: Path) -> None:
    assert list(site.site_mistakes(root)) == []


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("[a](NOWHERE.md)", "docs/MORE.md, line 3: there is no NOWHERE.md"),
        ("[a](PAGE.md#b-heading)", "docs/MORE.md, line 3: docs/PAGE.md has no heading for #b-heading"),
        (
            "[a](PAGE.md#not-a-heading)",
            "docs/MORE.md, line 3: docs/PAGE.md has no heading for #not-a-heading",
        ),
        ("[a](#here)", "docs/MORE.md, line 3: docs/MORE.md has no heading for #here"),
    ],
)
def test_a_link_that_leads_nowhere_is_found(root: Path, written: str, found: str) -> None:
    listed(root, *LISTED, "MORE.md")
    (root / "docs" / "MORE.md").write_text(f"# More\n\n{written}\n")
    assert list(site.site_mistakes(root)) == [found]


def test_a_page_that_the_site_does_not_list_is_found_and_one_that_is_gone(root: Path) -> None:
    (root / "docs" / "MORE.md").write_text("# More\n")
    listed(root, *LISTED, "GONE.md", "PAGE.md")
    assert [*site.site_mistakes(root)] == [
        "zensical.toml: nav lists GONE.md 1 times, not 0",
        "zensical.toml: nav lists MORE.md 0 times, not 1",
        "zensical.toml: nav lists PAGE.md 2 times, not 1",
    ]


def test_anchors_are_those_on_which_a_forge_and_the_generator_agree(root: Path) -> None:
    page = root / "docs" / "PAGE.md"
    page.write_text("# The `code` of it\n## When…\n## A - B\n## Again\n## Again\n")
    assert site.anchors(page) == {"the-code-of-it", "when", "again"}


def test_links_are_mended_where_pages_move(root: Path, tmp_path: Path) -> None:
    site.gather(tmp_path / "out", root)
    assert "(PAGE.md#a-heading)" in (tmp_path / "out" / "index.md").read_text()
    page = (tmp_path / "out" / "PAGE.md").read_text()
    assert "[up](SECURITY.md), [why](decisions/0001-why.md)" in page
    assert "[nor](a-link.md)" in page  # code stays as it is
    assert "[0001: why](0001-why.md)" in (tmp_path / "out" / "decisions" / "index.md").read_text()


def test_every_link_of_the_gathered_site_leads_somewhere(tmp_path: Path) -> None:
    site.gather(tmp_path)
    made = sorted(tmp_path.rglob("*.md"))
    assert len(made) == len(site.pages()) + 1
    lost = [
        f"{page.name}: {target}"
        for page in made
        for _, target, _ in site.links(page)
        if target and not (page.parent / target).is_file()
    ]
    assert lost == []
