"""One record's way in the console: what it says is what `chronik explain` says."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import Page, expect

from tests.browser.conftest import DEADLINE_MS, Watched
from tests.node import ChronikNode

TIERED = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "0",
    "segment.bytes": "4096",
    "file.delete.delay.ms": "0",
}
WAIT_S = 60
expect.set_options(timeout=DEADLINE_MS)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChronikNode]:
    folder = tmp_path_factory.mktemp("node")
    server = ChronikNode(
        folder,
        object_store=(folder / "objects").as_uri(),
        tiering_interval_ms=100,
        retention_check_interval_ms=100,
    )
    with server:
        yield server


def test_a_record_that_no_local_disk_has(page: Page, base: str, node: ChronikNode, watched: Watched) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic("tiered", 1, 1, config=TIERED)])["tiered"].result(30)
    producer = Producer({"bootstrap.servers": node.bootstrap, "client.id": "shop"})
    for n in range(20):
        producer.produce("tiered", b'{"n": %d, "filler": "%s"}' % (n, b"." * 1_000), key=b"ada")
        assert producer.flush(60) == 0
    until = time.monotonic() + WAIT_S
    while min((int(one.stem) for one in node.segment_files("tiered")), default=0) == 0:
        assert time.monotonic() < until, "local copies are still there"
        time.sleep(0.05)

    page.goto(f"{base}/#/topics/tiered/record/0/0")
    step = page.locator(".steps li").filter(has_text="In the object store: yes")
    expect(step).to_have_class("done")
    expect(page.locator(".steps li").filter(has_text="Durable: yes")).to_contain_text("local copies are gone")
    expect(page.locator("main")).not_to_contain_text("compaction")
    expect(page.get_by_label("Record", exact=True)).to_contain_text("ada")
    expect(page.get_by_label("Value")).to_contain_text('"n": 0')
    batch = page.get_by_label("Batch")
    expect(batch).to_contain_text("shop, from 127.0.0.1:")
    expect(batch).to_contain_text(".segment")
    expect(page.get_by_label("Replicas").locator("tbody tr")).to_contain_text("in the object store alone")


def test_a_record_of_a_transaction(page: Page, base: str, node: ChronikNode, watched: Watched) -> None:
    producer = Producer(
        {"bootstrap.servers": node.bootstrap, "transactional.id": "billing", "client.id": "till"}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("paid", b"value", key=b"ada", partition=0, headers={"from": b"a test"})
    producer.commit_transaction(60)
    page.goto(f"{base}/#/topics/paid/record/0/0")
    batch = page.get_by_label("Batch")
    for words in ("billing", "till, from 127.0.0.1:", "sequence 0 at the batch's start", "committed"):
        expect(batch).to_contain_text(words)
    expect(page.get_by_label("Record", exact=True)).to_contain_text("a test")
    expect(page.locator(".steps li").filter(has_text="In the object store: no")).to_contain_text(
        "nothing of the partition"
    )
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_label("Record", exact=True)).to_contain_text(
        "A marker that ends a transaction: commit."
    )
    expect(batch).to_contain_text("the transaction's coordinator")
