"""Takes the pictures of the console in docs/console, of three nodes at work (python -m tools.screenshots)."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from pathlib import Path

from confluent_kafka import Producer
from playwright.sync_api import Page, expect, sync_playwright

from chronik.testing import Cluster
from tests.browser.conftest import CANDIDATES, DEADLINE_MS, FLAGS

FOLDER = Path(__file__).parents[1] / "docs" / "console"
NAMES = ("ada", "grace", "linus", "barbara", "edsger")
NOTES = ("express delivery please", "gift wrapped", "call before delivery", "")
QUERY = (
    "SELECT customer, count(*) AS orders, round(sum(total), 2) AS total, max(timestamp) AS last\n"
    "FROM orders\nGROUP BY ALL\nORDER BY total DESC"
)
CHART_MS = 40_000
"""How long charts fill before their picture is taken."""


def keep_writing(bootstrap: str, stop: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 20, "client.id": "shop"})
    number = 0
    while not stop.wait(0.05):
        for _ in range(random.randint(5, 30)):
            number += 1
            name = random.choice(NAMES)
            order = {"id": number, "customer": name, "total": round(random.uniform(2, 300), 2)}
            value = json.dumps({**order, "note": random.choice(NOTES)})
            producer.produce(random.choice(("orders", "clicks", "payments")), value, key=name)
        producer.poll(0)
    producer.flush(30)


def pictures(page: Page, base: str, cluster: Cluster) -> None:
    page.goto(base)
    expect(page.locator(".node")).to_have_count(3)
    page.wait_for_timeout(CHART_MS)
    page.set_viewport_size({"width": 1280, "height": 1120})
    page.screenshot(path=FOLDER / "overview.png")

    page.set_viewport_size({"width": 1280, "height": 760})
    page.goto(f"{base}/#/topics/orders")
    page.get_by_label("live").uncheck()
    page.locator("tbody tr .disclose").nth(2).click()
    expect(page.locator("td.detail code.json")).to_be_visible()
    page.screenshot(path=FOLDER / "messages.png")

    page.goto(f"{base}/#/clients")
    expect(page.get_by_label("Last values").locator("tbody tr").first).to_be_visible()
    page.screenshot(path=FOLDER / "clients.png")

    page.keyboard.press("d")
    page.goto(f"{base}/#/search")
    words = page.get_by_label("Search for")
    words.fill("express customer:ada total:>250")
    while page.locator("article.hit").count() < 3:
        words.press("Enter")
        expect(page.locator(".status .dim", has_text="hit")).to_be_visible()
    page.locator("article.hit summary").first.click()
    page.screenshot(path=FOLDER / "search-dark.png")

    page.goto(f"{base}/#/sql")
    expect(page.locator(".tree summary", has_text="payments")).to_be_visible()
    page.locator(".tree summary", has_text="orders").click()
    editor = page.get_by_label("SQL", exact=True)
    editor.press("Control+a")
    editor.press("Delete")
    page.keyboard.insert_text(QUERY)
    editor.press("Control+Enter")
    expect(page.locator(".results tbody tr")).to_have_count(len(NAMES))
    page.screenshot(path=FOLDER / "sql-dark.png")

    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{base}/#/topics")
    expect(page.locator("tbody tr")).to_have_count(3)
    page.screenshot(path=FOLDER / "phone-dark.png")

    page.get_by_role("button", name="Light").click()
    page.set_viewport_size({"width": 1280, "height": 1120})
    page.goto(f"{base}/#/")
    victim = next(each for each in cluster.nodes if each != 1)
    cluster.kill(victim)
    expect(page.locator(f'.node.down[data-node="{victim}"]')).to_be_visible()
    expect(page.locator(".cell.short").first).to_be_visible()
    page.wait_for_timeout(5000)
    page.screenshot(path=FOLDER / "node-down.png")
    page.set_viewport_size({"width": 1280, "height": 760})
    page.goto(f"{base}/#/doctor")
    expect(page.locator(".trouble.bad").first).to_be_visible()
    page.screenshot(path=FOLDER / "doctor.png")


def main() -> None:
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CANDIDATES)))
    expect.set_options(timeout=DEADLINE_MS)
    stop = threading.Event()
    with Cluster(nodes=3, can_partition=False) as cluster, sync_playwright() as playwright:
        for name, partitions in (("orders", 6), ("clicks", 12), ("payments", 3)):
            configs = {"searchable": "true"} if name == "orders" else {}
            cluster.create_topic(name, partitions=partitions, replication_factor=3, configs=configs)
        writer = threading.Thread(target=keep_writing, args=(cluster.bootstrap, stop))
        browser = playwright.chromium.launch(executable_path=found, args=list(FLAGS), headless=True)
        try:
            context = browser.new_context(viewport={"width": 1280, "height": 1120}, color_scheme="light")
            context.set_default_timeout(DEADLINE_MS)
            base = f"http://{cluster.layout.node(1).peer.http}"
            metrics = {"metrics": "*", "interval_ms": 1000}
            context.request.post(f"{base}/admin/client-metrics/all", data=metrics)
            writer.start()  # after that: a client asks when it starts and then only every five minutes
            pictures(context.new_page(), base, cluster)
        finally:
            stop.set()
            if writer.ident is not None:
                writer.join()
            browser.close()


if __name__ == "__main__":
    main()
