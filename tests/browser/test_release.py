"""The cluster's level on the Nodes page, and the step after which no node goes back."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from playwright.sync_api import Page, Route, expect

from chronik.metadata.levels import LEVEL_FIRST, LEVEL_LAST, LEVELS
from tests.browser.conftest import DEADLINE_MS, Watched
from tests.browser.pages import PAGES, opened
from tests.node import ChronikNode

expect.set_options(timeout=DEADLINE_MS)
FOUND = f"""
from chronik.cluster.status import ClusterStatus
async def common_level(self):
    return {LEVEL_FIRST}
ClusterStatus.common_level = common_level
from chronik.cli import main
main()
"""
NODES = next(one for one in PAGES if one.path == "nodes")


class OlderCluster(ChronikNode):
    """A node whose cluster is at the first level, as if the first release had founded it."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", FOUND, *super().command()[3:]]


def address(node: ChronikNode) -> str:
    return f"http://127.0.0.1:{node.settings['http_port']}"


def test_a_cluster_at_the_last_level_has_nothing_to_finalize(page: Page, base: str, watched: Watched) -> None:
    opened(page, base, NODES)
    card = page.get_by_role("region", name="Versions and level")
    expect(card).to_contain_text(f"The cluster is at level {LEVEL_LAST} (release {LEVELS[LEVEL_LAST][0]}).")
    expect(card).to_contain_text("There is nothing to finalize.")
    expect(card.get_by_role("button", name="Finalize the upgrade…")).to_have_count(0)


def test_an_upgrade_is_finalized_after_its_level_was_typed(page: Page, tmp_path: Path) -> None:
    node = OlderCluster(tmp_path / "node")
    with node:
        watched = Watched(page, address(node))
        opened(page, address(node), NODES)
        card = page.get_by_role("region", name="Versions and level")
        expect(card).to_contain_text(f"The cluster is at level {LEVEL_FIRST} (release 0.1).")
        expect(card.locator("tbody tr")).to_contain_text(f"{LEVEL_FIRST} to {LEVEL_LAST}")
        card.get_by_role("button", name="Finalize the upgrade…").click()
        dialog = page.locator("dialog")
        expect(dialog).to_contain_text("There is no way back")
        expect(dialog.get_by_label("Preview")).to_have_text(f"Every node knows level {LEVEL_LAST}.")
        level = page.get_by_label("Type the new level to confirm")
        level.fill(str(LEVEL_FIRST))
        dialog.get_by_role("button", name="Finalize").click()
        expect(dialog.get_by_role("alert")).to_have_text("That is not the new level.")
        level.fill(str(LEVEL_LAST))
        dialog.get_by_role("button", name="Finalize").click()
        expect(page.locator("#toasts")).to_contain_text(f"The cluster is at level {LEVEL_LAST} now")
        expect(card).to_contain_text("There is nothing to finalize.")
        assert watched.errors == []


def test_a_node_of_an_older_release_and_one_that_is_silent_are_named(page: Page, base: str) -> None:
    nodes = [
        {"node_id": 1, "levels": [1, 2], "release": "0.2"},
        {"node_id": 2, "levels": [1, 1], "release": "0.1"},
        {"node_id": 3, "levels": None, "release": None},
    ]
    step = "node 3 does not answer: start or remove it before the upgrade is finalized"
    answer = {"level": 1, "release": "0.1", "highest": None, "can_finalize": False, "next_step": step}

    def tell(route: Route) -> None:
        route.fulfill(json={**answer, "nodes": nodes})

    page.route("**/admin/upgrade", tell)
    opened(page, base, NODES)
    rows = page.get_by_label("Versions by node").locator("tbody tr")
    expect(rows.nth(1)).to_contain_text(re.compile("0.1.*older"))
    expect(rows.nth(2)).to_contain_text("does not answer")
    expect(page.get_by_role("button", name="Finalize the upgrade…")).to_have_count(0)
