"""The console of a cluster of three: a dead node, moves by a plan, a node that is drained."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from chronik.config import Peer
from chronik.testing import Cluster
from tests.browser.conftest import DEADLINE_MS, Watched
from tests.browser.pages import OF_A_TOPIC, PAGES, opened

expect.set_options(timeout=DEADLINE_MS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, can_partition=False) as started:
        yield started


@pytest.fixture(scope="module")
def base(cluster: Cluster) -> str:
    return f"http://{cluster.layout.node(1).peer.http}"


def test_replicas_move_by_a_plan_that_is_shown_first(
    page: Page, base: str, cluster: Cluster, watched: Watched
) -> None:
    cluster.create_topic("moved", partitions=4, replication_factor=2)
    page.goto(f"{base}/#/topics/moved")
    page.get_by_role("link", name="Move replicas…").click()
    expect(page.get_by_role("combobox", name="Topics", exact=True)).to_have_value("moved")
    page.get_by_label("node 3").check()
    page.get_by_role("button", name="Make a plan").click()
    plan = page.get_by_label("The plan").locator("tbody tr")
    expect(plan.first).to_be_visible()
    page.get_by_role("button", name="Move", exact=False).last.click()
    page.locator("dialog").get_by_role("button", name="Move", exact=True).click()
    expect(page.locator("#toasts")).to_contain_text("on the move")
    expect(page.get_by_text("Nothing is on the move")).to_be_visible()
    page.goto(f"{base}/#/topics/moved/partitions")
    replicas = page.get_by_label("Partitions of moved").locator("tbody tr td:nth-child(4)")
    expect(replicas).to_have_count(4)
    for row in replicas.all():
        expect(row).not_to_contain_text("3")


def test_a_dead_node_is_shown_on_every_page(page: Page, base: str, cluster: Cluster) -> None:
    watched = Watched(page, base)
    cluster.create_topic("orders", partitions=6, replication_factor=3)
    body = {"value": "a record", "partition": 0}
    assert page.request.post(f"{base}/admin/topics/orders/messages", data=body).ok
    page.goto(f"{base}/")
    expect(page.locator(".node")).to_have_count(3)
    expect(page.locator(".node.down")).to_have_count(0)
    expect(page.locator(".cell:not(.short):not(.gone)").first).to_be_visible()
    victim = 2
    watched.may_fail = True
    cluster.kill(victim)
    down = page.locator(f'.node.down[data-node="{victim}"]')
    expect(down).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text(f"Node {victim} is down")
    expect(page.locator(".cell.short").first).to_be_visible()
    for one in (*PAGES, *OF_A_TOPIC):
        if one.path.startswith("groups/"):
            continue  # nobody reads here
        shown = opened(page, base, one)
        expect(shown).to_have_attribute("data-state", one_of("ready", "empty"))
    page.goto(f"{base}/#/nodes")
    expect(page.get_by_label("Nodes").get_by_text("down", exact=True)).to_be_visible()
    page.goto(f"{base}/#/doctor")
    expect(page.locator(".trouble.bad").filter(has_text="under-replicated")).to_be_visible()
    page.goto(f"{base}/#/")
    cluster.start(victim)
    expect(down).to_have_count(0)
    expect(page.locator(".cell.short")).to_have_count(0)
    assert watched.errors == []
    assert watched.strangers == []


def one_of(*states: str) -> re.Pattern[str]:
    return re.compile(f"^({'|'.join(states)})$")


def test_a_node_is_added_and_another_drained_after_its_id_was_typed(
    page: Page, base: str, cluster: Cluster, watched: Watched
) -> None:
    cluster.create_topic("spread", partitions=4, replication_factor=3)
    page.goto(f"{base}/#/nodes")
    rows = page.get_by_label("Nodes").locator("tbody tr")
    expect(rows).to_have_count(3)
    for width in (375, 1280):
        page.set_viewport_size({"width": width, "height": 860})
        box = rows.nth(0).get_by_role("button", name="Drain…").bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width - 14
    added = cluster.add_node(admit=lambda peer: add_by_page(page, peer))
    expect(rows).to_have_count(4)
    expect(rows.nth(3)).to_contain_text("up")

    rows.nth(2).get_by_role("button", name="Drain…").click()
    dialog = page.locator("dialog")
    expect(dialog.get_by_label("Preview")).to_contain_text("would move")
    page.get_by_label("Type the node's id to confirm").fill("2")
    page.get_by_role("button", name="Drain and remove").click()
    expect(page.get_by_role("alert").last).to_contain_text("That is not the node's id")
    page.get_by_label("Type the node's id to confirm").fill("3")
    page.get_by_role("button", name="Drain and remove").click()
    expect(dialog).to_have_count(0)
    expect(rows).to_have_count(3)
    expect(rows.last).to_contain_text(str(added))
    for topic, count in (("spread", 4), ("orders", 6)):
        for number in range(count):
            assert sorted(cluster.replicas_of(topic, number)) == [1, 2, added]


def add_by_page(page: Page, peer: Peer) -> None:
    page.get_by_role("button", name="Add a node…").click()
    dialog = page.locator("dialog")
    expect(dialog.get_by_label("Node id")).to_have_value(str(peer.id))
    for label, address in (
        ("Kafka", peer.kafka),
        ("HTTP", peer.http),
        ("WAL", peer.wal),
        ("Raft", peer.raft),
    ):
        dialog.get_by_label(label, exact=True).fill(str(address))
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog).to_have_count(0)
