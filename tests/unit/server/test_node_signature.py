"""What a node signs is good for one request to one node, for a while."""

from __future__ import annotations

import pytest

from chronik.links.handshake import NodeKey
from chronik.server.node_signature import AGE_MS_MAX, NodeSignature, NotInTime

NOW = [1_000_000]


def node(node_id: int, *secrets: str) -> NodeSignature:
    return NodeSignature(secrets or ("secret",), node_id, lambda: NOW[0])


def signed(to: int = 2, by: NodeSignature | None = None) -> str:
    header = (by or node(1)).header(to, "POST", "/_node/search", b"body")
    scheme, _, given = header.partition(" ")
    assert scheme == "Chronik-Node"
    return given


def test_a_request_is_believed_once() -> None:
    other, given = node(2), signed()
    found = other.check(given, "POST", "/_node/search")
    assert found is not None
    assert found.node_id == 1
    assert found.fits(b"body")
    assert not found.fits(b"another body")
    assert other.check(given, "POST", "/_node/search") is None
    assert other.check(signed(), "POST", "/_node/search") is not None


@pytest.mark.parametrize(
    ("given", "method", "path"),
    [
        (signed(to=3), "POST", "/_node/search"),
        (signed(by=node(1, "another secret")), "POST", "/_node/search"),
        (signed(), "GET", "/_node/search"),
        (signed(), "POST", "/_node/audit"),
        (signed(), "POST", "/_node/search?topic=another"),
        ("9" + signed(), "POST", "/_node/search"),
        ("", "POST", "/_node/search"),
        ("1 2 3 4 \xe9", "POST", "/_node/search"),
    ],
)
def test_everything_is_signed(given: str, method: str, path: str) -> None:
    assert node(2).check(given, method, path) is None


def test_an_old_request_is_not_believed() -> None:
    given = signed()
    receiver = node(2)
    NOW[0] += AGE_MS_MAX + 1
    with pytest.raises(NotInTime, match=r"node 1 signed this -60\.0 s from now"):
        receiver.check(given, "POST", "/_node/search")
    forged = f"{given[:-1]}{'1' if given[-1] == '0' else '0'}"
    assert receiver.check(forged, "POST", "/_node/search") is None, (
        "a time that nobody signed is not told about"
    )


def test_the_query_is_signed() -> None:
    header = node(1).header(2, "GET", "/_node/indices?format=json", b"").partition(" ")[2]
    assert node(2).check(header, "GET", "/_node/indices?format=text") is None
    assert node(2).check(header, "GET", "/_node/indices") is None
    assert node(2).check(header, "GET", "/_node/indices?format=json") is not None


def test_what_was_taken_before_a_restart_is_not_taken_again() -> None:
    given = signed()
    assert node(2).check(given, "POST", "/_node/search") is not None
    NOW[0] += 1
    again = node(2)
    with pytest.raises(NotInTime):
        again.check(given, "POST", "/_node/search")
    assert again.check(signed(), "POST", "/_node/search") is not None


def test_two_secrets_are_believed_while_one_replaces_the_other() -> None:
    assert node(2, "new", "secret").check(signed(), "POST", "/_node/search") is not None
    assert node(2, "new").check(signed(), "POST", "/_node/search") is None


KEY = NodeKey(b"1" * 32)


@pytest.mark.parametrize(
    ("by", "is_believed"),
    [(KEY, True), (NodeKey(b"2" * 32), False), (None, False)],
    ids=["own", "other", "none"],
)
def test_the_secret_alone_cannot_pass_for_a_node_with_a_key(by: NodeKey | None, is_believed: bool) -> None:
    sender = NodeSignature(["secret"], 1, lambda: NOW[0], sign=None if by is None else by.sign)
    keys = {1: KEY.public}
    receiver = NodeSignature(["secret"], 2, lambda: NOW[0], registered_key=keys.get)
    given = signed(by=sender)
    assert (receiver.check(given, "POST", "/_node/search") is not None) is is_believed
    elsewhere = NodeSignature(["secret"], 3, lambda: NOW[0], registered_key=keys.get)
    assert elsewhere.check(given, "POST", "/_node/search") is None
