"""Takes the pictures of the console in docs/console: every page light, dark, phone (`make pictures`).

Three nodes at work are shown, and a fourth one on which people log in. The table of docs/CONSOLE.md is
written anew. `--only PART` takes the pictures whose names contain it, and leaves the others as they are.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from bench.pages import put
from chronik.server.first_user import write_first_user
from chronik.testing import Cluster
from tests.browser.conftest import CANDIDATES, DEADLINE_MS, FLAGS
from tests.browser.pages import FORMS, LOGIN, OF_A_TOPIC, PAGES, ConsolePage
from tests.node import ChronikNode

DOCS: Final = Path(__file__).parents[1] / "docs"
FOLDER: Final = DOCS / "console"
NAMES: Final = ("ada", "grace", "linus", "barbara", "edsger", "margaret", "ken", "radia")
NOTES: Final = ("express delivery please", "gift wrapped", "call before delivery", "")
TOPICS: Final = {
    "orders": (6, 3),
    "clicks": (12, 2),
    "payments": (3, 3),
    "stock": (6, 3),
    "shipments": (3, 3),
}
"""Partitions and replicas of each."""
QUERY: Final = (
    "SELECT customer, count(*) AS orders, round(sum(total), 2) AS total, max(timestamp) AS last\n"
    "FROM orders\nGROUP BY ALL\nORDER BY total DESC"
)
CHART_MS: Final = 45_000
"""How long charts fill before their picture is taken."""
DESKTOP, PHONE = (1280, 800), (390, 844)
HEIGHTS_MAX: Final = {"light": 1300, "dark": 1300, "phone": 1700}
"""What is further down is left out."""
QUALITY: Final = 72
UNTIL_STILL: Final = """Promise.all(document.getAnimations()
    .filter((one) => one.effect.getTiming().iterations !== Infinity)
    .map((one) => one.finished.catch(() => 0)))"""

ADA, PASSWORD = "ada", "a password"
AUDIT: Final = next(one for one in PAGES if one.path == "audit")
"""Empty where nobody logs in."""


class Shop:
    """A shop that writes and reads while its pictures are taken."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._open: Producer | None = None
        """Has a transaction under way."""
        works = (self._write, lambda: self._read("readers", 1.0), lambda: self._read("invoices", 0.02))
        self._threads = [threading.Thread(target=work) for work in (*works, works[1])]

    def __enter__(self) -> Shop:
        self._leave_a_group_behind()
        self._write_in_transactions()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        producer = self._producer("shop", acks="all", linger=20)
        number = 0
        while not self._stop.wait(0.05):
            for _ in range(random.randint(5, 30)):
                number += 1
                name = random.choice(NAMES)
                order = {"id": number, "customer": name, "total": round(random.uniform(2, 300), 2)}
                value = json.dumps({**order, "note": random.choice(NOTES)})
                producer.produce(random.choice(("orders", "orders", "clicks", "payments")), value, key=name)
            if number % 40 < 5:
                producer.produce("stock", json.dumps({"item": number % 97, "left": number % 50}))
            producer.poll(0)
        producer.flush(30)

    def _read(self, group: str, share: float) -> None:
        """Reads what is written, or only a share of it, so that the group falls behind."""
        consumer = self._consumer(group, ["orders", "payments"])
        while not self._stop.is_set():
            consumer.consume(max(1, int(400 * share)), 0.2)
            if share < 1:
                self._stop.wait(0.5)
        consumer.close()

    def _leave_a_group_behind(self) -> None:
        producer = self._producer("import", acks="all", linger=5)
        for number in range(400):
            producer.produce("shipments", json.dumps({"order": number, "carrier": "post"}), key=str(number))
        producer.flush(30)
        consumer = self._consumer("nightly-export", ["shipments"])
        seen = 0
        while seen < 250:
            seen += len(consumer.consume(50, 1))
        consumer.commit(asynchronous=False)
        consumer.close()

    def _write_in_transactions(self) -> None:
        for name in ("billing", "refunds"):
            patience = {"transactional.id": name, "transaction.timeout.ms": 900_000}
            producer = Producer({"bootstrap.servers": self._bootstrap, "client.id": name, **patience})
            producer.init_transactions(60)
            producer.begin_transaction()
            producer.produce("stock", json.dumps({"item": 1, "left": 4}))
            producer.flush(60)
            if name == "refunds":
                producer.commit_transaction(60)
            else:
                self._open = producer

    def _producer(self, client_id: str, *, acks: str, linger: int) -> Producer:
        settings = {"bootstrap.servers": self._bootstrap, "acks": acks, "linger.ms": linger}
        return Producer({**settings, "client.id": client_id})

    def _consumer(self, group: str, topics: list[str]) -> Consumer:
        settings = {"bootstrap.servers": self._bootstrap, "auto.offset.reset": "earliest"}
        more = {"group.id": group, "client.id": group, "auto.commit.interval.ms": 1000}
        consumer = Consumer({**settings, **more})
        consumer.subscribe(topics)
        return consumer


def _messages(page: Page) -> None:
    page.get_by_label("live").uncheck()
    page.locator("tbody tr .disclose").nth(2).click()
    expect(page.locator("td.detail code.json")).to_be_visible()


def _search(page: Page) -> None:
    words = page.get_by_label("Search for")
    words.fill("express customer:ada total:>250")
    while page.locator("article.hit").count() < 3:
        words.press("Enter")
        expect(page.locator(".status .dim", has_text="hit")).to_be_visible()
    page.locator("article.hit summary").first.click()


def _sql(page: Page) -> None:
    expect(page.locator(".tree summary", has_text="payments")).to_be_visible()
    page.locator(".tree summary", has_text="orders").click()
    editor = page.get_by_label("SQL", exact=True)
    editor.press("Control+a")
    editor.press("Delete")
    page.keyboard.insert_text(QUERY)
    editor.press("Control+Enter")
    expect(page.locator(".results tbody tr")).to_have_count(len(NAMES))


def _moves(page: Page) -> None:
    page.get_by_role("combobox", name="Topics", exact=True).select_option("clicks")
    page.get_by_label("node 3").check()
    page.get_by_role("button", name="Make a plan").click()
    expect(page.get_by_label("The plan").locator("tbody tr").first).to_be_visible()


def _produce(page: Page) -> None:
    page.get_by_label("Key", exact=True).fill("ada")
    page.get_by_label("Value").fill('{"id": 7, "customer": "ada", "total": 12.5}')


def _topics(page: Page) -> None:
    expect(page.locator("tbody tr")).to_have_count(len(TOPICS))


def _groups(page: Page) -> None:
    expect(page.locator("tbody tr")).to_have_count(3)


def _clients(page: Page) -> None:
    expect(page.get_by_label("Last values").locator("tbody tr").first).to_be_visible()


def _nothing(page: Page) -> None:
    """The page shows by itself what is to be seen."""


PREPARED: Final[dict[str, Callable[[Page], None]]] = {
    "topics": _topics,
    "groups": _groups,
    "search": _search,
    "sql": _sql,
    "nodes/moves": _moves,
    "clients": _clients,
    "topics/orders": _messages,
    "topics/orders/produce": _produce,
}
"""By path, what is done before the pictures are taken."""


class Camera:
    def __init__(self, only: str) -> None:
        self._only = only
        self.taken: list[str] = []

    def wants(self, one: ConsolePage) -> bool:
        return any(self._only in name for name in one.pictures)

    def take(self, page: Page, one: ConsolePage) -> None:
        """The page as it is now, in each form."""
        for form, name in zip(FORMS, one.pictures, strict=True):
            self.shoot(page, form, name)

    def shoot(self, page: Page, form: str, name: str) -> None:
        width, least = PHONE if form == "phone" else DESKTOP
        page.emulate_media(color_scheme="dark" if form == "dark" else "light")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark" if form == "dark" else "light")
        page.set_viewport_size({"width": width, "height": least})
        page.evaluate("window.scrollTo(0, 0)")
        wanted = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({"width": width, "height": max(least, min(wanted, HEIGHTS_MAX[form]))})
        page.evaluate(UNTIL_STILL)
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        picture = Image.open(io.BytesIO(page.screenshot()))
        picture.convert("RGB").save(FOLDER / name, "WEBP", quality=QUALITY, method=6)
        self.taken.append(name)


def take_of_the_cluster(page: Page, base: str, camera: Camera) -> None:
    page.goto(base)
    expect(page.locator(".node")).to_have_count(3)
    page.evaluate("location.hash = '#/groups'")  # lag is asked for only while somebody looks
    page.wait_for_timeout(CHART_MS)
    topic = page.request.get(f"{base}/admin/topics/orders").json()
    written = next(one for one in topic["partitions"] if one["high_watermark"] > 100)["partition"]
    for one in (*PAGES, *OF_A_TOPIC):
        if one is AUDIT or not camera.wants(one):
            continue
        path = one.path.replace("record/0/0", f"record/{written}/42")
        page.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})
        page.evaluate("path => { location.hash = `#/${path}`; }", path)
        shown = page.locator("main .page")
        expect(shown).not_to_have_attribute("data-state", "loading")
        expect(page.locator("main .skeleton")).to_have_count(0)
        PREPARED.get(one.path, _nothing)(page)
        camera.take(page, one)


def take_without_a_node(page: Page, base: str, cluster: Cluster, camera: Camera) -> None:
    page.emulate_media(color_scheme="light")
    page.goto(f"{base}/#/")
    victim = next(each for each in cluster.nodes if each != 1)
    cluster.kill(victim)
    expect(page.locator(f'.node.down[data-node="{victim}"]')).to_be_visible()
    expect(page.locator(".cell.short").first).to_be_visible()
    page.wait_for_timeout(5000)
    camera.shoot(page, "light", "node-down.webp")
    page.evaluate("location.hash = '#/doctor'")
    expect(page.locator(".trouble.bad").first).to_be_visible()
    camera.shoot(page, "light", "doctor-trouble.webp")


def take_where_people_log_in(page: Page, node: ChronikNode, camera: Camera) -> None:
    base = f"http://127.0.0.1:{node.settings['http_port']}"
    page.goto(f"{base}/console/login.html#/audit")
    expect(page.get_by_label("User")).to_be_visible()
    camera.take(page, LOGIN)
    page.get_by_label("User").fill(ADA)
    page.get_by_label("Password").fill("a wrong one")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("#who")).to_contain_text(ADA)
    session = page.evaluate("fetch('/session').then((answer) => answer.json())")
    headers = {"x-csrf-token": session["csrf_token"]}
    for path, body in (
        ("/admin/create-topic", {"name": "orders", "partitions": 3}),
        ("/admin/create-topic", {"name": "payments"}),
        ("/admin/topics/orders/config", {"config": {"retention.ms": "604800000"}}),
        ("/admin/topics/orders/partitions", {"count": 6}),
    ):
        assert page.request.post(f"{base}{path}", data=body, headers=headers).ok, path
    key = {"name": "grafana", "read_only": True}
    assert page.request.post(f"{base}/admin/keys", data=key, headers=headers).status == 403  # for super users
    page.evaluate("location.hash = '#/audit'")
    expect(page.locator("tbody tr").filter(has_text="/admin/keys")).to_be_visible()
    camera.take(page, AUDIT)


@contextmanager
def new_page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(color_scheme="light", device_scale_factor=1)
    context.set_default_timeout(DEADLINE_MS)
    yield context.new_page()
    context.close()


def table() -> str:
    """Every page with its pictures, for docs/CONSOLE.md."""
    lines = []
    for one in (*PAGES, *OF_A_TOPIC, LOGIN):
        name = one.picture.capitalize() if one in OF_A_TOPIC else one.title
        files = zip(FORMS, one.pictures, strict=True)
        shown = [f"[![{name}, {form}](console/{file})](console/{file})" for form, file in files]
        lines += [f"\n### {name}\n", f"| {' | '.join(FORMS)} |", "|---|---|---|", f"| {' | '.join(shown)} |"]
    return "\n".join(lines) + "\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="take the pictures whose names contain this")
    camera = Camera(parser.parse_args().only)
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CANDIDATES)))
    expect.set_options(timeout=DEADLINE_MS)
    FOLDER.mkdir(exist_ok=True)
    with ExitStack() as stack:
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=found, args=list(FLAGS), headless=True)
        stack.callback(browser.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pictures-")))
        if any(map(camera.wants, (LOGIN, AUDIT))):
            write_first_user(folder / "data", ADA, PASSWORD)
            node = ChronikNode(folder, authorizer=True)
            with node, new_page(browser) as page:
                take_where_people_log_in(page, node, camera)
        with Cluster(nodes=3, can_partition=False) as cluster, new_page(browser) as page:
            for name, (partitions, replicas) in TOPICS.items():
                configs = {"searchable": "true"} if name == "orders" else {}
                cluster.create_topic(
                    name, partitions=partitions, replication_factor=replicas, configs=configs
                )
            base = f"http://{cluster.layout.node(1).peer.http}"
            metrics = {"metrics": "*", "interval_ms": 1000}
            page.request.post(f"{base}/admin/client-metrics/all", data=metrics)
            with Shop(cluster.bootstrap):  # after that: a client asks when it starts, then every five minutes
                take_of_the_cluster(page, base, camera)
                take_without_a_node(page, base, cluster, camera)
    put(DOCS / "CONSOLE.md", "pictures", table())
    size = sum(path.stat().st_size for path in FOLDER.glob("*.webp"))
    print(f"{len(camera.taken)} pictures taken; all in {FOLDER.name}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
