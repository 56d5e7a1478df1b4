"""The console as a person uses it (H07)."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from chronik.server.first_user import write_first_user
from chronik.testing import Cluster
from tests.browser.conftest import DEADLINE_MS, Watched
from tests.node import SOURCE, ChronikNode

expect.set_options(timeout=DEADLINE_MS)


def create_topic(page: Page, name: str, *, searchable: bool = False) -> None:
    page.get_by_role("button", name="New topic").click()
    page.get_by_label("Name").fill(name)
    if searchable:
        page.get_by_label("searchable").check()
    page.get_by_role("button", name="Create").click()
    expect(page.locator("#toasts")).to_contain_text(f"Topic {name} created")


def produce(page: Page, value: str, key: str = "") -> None:
    page.get_by_role("link", name="Produce").click()
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_label("Value").fill(value)
    page.get_by_label("Value").press("Control+Enter")
    expect(page.locator("#toasts")).to_contain_text("Written to")


def test_a_topic_is_made_written_to_and_read(page: Page, base: str, watched: Watched) -> None:
    page.goto(f"{base}/#/topics")
    create_topic(page, "orders")
    produce(page, '{"customer": "ada", "total": 12.5}', key="ada")
    page.get_by_role("link", name="Messages").click()
    row = page.get_by_role("row").filter(has_text="ada")
    expect(row).to_contain_text('"total": 12.5')
    row.click()
    expect(page.locator("td.detail code.json")).to_contain_text('"customer": "ada"')
    expect(page.get_by_role("button", name="Copy as command")).to_be_visible()
    page.get_by_role("link", name="Partitions", exact=True).click()
    expect(page.locator("tbody tr")).to_have_count(3)


def test_records_of_other_clients_arrive_live(
    page: Page, base: str, node: ChronikNode, watched: Watched
) -> None:
    page.goto(f"{base}/#/topics")
    create_topic(page, "orders")
    expect(page.get_by_text("No records here")).to_be_visible()
    with page.expect_response(lambda answer: "watermarks?wait_ms=10000&seen=0" in answer.url) as told:
        page.evaluate(
            """base => fetch(base + "/admin/topics/orders/messages", {
                method: "POST", body: JSON.stringify({value: "from elsewhere"})})""",
            base,
        )
    assert told.value.json()["total"] == 1, "the view was not woken by the commit"
    expect(page.get_by_role("row").filter(has_text="from elsewhere")).to_be_visible()


def test_a_record_cannot_become_markup(page: Page, base: str, watched: Watched) -> None:
    hostile = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    page.goto(f"{base}/#/topics")
    create_topic(page, "orders")
    produce(page, hostile, key=hostile)
    page.get_by_role("link", name="Messages").click()
    page.get_by_role("row").filter(has_text="onerror").click()
    expect(page.locator("td.detail pre")).to_have_text(hostile)
    assert page.title() != "owned"
    assert page.locator("main img, main script").count() == 0


def test_a_config_is_changed_and_put_back(page: Page, base: str, watched: Watched) -> None:
    page.goto(f"{base}/#/topics")
    create_topic(page, "orders")
    page.get_by_role("link", name="Config").click()
    field = page.get_by_label("retention.ms", exact=True)
    field.fill("1234")
    field.press("Enter")
    field.blur()
    expect(page.get_by_text("retention.ms is 1234 now")).to_be_visible()
    expect(page.get_by_text("set here")).to_be_visible()
    page.get_by_role("button", name="Default").click()
    expect(page.get_by_text("set here")).to_have_count(0)


def test_a_topic_is_deleted_only_by_its_name(page: Page, base: str, watched: Watched) -> None:
    page.goto(f"{base}/#/topics")
    create_topic(page, "orders")
    page.get_by_role("button", name="Delete").click()
    confirm = page.get_by_label("Type the topic's name to confirm")
    confirm.fill("order")
    page.locator("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("alert")).to_contain_text("That is not the topic's name")
    confirm.fill("orders")
    page.locator("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No topics yet")).to_be_visible()


def go(page: Page, key: str, title: str) -> None:
    """Two keys belong together only if they come soon enough, which a busy machine may prevent."""
    for _ in range(20):
        page.keyboard.press("g")
        page.keyboard.press(key)
        with contextlib.suppress(AssertionError):
            expect(page.locator("main h1")).to_have_text(title, timeout=3000)
            return
    raise AssertionError(f"g {key} does not lead to {title}")


def test_everything_is_reached_by_keyboard(page: Page, base: str, watched: Watched) -> None:
    page.goto(base)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    for key, title in (("t", "Topics"), ("g", "Groups"), ("s", "Search"), ("q", "SQL"), ("o", "Overview")):
        go(page, key, title)
    page.keyboard.press("?")
    expect(page.get_by_role("heading", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="Keyboard")).to_be_hidden()
    go(page, "t", "Topics")
    page.keyboard.press("/")
    expect(page.get_by_label("Filter topics")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("n")
    expect(page.get_by_role("heading", name="New topic")).to_be_visible()


def test_light_and_dark(page: Page, base: str, watched: Watched) -> None:
    page.goto(base)
    assert page.locator("html").get_attribute("data-theme") == "light"
    page.keyboard.press("d")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_it_fits_a_phone(browser: Browser, base: str) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 740}, has_touch=True)
    page = context.new_page()
    for path in ("", "#/topics", "#/groups", "#/search", "#/sql"):
        page.goto(f"{base}/{path}")
        expect(page.locator("h1")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    context.close()


def test_a_node_that_goes_away_is_shown_and_comes_back(
    page: Page, base: str, node: ChronikNode, watched: Watched
) -> None:
    page.goto(base)
    expect(page.locator(".node")).to_have_count(1)
    expect(page.locator("#stale")).to_be_hidden()
    watched.may_fail = True
    node.kill()
    expect(page.locator("#stale")).to_contain_text(re.compile("does not answer.*What you see is from"))
    expect(page.locator("body")).to_have_class(re.compile("is-stale"))
    node.start()
    expect(page.locator("#stale")).to_be_hidden()
    watched.may_fail = False


def test_a_key_is_asked_for_and_logs_in(page: Page, base: str, node: ChronikNode) -> None:
    node.stop()
    node.env["CHRONIK_ADMIN_API_KEY"] = "swordfish"
    node.start()
    page.goto(f"{base}/#/topics")
    page.get_by_role("button", name="New topic").click()
    page.get_by_label("Name").fill("orders")
    page.get_by_role("button", name="Create").click()
    expect(page).to_have_title("Log in, chronik")
    page.get_by_label("API key").fill("Swordfish")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not right")
    page.get_by_label("API key").fill("swordfish")
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(f"{base}/#/topics")
    create_topic(page, "orders")
    stored = page.evaluate("JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}])")
    assert "swordfish" not in stored
    assert "chronik_session" not in stored
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", False)
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_title("Log in, chronik")
    assert page.context.cookies() == []


def test_a_closed_node_asks_for_a_login_and_shows_who_did_what(page: Page, tmp_path: Path) -> None:
    write_first_user(tmp_path / "closed" / "data", "ada", "a password")
    node = ChronikNode(tmp_path / "closed", authorizer=True)
    with node:
        base = f"http://127.0.0.1:{node.settings['http_port']}"
        page.goto(f"{base}/#/topics")
        expect(page).to_have_title("Log in, chronik")
        page.get_by_label("User").fill("ada")
        page.get_by_label("Password").fill("a password")
        page.get_by_role("button", name="Log in").click()
        expect(page).to_have_url(f"{base}/#/topics")
        expect(page.locator("#who")).to_contain_text("User:ada")
        create_topic(page, "orders")
        page.get_by_role("link", name="Audit").click()
        row = page.get_by_role("row").filter(has_text="/admin/create-topic")
        expect(row).to_contain_text("User:ada")
        expect(row).to_contain_text("allowed")
        node.stop()


def test_search_and_sql(page: Page, base: str, watched: Watched) -> None:
    page.goto(f"{base}/#/search")
    hint = page.locator(".empty b")
    expect(hint).to_have_text("No topic is searchable yet")
    made = {"name": "pages", "config": {"searchable": True}}
    assert page.request.post(f"{base}/admin/create-topic", data=made).ok
    expect(hint).to_have_text("Search for something")  # though the page was drawn before
    page.reload()
    expect(hint).to_have_text("Search for something")
    page.goto(f"{base}/#/topics")
    create_topic(page, "orders", searchable=True)
    for n, customer in enumerate(("ada", "grace", "ada")):
        produce(
            page, f'{{"customer": "{customer}", "total": {10 * n}, "note": "express delivery"}}', key=customer
        )
        expect(page.locator("#toasts")).to_contain_text(f"at offset {n}" if n == 0 else "Written to")
    page.goto(f"{base}/#/search")
    words = page.get_by_label("Search for")
    words.fill("customer:ada express")
    deadline = 60
    while page.locator("article.hit").count() != 2:
        words.press("Enter")
        expect(page.locator(".dim", has_text="hit")).to_be_visible()
        deadline -= 1
        assert deadline
    expect(page.locator("mark").first).to_have_text(re.compile("ada|express"))
    page.get_by_role("link", name="SQL").click()
    expect(page.locator(".tree summary")).to_have_text(["orders", "pages"])
    editor = page.get_by_label("SQL", exact=True)
    editor.fill("SELECT customer, sum(total) AS total FROM orders GROUP BY ALL ORDER BY 1")
    editor.press("Control+Enter")
    expect(page.locator(".results tbody tr")).to_have_text(["ada20", "grace10"])
    page.get_by_role("button", name="Explain").click()
    expect(page.locator("main pre")).to_contain_text("orders:")


def test_a_dead_node_of_a_cluster_is_shown(page: Page) -> None:
    with Cluster(nodes=3, can_partition=False) as cluster:
        first = cluster.layout.node(1).peer.http
        watched = Watched(page, f"http://{first}")
        cluster.create_topic("orders", partitions=6, replication_factor=3)
        page.goto(f"http://{first}/")
        expect(page.locator(".node")).to_have_count(3)
        expect(page.locator(".node.down")).to_have_count(0)
        expect(page.locator(".cell:not(.short):not(.gone)").first).to_be_visible()
        victim = 2
        cluster.kill(victim)
        down = page.locator(f'.node.down[data-node="{victim}"]')
        expect(down).to_be_visible()
        expect(page.get_by_role("alert")).to_contain_text(f"Node {victim} is down")
        expect(page.locator(".cell.short").first).to_be_visible()
        cluster.start(victim)
        expect(down).to_have_count(0)
        expect(page.locator(".cell.short")).to_have_count(0)
        assert watched.errors == []
        assert watched.strangers == []


def test_a_node_without_search_and_sql_says_how_to_get_them(page: Page, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text('import sys\nsys.modules["tantivy"] = None\n')
    server = ChronikNode(tmp_path / "node", env={"PYTHONPATH": f"{tmp_path}:{SOURCE}"})
    base = f"http://127.0.0.1:{server.settings['http_port']}"
    watched = Watched(page, base)
    with server:
        for section in ("search", "sql"):
            page.goto("about:blank")
            page.goto(f"{base}/#/{section}")
            expect(page.get_by_text("not installed on this node")).to_be_visible()
            expect(page.get_by_text("pip install 'chronik[query]'")).to_be_visible()
    assert watched.errors == []
