"""Who may call what (H02)."""

from __future__ import annotations

import pytest

from chronik.admin.endpoint import HttpAccess
from chronik.admin.errors import HttpError
from chronik.admin.guard import Guard
from chronik.admin.routes import ENDPOINTS
from chronik.config import Address, Settings, is_loopback

LOCAL = {"host": "127.0.0.1:6092"}
OUTSIDE = {"host": "broker.example:6092"}


def refusal(
    guard: Guard, access: HttpAccess, headers: dict[str, str], *, is_anonymous: bool = True
) -> str | None:
    try:
        guard.check_site(access, headers)
        guard.check(access, is_anonymous=is_anonymous)
    except HttpError as error:
        return error.code
    return None


def guard(bind: str = "127.0.0.1", key: str | None = None, **settings: object) -> Guard:
    advertise = None if bind == "127.0.0.1" else Address("broker.example", 9092)
    return Guard.of(
        Settings(bind=bind, advertise=advertise, admin_api_key=key, **settings)  # type: ignore[arg-type]
    )


def test_on_loopback_without_a_key_everything_is_open() -> None:
    assert [refusal(guard(), access, LOCAL) for access in HttpAccess] == [None] * len(HttpAccess)


def test_beyond_loopback_nothing_can_be_changed_without_a_key() -> None:
    assert refusal(guard("0.0.0.0"), HttpAccess.OPEN, OUTSIDE) is None
    assert refusal(guard("0.0.0.0"), HttpAccess.CHANGE, OUTSIDE) == "api_key_not_set"


def test_a_page_of_another_site_has_the_node_do_nothing() -> None:
    """An image or a script there needs no answer that it can read, and sends no Origin."""
    foreign = {**LOCAL, "sec-fetch-site": "cross-site"}
    refused = {access for access in HttpAccess if refusal(guard(), access, foreign) == "foreign_origin"}
    assert refused == {HttpAccess.STATUS, HttpAccess.DATA, HttpAccess.CHANGE}
    for own in ("same-origin", "same-site", "none"):
        assert refusal(guard(), HttpAccess.STATUS, {**LOCAL, "sec-fetch-site": own}) is None


@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0"])
def test_where_a_key_is_set_it_is_needed(bind: str) -> None:
    asked = guard(bind, "swordfish")
    host = LOCAL if bind == "127.0.0.1" else OUTSIDE
    assert refusal(asked, HttpAccess.OPEN, host) is None
    for access in (HttpAccess.DATA, HttpAccess.CHANGE):
        assert refusal(asked, access, host) == "login_required"
        assert refusal(asked, access, host, is_anonymous=False) is None


def test_with_an_authorizer_nothing_but_health_and_metrics_is_open() -> None:
    asked = guard(authorizer=True)
    found = {access for access in HttpAccess if refusal(asked, access, LOCAL) is None}
    assert found == {HttpAccess.OPEN, HttpAccess.HEALTH, HttpAccess.METRICS}
    assert not asked.shows_names(is_anonymous=True)
    closed = guard(authorizer=True, metrics_need_key=True, health_needs_key=True)
    assert {access for access in HttpAccess if refusal(closed, access, LOCAL) is None} == {HttpAccess.OPEN}


def test_where_kafkas_clients_log_in_so_do_those_who_change_something() -> None:
    """Otherwise everybody on the machine could make itself a key that opens everything."""
    beside = guard(listeners="SASL_PLAINTEXT://127.0.0.1:9093")
    assert {access for access in HttpAccess if refusal(beside, access, LOCAL)} == {HttpAccess.CHANGE}
    assert refusal(beside, HttpAccess.CHANGE, LOCAL) == "login_required"
    assert refusal(beside, HttpAccess.CHANGE, LOCAL, is_anonymous=False) is None
    closed = guard(listener_security_protocol_map="KAFKA:SASL_PLAINTEXT")
    assert {access for access in HttpAccess if refusal(closed, access, LOCAL)} == {
        HttpAccess.DATA,
        HttpAccess.CHANGE,
    }
    outside = guard("0.0.0.0", listener_security_protocol_map="KAFKA:SASL_PLAINTEXT")
    assert refusal(outside, HttpAccess.DATA, OUTSIDE) == "login_required"


def test_beyond_loopback_only_health_and_metrics_are_open_without_the_key() -> None:
    outside = guard("0.0.0.0", "swordfish")
    assert refusal(outside, HttpAccess.METRICS, OUTSIDE) is None
    assert refusal(outside, HttpAccess.STATUS, OUTSIDE) == "login_required"
    assert refusal(guard("127.0.0.1", "swordfish"), HttpAccess.STATUS, LOCAL) is None
    closed = guard("0.0.0.0", "swordfish", metrics_need_key=True)
    assert refusal(closed, HttpAccess.METRICS, OUTSIDE) == "login_required"


def test_what_is_open_beyond_loopback_shows_nothing_of_the_cluster() -> None:
    found = {one.path for one in ENDPOINTS if one.access is HttpAccess.OPEN}
    assert found == {"/", "/console/{file:path}", "/docs", "/openapi.json", "/session"}
    assert {one.path for one in ENDPOINTS if one.access is HttpAccess.HEALTH} == {"/health", "/ready"}
    assert {one.path for one in ENDPOINTS if one.access is HttpAccess.METRICS} == {"/metrics"}


def test_pages_of_other_sites_are_kept_out() -> None:
    evil = {**LOCAL, "origin": "https://evil.example"}
    assert refusal(guard(), HttpAccess.CHANGE, evil) == "foreign_origin"
    assert refusal(guard(), HttpAccess.CHANGE, {**LOCAL, "origin": "null"}) == "foreign_origin"
    assert refusal(guard(), HttpAccess.CHANGE, {**LOCAL, "origin": "http://[evil"}) == "foreign_origin"
    assert refusal(guard(), HttpAccess.CHANGE, {**LOCAL, "origin": "http://127.0.0.1:6092"}) is None


@pytest.mark.parametrize(
    ("bind", "host", "is_known"),
    [
        ("127.0.0.1", "localhost:6092", True),
        ("127.0.0.1", "[::1]:6092", True),
        ("127.0.0.1", "rebound.example:6092", False),
        ("127.0.0.1", "127.0.0.1.rebound.example", False),
        ("127.0.0.1", "10.0.0.7:6092", False),
        ("10.0.0.7", "10.0.0.7:6092", True),
        ("10.0.0.7", "broker.example", True),
        ("10.0.0.7", "BROKER.Example.:6092", True),
        ("10.0.0.7", "10.0.0.8:6092", False),
        ("10.0.0.7", "rebound.example:6092", False),
        ("0.0.0.0", "10.0.0.8:6092", True),
        ("0.0.0.0", "[fe80::7]:6092", True),
        ("0.0.0.0", "rebound.example:6092", False),
        ("0.0.0.0", "console.example", True),
    ],
)
def test_a_node_answers_under_its_own_names_only(bind: str, host: str, is_known: bool) -> None:
    hosts = "other.example, console.example" if bind == "0.0.0.0" else None
    asked = guard(bind, "swordfish", http_hosts=hosts)
    assert refusal(asked, HttpAccess.OPEN, {"host": host}) == (None if is_known else "foreign_host")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
def test_loopback_names(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
