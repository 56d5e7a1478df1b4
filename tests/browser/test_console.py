"""The console as a person uses it (H07)."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from playwright.sync_api import Page, expect

from tests.browser.conftest import DEADLINE_MS, Watched
from tests.browser.pages import create_topic, produce
from tests.node import SOURCE, ChronikNode

expect.set_options(timeout=DEADLINE_MS)
KEYS = {
    "t": "Topics",
    "g": "Groups",
    "x": "Transactions",
    "s": "Search",
    "q": "SQL",
    "n": "Nodes",
    "d": "Doctor",
    "c": "Client metrics",
    "a": "Audit",
    "o": "Overview",
}


def test_a_topic_is_made_written_to_and_read(page: Page, base: str, watched: Watched) -> None:
    page.goto(f"{base}/#/topics")
    create_topic(page, "written")
    produce(page, '{"customer": "ada", "total": 12.5}', key="ada")
    page.get_by_role("link", name="Messages").click()
    row = page.get_by_role("row").filter(has_text="ada")
    expect(row).to_contain_text('"total": 12.5')
    row.get_by_role("button").press("Enter")
    expect(page.locator("td.detail code.json")).to_contain_text('"customer": "ada"')
    expect(page.get_by_role("button", name="Copy as command")).to_be_visible()
    page.get_by_role("link", name="Its way").click()
    expect(page.locator(".steps li.done").first).to_contain_text("Written")
    page.go_back()
    page.get_by_role("link", name="Partitions", exact=True).click()
    expect(page.locator("tbody tr")).to_have_count(3)


def test_records_of_other_clients_arrive_live(
    page: Page, base: str, node: ChronikNode, watched: Watched
) -> None:
    page.goto(f"{base}/#/topics")
    create_topic(page, "followed")
    expect(page.get_by_text("No records here")).to_be_visible()
    with page.expect_response(lambda answer: "watermarks?wait_ms=10000&seen=0" in answer.url) as told:
        page.evaluate(
            """base => fetch(base + "/admin/topics/followed/messages", {
                method: "POST", body: JSON.stringify({value: "from elsewhere"})})""",
            base,
        )
    assert told.value.json()["total"] == 1, "the view was not woken by the commit"
    expect(page.get_by_role("row").filter(has_text="from elsewhere")).to_be_visible()


def test_a_record_cannot_become_markup(page: Page, base: str, watched: Watched) -> None:
    hostile = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    page.goto(f"{base}/#/topics")
    create_topic(page, "hostile")
    produce(page, hostile, key=hostile)
    page.get_by_role("link", name="Messages").click()
    page.get_by_role("row").filter(has_text="onerror").click()
    expect(page.locator("td.detail pre")).to_have_text(hostile)
    assert page.title() != "owned"
    assert page.locator("main img, main script").count() == 0


def test_a_config_is_changed_and_put_back(page: Page, base: str, watched: Watched) -> None:
    page.goto(f"{base}/#/topics")
    create_topic(page, "configured")
    page.get_by_role("link", name="Config").click()
    field = page.get_by_label("retention.ms", exact=True)
    field.fill("1234")
    field.press("Enter")
    field.blur()
    expect(page.get_by_text("retention.ms is 1234 now")).to_be_visible()
    expect(page.get_by_text("set here")).to_be_visible()
    page.get_by_role("button", name="Default").click()
    expect(page.get_by_text("set here")).to_have_count(0)


def test_a_topic_gets_partitions_and_is_deleted_only_by_its_name(
    page: Page, base: str, watched: Watched
) -> None:
    page.goto(f"{base}/#/topics")
    create_topic(page, "grown")
    page.get_by_role("button", name="More partitions…").click()
    page.get_by_label("Partitions afterwards").fill("5")
    expect(page.get_by_label("Preview")).to_contain_text("2 new partitions")
    page.get_by_role("button", name="Add").click()
    expect(page.locator("#toasts")).to_contain_text("grown has 5 partitions now")
    page.get_by_role("link", name="Partitions", exact=True).click()
    expect(page.locator("tbody tr")).to_have_count(5)
    page.get_by_role("button", name="Delete…").click()
    confirm = page.get_by_label("Type the topic's name to confirm")
    confirm.fill("grow")
    page.locator("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("alert")).to_contain_text("That is not the topic's name")
    confirm.fill("grown")
    page.locator("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator("main h1")).to_have_text("Topics")
    expect(page.get_by_role("link", name="grown", exact=True)).to_have_count(0)


def test_offsets_are_reset_after_a_preview(
    page: Page, base: str, node: ChronikNode, watched: Watched
) -> None:
    settings = {"group.id": "resets", "auto.offset.reset": "earliest"}
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for _ in range(3):
        producer.produce("counted", b"value", partition=0)
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": node.bootstrap, **settings})
    consumer.subscribe(["counted"])
    read = [consumer.poll(60) for _ in range(3)]
    consumer.commit(read[-1], asynchronous=False)
    consumer.close()
    page.goto(f"{base}/#/groups/resets")
    page.get_by_role("button", name="Reset offsets…").click()
    page.get_by_label("Where to").select_option("shift")
    page.get_by_label("Records (negative: back)").fill("-2")
    expect(page.get_by_label("Preview").locator("tbody tr")).to_have_text("counted-031-2")
    page.get_by_role("button", name="Move the offsets").click()
    expect(page.locator("#toasts")).to_contain_text("Offsets of 1 partition moved")
    row = page.get_by_label("Partitions of the group").locator("tbody tr")
    expect(row.locator("td").nth(2)).to_have_text("1")


def test_a_group_is_deleted_after_its_name_was_typed_and_only_while_nobody_is_in_it(
    page: Page, base: str, node: ChronikNode, watched: Watched
) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap})
    producer.produce("left", b"value", partition=0)
    assert producer.flush(60) == 0
    reader = joined(node, "leaves", "left")
    reader.commit(asynchronous=False)
    page.goto(f"{base}/#/groups/leaves")
    delete = page.get_by_role("button", name="Delete…")
    expect(delete).to_be_disabled()
    expect(page.locator("main")).to_contain_text("Stop its member to change it.")
    reader.close()
    delete.click()
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("The offsets that it committed in 1 partition are forgotten")
    confirm = page.get_by_label("Type the group's name to confirm")
    confirm.fill("left")
    dialog.get_by_role("button", name="Delete").click()
    expect(dialog.get_by_role("alert")).to_contain_text("That is not the group's name")
    confirm.fill("leaves")
    watched.may_fail = True
    reader = joined(node, "leaves", "left")
    dialog.get_by_role("button", name="Delete").click()
    expect(dialog.get_by_role("alert")).to_have_text("Group 'leaves' has members: stop them first.")
    reader.close()
    dialog.get_by_role("button", name="Delete").click()
    expect(page.locator("#toasts")).to_contain_text("Group leaves deleted")
    expect(page.locator("main h1")).to_have_text("Groups")
    expect(page.get_by_role("link", name="leaves", exact=True)).to_have_count(0)


def joined(node: ChronikNode, group: str, topic: str) -> Consumer:
    """A consumer that has read a record, so that it is in the group."""
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": node.bootstrap, **settings})
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.2)
    consumer.poll(0.2)
    return consumer


def test_an_open_transaction_is_ended(page: Page, base: str, node: ChronikNode, watched: Watched) -> None:
    patience = {"transactional.id": "hangs", "transaction.timeout.ms": 900_000}
    producer = Producer({"bootstrap.servers": node.bootstrap, **patience})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("paid", b"value", partition=0)
    assert producer.flush(60) == 0
    page.goto(f"{base}/#/transactions")
    row = page.get_by_label("Transactions").get_by_role("row").filter(has_text="hangs")
    expect(row).to_contain_text("Ongoing")
    page.get_by_label("Topic").select_option("paid")
    page.get_by_role("button", name="Look").click()
    producers = page.get_by_label("Producers of paid-0").locator("tbody tr")
    expect(producers.get_by_role("link")).to_have_text("0")
    row.get_by_role("button", name="End…").click()
    expect(page.locator("dialog")).to_contain_text("paid-0")
    page.get_by_role("button", name="Abort it").click()
    expect(page.locator("#toasts")).to_contain_text("hangs is aborted")
    expect(row.get_by_role("button", name="End…")).to_have_count(0)


def test_what_hangs_in_a_partition_is_ended_by_a_marker(
    page: Page, base: str, node: ChronikNode, watched: Watched
) -> None:
    patience = {"transactional.id": "stuck", "transaction.timeout.ms": 900_000}
    producer = Producer({"bootstrap.servers": node.bootstrap, **patience})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("stuck-topic", b"value", partition=0)
    assert producer.flush(60) == 0
    page.goto(f"{base}/#/transactions")
    page.get_by_label("Topic").select_option("stuck-topic")
    page.get_by_role("button", name="Look").click()
    producers = page.get_by_label("Producers of stuck-topic-0").locator("tbody tr")
    expect(producers.get_by_role("link")).to_have_text("0")
    producers.get_by_role("button", name="End…").click()
    dialog = page.locator("dialog")
    dialog.get_by_label("Type the partition to confirm").fill("stuck-topic-1")
    dialog.get_by_role("button", name="Write the marker").click()
    expect(dialog.get_by_role("alert")).to_contain_text("That is not the partition")
    dialog.get_by_label("Type the partition to confirm").fill("stuck-topic-0")
    dialog.get_by_role("button", name="Write the marker").click()
    expect(dialog).to_have_count(0)
    expect(producers.get_by_role("link")).to_have_count(0)
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "after"})
    ends = consumer.get_watermark_offsets(TopicPartition("stuck-topic", 0), timeout=60)
    assert ends == (0, 2), "the record and its marker: readers of committed records wait no longer"
    consumer.close()


def test_clients_are_asked_for_metrics_and_show_them(
    page: Page, base: str, node: ChronikNode, watched: Watched
) -> None:
    page.goto(f"{base}/#/clients")
    page.get_by_role("button", name="Ask for metrics…").click()
    page.get_by_label("Name", exact=True).fill("tests")
    page.get_by_label("Every (seconds)").fill("0.5")
    page.get_by_label("Which clients").fill("client_id=telling")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.get_by_label("Subscriptions").locator("tbody tr")).to_contain_text("client_id=telling")
    producer = Producer({"bootstrap.servers": node.bootstrap, "client.id": "telling"})
    producer.produce("told", b"value")
    producer.flush(60)
    expect(page.get_by_role("button", name="telling")).to_be_visible()
    expect(page.get_by_label("Last values").locator("tbody tr").first).to_contain_text("org.apache.kafka.")
    producer.close()
    page.get_by_role("button", name="End…").click()
    page.get_by_role("button", name="Ask no longer").click()
    expect(page.get_by_text("None: no client is asked.")).to_be_visible()


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
    for key, title in KEYS.items():
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
    expect(page.locator(".node")).to_be_visible()  # by then the page listens to keys
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.keyboard.press("d")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


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
        expect(page.locator(".card", has_text="Sent from here").locator("tbody tr")).to_have_count(n + 1)
    page.goto(f"{base}/#/search")
    words = page.get_by_label("Search for")
    words.fill("customer:ada express")
    deadline = 60
    while page.locator("article.hit").count() != 2:
        words.press("Enter")
        expect(page.locator(".status .dim", has_text="hit")).to_be_visible()
        deadline -= 1
        assert deadline
    expect(page.locator("mark").first).to_have_text(re.compile("ada|express"))
    page.get_by_role("link", name="SQL").click()
    editor = page.get_by_label("SQL", exact=True)
    expect(page.locator(".tree summary", has_text="orders")).to_be_visible()
    complete(page)
    write(page, "SELECT customer, sum(total) AS total FROM orders GROUP BY ALL ORDER BY 1")
    editor.press("Control+Enter")
    rows = page.locator(".results tbody tr")
    expect(rows).to_have_text(["ada20", "grace10"])
    page.get_by_role("button", name="total").click()  # numbers: the largest first
    page.get_by_role("button", name="total").click()
    expect(rows).to_have_text(["grace10", "ada20"])
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_label("Copy as").select_option("json")
    expect(page.locator("#toasts")).to_contain_text("2 rows copied")
    assert '"customer": "ada"' in page.evaluate("navigator.clipboard.readText()")
    page.get_by_role("button", name="Chart", exact=True).click()
    expect(page.get_by_role("img", name="Chart of total")).to_be_visible()
    expect(page.locator(".plot canvas")).to_be_visible()
    page.get_by_role("button", name="Explain").click()
    expect(page.locator("main pre.plan")).to_contain_text("orders:")


def write(page: Page, text: str) -> None:
    """Into the editor by keys: `fill` has Chromium try inline styles, which the policy refuses."""
    editor = page.get_by_label("SQL", exact=True)
    editor.press("Control+a")
    editor.press("Delete")
    page.keyboard.insert_text(text)


def complete(page: Page) -> None:
    """The editor knows tables and their columns, colours keywords, and runs nothing by itself."""
    editor = page.get_by_label("SQL", exact=True)
    write(page, "SELECT orders.cust")
    editor.press("Control+Space")
    option = page.locator(".cm-tooltip-autocomplete li").first
    expect(option).to_contain_text("customer")
    # The list takes no keys in its first moments, so that nobody chooses what has just appeared.
    chosen = page.locator('.cm-tooltip-autocomplete li[aria-selected="true"]')
    for _ in range(100):
        editor.press("ArrowDown")
        if chosen.count():
            break
    expect(chosen).to_contain_text("customer")
    editor.press("Enter")
    expect(editor).to_contain_text("SELECT orders.customer")
    colour = page.locator(".cm-content span", has_text="SELECT").first
    weight = colour.evaluate("one => getComputedStyle(one).fontWeight")
    assert int(weight) >= 600, "keywords are not highlighted: the editor's styles did not get in"
    write(page, "SELECT customer FROM orders")
    editor.press("Control+Space")
    expect(option).to_contain_text("orders")
    editor.press("Control+Enter")
    expect(page.locator(".results tbody tr")).to_have_count(3)
    expect(page.locator(".cm-tooltip-autocomplete")).to_have_count(0)
