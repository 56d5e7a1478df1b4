"""The documentation site's pages (`make site`): gathered from the repository, links between them mended.

The README is the site's first page; CHANGELOG, CONTRIBUTING and SECURITY lie outside docs/ as well. The
generator knows one folder, so all of them are copied into one, and each relative link is made to point at
where its target went. `site_mistakes` is what `check_docs.py` says about links, anchors and the site's nav.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CONFIG = "zensical.toml"
START = "README.md"
OUTSIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages of the site that lie beside docs/, where people and tools look for them."""
DECISIONS = "docs/decisions"
DECISIONS_PAGE = "decisions/index.md"
DECISIONS_HEAD = "# Decisions\n\nWhat was chosen, by which figures, and what was given up for it.\n\n"
LINK = re.compile(r"\]\(([^)#:\s]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^\s*```")


def pages(root: Path = ROOT) -> list[Path]:
    """Every page of the site but the list of decisions, which is made."""
    return [root / START, *(root / name for name in OUTSIDE), *sorted(root.glob("docs/**/*.md"))]


def place(path: Path, root: Path = ROOT) -> str:
    """Where a file of the repository lies in the site's folder."""
    name = path.relative_to(root).as_posix()
    return "index.md" if name == START else name.removeprefix("docs/")


def prose(text: str) -> Iterator[tuple[int, str, bool]]:
    """Number and text of each line, and whether it is read as Markdown: code is not."""
    code = False
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        fence = FENCE.match(line) is not None
        yield number, line, not (code or fence)
        code ^= fence


def links(page: Path) -> Iterator[tuple[int, str, str]]:
    """Line, file and anchor of each relative link; an empty file is the page itself."""
    for number, line, markdown in prose(page.read_text()):
        for target, anchor in LINK.findall(line) if markdown else ():
            yield number, target, anchor.removeprefix("#")


def anchors(page: Path) -> set[str]:
    """What a link may name in a page: the anchors on which a forge and the site's generator agree."""
    found = [
        line.lstrip("#").strip()
        for _, line, markdown in prose(page.read_text())
        if markdown and re.match(r"#{1,6} ", line)
    ]
    return _numbered(found, forge_slug, "-") & _numbered(found, site_slug, "_")


def forge_slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", _plain(heading).lower()).replace(" ", "-")


def site_slug(heading: str) -> str:
    """As Python-Markdown's `toc` makes them: ASCII, and one hyphen where there would be several."""
    ascii_only = _plain(heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())


def _plain(heading: str) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")


def _numbered(headings: list[str], slug: Callable[[str], str], between: str) -> set[str]:
    """The anchors of all headings; a heading that comes again gets a number."""
    seen: dict[str, int] = {}
    for name in map(slug, headings):
        seen[name] = seen.get(name, 0) + 1
    return {f"{name}{between}{n}" if n else name for name, count in seen.items() for n in range(count)}


def site_mistakes(root: Path = ROOT) -> Iterator[str]:
    """Links that lead nowhere, and pages that the site does not list."""
    for page in pages(root):
        for number, target, anchor in links(page):
            where = f"{page.relative_to(root)}, line {number}"
            aim = (page.parent / target).resolve() if target else page
            if not aim.exists():
                yield f"{where}: there is no {target}"
            elif anchor and (aim.suffix != ".md" or anchor not in anchors(aim)):
                yield f"{where}: {aim.relative_to(root.resolve())} has no heading for #{anchor}"
    listed = sorted(nav(tomllib.loads((root / CONFIG).read_text())["project"]["nav"]))
    decisions = root / DECISIONS
    wanted = sorted(
        [*(place(page, root) for page in pages(root) if page.parent != decisions), DECISIONS_PAGE]
    )
    for name in sorted({*listed, *wanted}):
        if listed.count(name) != wanted.count(name):
            yield f"{CONFIG}: nav lists {name} {listed.count(name)} times, not {wanted.count(name)}"


def nav(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for below in entry.values():
            if isinstance(below, str):
                yield below
            else:
                yield from nav(below)


def gather(target: Path, root: Path = ROOT) -> None:
    """Copies all pages and what they link to, and writes the list of decisions."""
    shutil.rmtree(target, ignore_errors=True)
    for page in pages(root):
        here = target / place(page, root)
        here.parent.mkdir(parents=True, exist_ok=True)
        here.write_text(
            "".join(_moved(page, line, root) if md else line for _, line, md in prose(page.read_text()))
        )
        for aim in {page.parent / name for _, name, _ in links(page) if name and not name.endswith(".md")}:
            copy = target / place(aim.resolve(), root.resolve())
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(aim, copy)
    decisions = sorted((root / DECISIONS).glob("*.md"))
    rows = [f"- [{page.read_text().splitlines()[0].lstrip('# ')}]({page.name})\n" for page in decisions]
    (target / DECISIONS_PAGE).write_text(DECISIONS_HEAD + "".join(rows))


def _moved(page: Path, line: str, root: Path) -> str:
    start = Path(place(page, root)).parent

    def move(link: re.Match[str]) -> str:
        if not link[1]:
            return link[0]
        aim = place((page.parent / link[1]).resolve(), root.resolve())
        return f"]({Path(os.path.relpath(aim, start)).as_posix()}{link[2] or ''})"

    return LINK.sub(move, line)


if __name__ == "__main__":
    gather(Path(sys.argv[1]))
