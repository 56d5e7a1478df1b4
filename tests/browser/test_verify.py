"""Damage on the disk of a node that runs, found from the console's Doctor page."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import Page, expect

from tests.browser.conftest import DEADLINE_MS, Watched
from tests.node import ChronikNode
from tests.segments import flip_bit

expect.set_options(timeout=DEADLINE_MS)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> ChronikNode:
    return ChronikNode(tmp_path_factory.mktemp("node"))


def test_a_damaged_segment_is_found_while_the_node_runs(
    page: Page, base: str, node: ChronikNode, watched: Watched
) -> None:
    node.start()
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    config = {"segment.bytes": "16384"}
    admin.create_topics([NewTopic("orders", 1, 1, config=config)])["orders"].result(30)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for _ in range(60):
        producer.produce("orders", b"." * 1_000)
        assert producer.flush(60) == 0
    node.stop()  # its last checkpoint has all but the last segment as closed ones
    damaged: Path = node.segment_files("orders")[1]
    flip_bit(damaged, 500)
    node.start()
    try:
        page.goto(f"{base}/#/doctor")
        card = page.get_by_label("Files on disk", exact=True)
        expect(card).to_contain_text("not yet")
        card.get_by_role("button", name="Check the segments…").click()
        page.locator("dialog").get_by_role("button", name="Check", exact=True).click()
        checks = page.get_by_label("Checks of files").locator("tbody tr")
        expect(checks).to_contain_text("done")
        row = page.get_by_label("Damaged files").locator("tbody tr")
        expect(row).to_contain_text(damaged.name)
        expect(row).to_contain_text("damaged segment")
        expect(row.locator("td").nth(2)).to_have_text("0")
    finally:
        node.kill()
