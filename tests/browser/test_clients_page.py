"""The page of client metrics says what its answer leaves out, and asks for the chosen client's values."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Watched

NEW, OLD = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"


def value(name: str) -> dict[str, Any]:
    shape = {"unit": "ms", "kind": "gauge", "is_delta": False, "attributes": [], "time_ms": 1, "count": None}
    return {"name": name, "value": 1.5, **shape}


def client(instance_id: str, client_id: str, values: list[dict[str, Any]], dropped: int) -> dict[str, Any]:
    return {
        "instance_id": instance_id,
        "node_id": 1,
        "client_id": client_id,
        "software": "tests",
        "address": "127.0.0.1",
        "pushed_ms": 1_700_000_000_000,
        "interval_ms": 60_000,
        "size_bytes": 9,
        "is_readable": True,
        "values": values,
        "values_kept": 1,
        "values_dropped": dropped,
        "values_bytes": 30,
    }


def answer(route: Route) -> None:
    asked = parse_qs(urlsplit(route.request.url).query).get("instance_id")
    if asked == [OLD]:
        clients, left_out = [client(OLD, "old", [value("told.alone")], 1_234)], 0
    else:
        clients, left_out = (
            [client(NEW, "new", [value("told.with.all")], 0), client(OLD, "old", [], 1_234)],
            3,
        )
    known = {"left_out": left_out, "known": 5, "silent_nodes": {}}
    route.fulfill(json={"subscriptions": [], "clients": clients, **known})


def test_what_is_left_out_is_said_and_asked_for(page: Page, base: str, watched: Watched) -> None:
    page.route("**/admin/client-metrics*", answer)
    page.goto(f"{base}/#/clients")
    shown = page.locator("main")
    expect(shown).to_contain_text("The 2 clients that pushed last are shown; 3 more clients pushed")
    expect(shown).to_contain_text("told.with.all")
    expect(shown).not_to_contain_text("did not keep")
    page.get_by_role("button", name="old").click()
    expect(shown).to_contain_text("told.alone")
    expect(shown).to_contain_text("And 1,234 more values that the node did not keep")
    expect(shown.get_by_role("row", name="old tests")).to_contain_text("1,235")
