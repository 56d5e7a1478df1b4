"""Every page of the console, and what all of them have in common."""

from __future__ import annotations

from typing import NamedTuple

from playwright.sync_api import Locator, Page, expect


class ConsolePage(NamedTuple):
    path: str
    title: str
    empty: str | None = None
    """What it says on a node that holds nothing; None: it has something to show on any node."""
    calls: str = "/admin/"
    """A part of the paths that it asks for: while these are not answered, it is loading."""
    needs_login: bool = False
    """It shows records, or calls for a login by itself, where a key is set."""
    picture: str = ""
    """What its pictures in docs/console are called, if not as its path."""

    @property
    def pictures(self) -> tuple[str, ...]:
        return tuple(f"{self.picture or self.path}-{form}.webp" for form in FORMS)


FORMS = ("light", "dark", "phone")
"""Of the pictures of each page."""
PAGES = (
    ConsolePage("", "Overview", picture="overview"),
    ConsolePage("topics", "Topics", "No topics yet"),
    ConsolePage("groups", "Groups", "No groups"),
    ConsolePage("transactions", "Transactions", "No transactions"),
    ConsolePage("search", "Search", "No topic is searchable yet"),
    ConsolePage("sql", "SQL", "No topics yet", calls="/_sql", needs_login=True),
    ConsolePage("nodes", "Nodes"),
    ConsolePage("nodes/moves", "Nodes / Move replicas", "Nothing is on the move", picture="moves"),
    ConsolePage("doctor", "Doctor"),
    ConsolePage("clients", "Client metrics", "No client is asked for metrics"),
    ConsolePage("audit", "Audit", "No entries", needs_login=True),
)
OF_A_TOPIC = (
    ConsolePage("topics/orders", "Topics / orders", needs_login=True, picture="messages"),
    ConsolePage("topics/orders/partitions", "Topics / orders", picture="partitions"),
    ConsolePage("topics/orders/produce", "Topics / orders", picture="produce"),
    ConsolePage("topics/orders/config", "Topics / orders", picture="config"),
    ConsolePage("topics/orders/record/0/0", "orders / 0 @ 0", needs_login=True, picture="record"),
    ConsolePage("groups/readers", "Groups / readers", picture="group"),
)
"""Those of one topic, one record and one group."""
LOGIN = ConsolePage("login", "Log in")
"""A document of its own: the others send whoever has to log in there."""


def opened(page: Page, base: str, one: ConsolePage) -> Locator:
    """The page, opened by its own address in a tab that showed nothing before."""
    page.goto("about:blank")
    page.goto(f"{base}/#/{one.path}")
    expect(page.locator("main h1")).to_have_text(one.title)
    return page.locator("main .page")


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
