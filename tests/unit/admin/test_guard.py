"""Who may call what."""

from __future__ import annotations

import pytest

from chronik.admin.endpoint import Access
from chronik.admin.errors import HttpError
from chronik.admin.guard import Guard, is_loopback

LOCAL = {"host": "127.0.0.1:6092"}
OUTSIDE = {"host": "broker.example:6092"}


def refusal(guard: Guard, access: Access, headers: dict[str, str]) -> str | None:
    try:
        guard.check(access, headers)
    except HttpError as error:
        return error.code
    return None


def test_on_loopback_without_a_key_everything_is_open() -> None:
    guard = Guard("127.0.0.1", None)
    assert [refusal(guard, access, LOCAL) for access in Access] == [None, None, None]


def test_beyond_loopback_nothing_can_be_changed_without_a_key() -> None:
    guard = Guard("0.0.0.0", None)
    assert refusal(guard, Access.OPEN, OUTSIDE) is None
    assert refusal(guard, Access.CHANGE, OUTSIDE) == "api_key_not_set"


@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0"])
def test_where_a_key_is_set_it_is_needed(bind: str) -> None:
    guard = Guard(bind, "swordfish")
    host = LOCAL if bind == "127.0.0.1" else OUTSIDE
    assert refusal(guard, Access.OPEN, host) is None
    for access in (Access.DATA, Access.CHANGE):
        assert refusal(guard, access, host) == "api_key_required"
        assert refusal(guard, access, {**host, "x-api-key": "Swordfish"}) == "api_key_required"
        assert refusal(guard, access, {**host, "authorization": "Basic swordfish"}) == "api_key_required"
        assert refusal(guard, access, {**host, "x-api-key": "swordfish"}) is None
        assert refusal(guard, access, {**host, "authorization": "Bearer swordfish"}) is None


def test_pages_of_other_sites_are_kept_out() -> None:
    guard = Guard("127.0.0.1", None)
    evil = {**LOCAL, "origin": "https://evil.example"}
    assert refusal(guard, Access.CHANGE, evil) == "foreign_origin"
    assert refusal(guard, Access.CHANGE, {**LOCAL, "origin": "null"}) == "foreign_origin"
    assert refusal(guard, Access.CHANGE, {**LOCAL, "origin": "http://127.0.0.1:6092"}) is None
    assert refusal(guard, Access.OPEN, {"host": "rebound.example:6092"}) == "foreign_host"


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
