"""Every page opened by its own address: empty, loading, full, stale, refused; by keyboard and on a phone."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from playwright.sync_api import Browser, Page, Route, expect

from chronik.server.first_user import write_first_user
from tests.browser.conftest import DEADLINE_MS, Watched
from tests.browser.pages import OF_A_TOPIC, PAGES, ConsolePage, opened
from tests.node import ChronikNode

AXE = Path(__file__).parents[2] / ".foreign" / "node" / "node_modules" / "axe-core" / "axe.min.js"
ALL = (*PAGES, *OF_A_TOPIC)
CLIENT_METRICS_MS = 500
ASK_FOR_THEMSELVES = {"transactions", "doctor", "clients", "audit", "topics/orders/record/0/0"}
"""Pages that show what they asked for: without an answer they have nothing of before to show."""
UNTIL_STILL = """Promise.all(document.getAnimations()
    .filter((one) => one.effect.getTiming().iterations !== Infinity)
    .map((one) => one.finished.catch(() => 0)))"""
expect.set_options(timeout=DEADLINE_MS)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChronikNode]:
    """A node with a searchable topic, a group that reads it, an open transaction, a client that pushes."""
    server = ChronikNode(tmp_path_factory.mktemp("full"))
    with server:
        fill(server)
        yield server


def fill(server: ChronikNode, **headers: str) -> None:
    call(server, "/admin/client-metrics/all", {"metrics": "*", "interval_ms": CLIENT_METRICS_MS}, **headers)
    topic = {"name": "orders", "partitions": 3, "config": {"searchable": True}}
    call(server, "/admin/create-topic", topic, **headers)
    producer = Producer({"bootstrap.servers": server.bootstrap, "client.id": "shop"})
    for n in range(20):
        producer.produce("orders", f'{{"customer": "ada", "total": {n}}}', key="ada", partition=n % 3)
    assert producer.flush(60) == 0
    patience = {"transactional.id": "billing", "transaction.timeout.ms": 900_000}
    open_ = Producer({"bootstrap.servers": server.bootstrap, **patience})
    open_.init_transactions(60)
    open_.begin_transaction()
    open_.produce("orders", b'{"open": true}', partition=1)
    assert open_.flush(60) == 0
    settings = {"group.id": "readers", "auto.offset.reset": "earliest", "client.id": "reader"}
    consumer = Consumer({"bootstrap.servers": server.bootstrap, **settings})
    consumer.subscribe(["orders"])
    message = consumer.poll(60)
    assert message is not None
    consumer.commit(message, asynchronous=False)
    consumer.close()
    producer.close()


def call(server: ChronikNode, path: str, body: dict[str, Any], **headers: str) -> Any:
    request = urllib.request.Request(
        address(server) + path, json.dumps(body).encode(), headers, method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def address(server: ChronikNode) -> str:
    return f"http://127.0.0.1:{server.settings['http_port']}"


@contextlib.contextmanager
def held(page: Page, part: str) -> Iterator[None]:
    """Calls whose path has this part are not answered until the end."""
    waiting: list[Route] = []
    page.route(lambda url: part in url, lambda route: waiting.append(route))
    yield
    page.unroute_all()
    for route in waiting:
        with contextlib.suppress(Exception):
            route.continue_()


@pytest.mark.parametrize("one", PAGES, ids=lambda one: one.title)
def test_on_an_empty_node_it_loads_and_then_says_what_to_do(
    page: Page, base: str, watched: Watched, one: ConsolePage
) -> None:
    with held(page, one.calls):
        shown = opened(page, base, one)
        expect(shown).to_have_attribute("data-state", "loading")
    expect(shown).not_to_have_attribute("data-state", "loading")
    if one.empty is not None:
        expect(page.locator(".empty b").first).to_have_text(one.empty)
        expect(shown).to_have_attribute("data-state", "empty")


@pytest.mark.parametrize("path", ["topics/nobody", "groups/nobody", "nowhere"])
def test_what_is_not_there_is_said(page: Page, base: str, path: str) -> None:
    page.goto(f"{base}/#/{path}")
    expect(page.locator(".empty b")).to_have_text(re.compile("no such|not there"))


def test_on_a_full_node_every_page_shows_it(page: Page, full: ChronikNode) -> None:
    watched = Watched(page, address(full))
    seen = {
        "topics": "orders",
        "groups": "readers",
        "transactions": "billing",
        "search": "Search for something",
        "sql": "orders",
        "clients": "shop",
        "doctor": "All that was looked at",
        "topics/orders": "ada",
        "topics/orders/partitions": "High watermark",
        "topics/orders/config": "retention.ms",
        "topics/orders/record/0/0": "in the WAL",
        "groups/readers": "Nobody is reading",
    }
    for one in ALL:
        shown = opened(page, address(full), one)
        expect(shown).to_have_attribute("data-state", re.compile("ready|empty"))
        expect(page.locator("main .skeleton")).to_have_count(0)
        expect(page.locator("main .error")).to_have_count(0)
        if one.path in seen:
            expect(shown).to_contain_text(seen[one.path])
    assert watched.errors == []
    assert watched.strangers == []


def test_no_page_has_an_accessibility_violation_or_scrolls_sideways(page: Page, full: ChronikNode) -> None:
    axe = AXE.read_text()  # `make foreign` puts it there
    found = []
    for one in ALL:
        shown = opened(page, address(full), one)
        expect(shown).not_to_have_attribute("data-state", "loading")
        expect(page.locator("main .skeleton")).to_have_count(0)
        page.evaluate(axe)
        found += [f"{one.path or 'overview'}, light: {each}" for each in violations(page)]
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("d")
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        found += [f"{one.path or 'overview'}, dark: {each}" for each in violations(page)]
        page.keyboard.press("d")
        page.set_viewport_size({"width": 375, "height": 812})
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 375:
            found.append(f"{one.path or 'overview'}: {width} wide on a phone")
        page.set_viewport_size({"width": 1280, "height": 860})
    assert found == []


def violations(page: Page) -> list[str]:
    """Animations are over first: colours that fade have no contrast yet."""
    page.evaluate(UNTIL_STILL)
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [f"{one['id']}: {node['html'][:160]}" for one in result["violations"] for node in one["nodes"][:3]]


@pytest.mark.parametrize("width", [375, 1280])
def test_what_a_table_offers_to_do_is_seen_without_scrolling(
    page: Page, full: ChronikNode, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 860})
    for path, button in (("transactions", "End…"), ("clients", "Change…"), ("clients", "End…")):
        page.goto(f"{address(full)}/#/{path}")
        box = page.locator("main table").get_by_role("button", name=button).first.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width - 14, (path, button)


def test_the_doctor_tells_what_was_seen_on_a_phone(page: Page, full: ChronikNode) -> None:
    page.set_viewport_size({"width": 375, "height": 812})
    page.goto(f"{address(full)}/#/doctor")
    message = page.locator("main table").get_by_text("each with a leader and all replicas in sync")
    box = message.locator("visible=true").bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 375


def test_dialogs_can_be_read_and_left_by_keyboard(page: Page, full: ChronikNode) -> None:
    axe = AXE.read_text()
    for path, button in (
        ("topics", "New topic"),
        ("topics/orders", "More partitions…"),
        ("topics/orders", "Delete…"),
        ("groups/readers", "Reset offsets…"),
        ("groups/readers", "Delete…"),
        ("transactions", "End…"),
        ("nodes", "Add a node…"),
        ("clients", "Ask for metrics…"),
    ):
        page.goto("about:blank")
        page.goto(f"{address(full)}/#/{path}")
        page.get_by_role("button", name=button).first.press("Enter")
        expect(page.locator("dialog h2")).to_be_visible()
        page.evaluate(axe)
        assert violations(page) == [], button
        page.keyboard.press("Escape")
        expect(page.locator("dialog")).to_have_count(0)
        expect(page.get_by_role("button", name=button).first).to_be_focused()


def test_the_menu_opens_on_a_phone(browser: Browser, base: str) -> None:
    context = browser.new_context(viewport={"width": 375, "height": 812}, has_touch=True)
    page = context.new_page()
    page.goto(base)
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Groups").click()
    expect(page.locator("main h1")).to_have_text("Groups")
    expect(page.get_by_role("link", name="Groups")).to_be_hidden()
    context.close()


def test_a_node_that_goes_away_is_shown_on_every_page_and_comes_back(page: Page, full: ChronikNode) -> None:
    shown = opened(page, address(full), PAGES[0])
    expect(page.locator(".node")).to_have_count(1)
    expect(page.locator("#stale")).to_have_count(0)
    full.kill()
    expect(page.locator("#stale")).to_contain_text(re.compile("does not answer.*What you see is from"))
    expect(page.locator("body")).to_have_class(re.compile("is-stale"))
    expect(shown).to_have_attribute("data-state", "stale")
    for one in ALL:
        page.evaluate("path => { location.hash = `#/${path}`; }", one.path)
        expect(page.locator("main h1")).to_have_text(one.title)
        expect(page.locator("#stale")).to_be_visible()
        expect(shown).to_have_attribute("data-state", re.compile("stale|error"))
        if shown.get_attribute("data-state") == "error":
            expect(page.locator("main").get_by_role("alert").first).to_contain_text("cannot be reached")
        else:
            assert one.path not in ASK_FOR_THEMSELVES
    full.start()
    expect(page.locator("#stale")).to_have_count(0)
    for one in ALL:
        shown = opened(page, address(full), one)
        expect(shown).to_have_attribute("data-state", re.compile("ready|empty"))


def test_without_the_key_pages_show_the_cluster_and_ask_for_a_login_before_records(
    page: Page, tmp_path: Path
) -> None:
    node = ChronikNode(tmp_path / "node", env={"CHRONIK_ADMIN_API_KEY": "swordfish"})
    with node:
        fill(node, **{"x-api-key": "swordfish"})
        for one in ALL:
            page.goto("about:blank")
            page.goto(f"{address(node)}/#/{one.path}")
            if one.needs_login:
                expect(page).to_have_title("Log in, chronik")
                assert page.url.endswith(f"#/{one.path}")
            else:
                expect(page.locator("main h1")).to_have_text(one.title)
                expect(page.locator("main .page")).not_to_have_attribute("data-state", "loading")
        key_logs_in(page, address(node))


def key_logs_in(page: Page, base: str) -> None:
    page.goto(f"{base}/#/topics")
    page.get_by_role("button", name="New topic").click()
    page.get_by_label("Name").fill("more")
    page.get_by_role("button", name="Create").click()
    expect(page).to_have_title("Log in, chronik")
    page.evaluate(AXE.read_text())
    assert violations(page) == []
    page.get_by_label("API key").fill("Swordfish")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not right")
    page.get_by_label("API key").fill("swordfish")
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(f"{base}/#/topics")
    expect(page.get_by_role("button", name="Log out")).to_be_visible()
    stored = page.evaluate("JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}])")
    assert "swordfish" not in stored
    assert "chronik_session" not in stored
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", False)
    page.evaluate("localStorage.setItem('chronik-sql', JSON.stringify(['SELECT * FROM secrets']))")
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_title("Log in, chronik")
    assert page.context.cookies() == []
    assert "secrets" not in page.evaluate("JSON.stringify({...localStorage})")


def test_a_closed_node_shows_each_user_what_it_may_do(page: Page, tmp_path: Path) -> None:
    write_first_user(tmp_path / "closed" / "data", "ada", "a password")
    node = ChronikNode(tmp_path / "closed", authorizer=True, env={"CHRONIK_ADMIN_API_KEY": "swordfish"})
    with node:
        log_in(page, address(node), "ada", "a password")
        page.get_by_role("button", name="New topic").click()
        page.get_by_label("Name").fill("orders")
        page.get_by_role("button", name="Create").click()
        expect(page.locator("#toasts")).to_contain_text("Topic orders created")
        page.get_by_role("link", name="Audit").click()
        row = page.get_by_role("row").filter(has_text="/admin/create-topic")
        expect(row).to_contain_text("User:ada")
        expect(row).to_contain_text("allowed")
        moved = {"to": "earliest", "topics": [{"topic": "orders"}]}
        call(node, "/admin/groups/readers/offsets", moved, **{"x-api-key": "swordfish"})
        page.goto(f"{address(node)}/#/groups/readers")
        expect(page.get_by_role("button", name="Delete…")).to_be_enabled()
        made = call(node, "/admin/keys", {"name": "looks", "read_only": True}, **{"x-api-key": "swordfish"})
        page.get_by_role("button", name="Log out").click()
        expect(page).to_have_title("Log in, chronik")
        page.goto(f"{address(node)}/console/login.html#/topics")
        page.get_by_label("API key").fill(made["key"])
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("#who")).to_contain_text("Key:looks")
        for path, refused in (
            ("topics", "New topic"),
            ("topics/orders", "Delete…"),
            ("topics/orders", "More partitions…"),
            ("groups/readers", "Delete…"),
            ("nodes", "Add a node…"),
            ("clients", "Ask for metrics…"),
        ):
            page.goto(f"{address(node)}/#/{path}")
            expect(page.locator("main .page")).not_to_have_attribute("data-state", "loading")
            expect(page.get_by_role("button", name=refused)).to_have_count(0)
        page.route("**/admin/transactions", lambda route: route.fulfill(status=403, json=REFUSED))
        page.goto(f"{address(node)}/#/transactions")
        expect(page.locator("main .page")).to_have_attribute("data-state", "error")
        expect(page.get_by_role("alert")).to_contain_text("You may not do or see this")
        node.stop()


REFUSED = {"code": "cluster_authorization_failed", "message": "cluster authorization failed."}


def test_the_login_page_follows_the_systems_colours(page: Page, base: str) -> None:
    page.goto(f"{base}/console/login.html")
    for scheme in ("light", "dark", "light"):
        page.emulate_media(color_scheme=scheme)
        expect(page.locator("html")).to_have_attribute("data-theme", scheme)


def log_in(page: Page, base: str, user: str, password: str) -> None:
    page.goto(f"{base}/#/topics")
    expect(page).to_have_title("Log in, chronik")
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(f"{base}/#/topics")
    expect(page.locator("#who")).to_contain_text(f"User:{user}")


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.path or "overview")
def test_a_page_whose_first_question_fails_says_so_and_tries_again(
    page: Page, full: ChronikNode, one: ConsolePage
) -> None:
    page.route(
        lambda url: one.calls in url,
        lambda route: route.fulfill(status=503, json={"code": "unavailable", "message": "Nobody leads."}),
    )
    shown = opened(page, address(full), one)
    expect(shown).to_have_attribute("data-state", "error")
    expect(page.locator("main").get_by_role("alert").first).to_contain_text("Nobody leads.")
    page.unroute_all()
    again = page.locator("main").get_by_role("button", name="Try again")
    if again.count():
        again.first.click()
    expect(shown).to_have_attribute("data-state", re.compile("ready|empty"))
    expect(page.locator("main").get_by_role("alert")).to_have_count(0)
