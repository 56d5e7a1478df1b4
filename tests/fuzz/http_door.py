"""HTTP: every endpoint with strange paths, parameters, headers and bodies, and requests that break HTTP."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

import msgspec

from chronik.admin.endpoint import HttpAccess, HttpEndpoint
from chronik.admin.routes import ENDPOINTS
from tests.fuzz import queries
from tests.fuzz.inputs import Input, Piece
from tests.fuzz.typed_bodies import TypedBodies, body_bytes
from tests.fuzz.values import NAMES, damaged, json_bytes, json_value, text

API_KEY: Final = "fuzz-key"
METHODS: Final = (
    "GET",
    "POST",
    "PUT",
    "DELETE",
    "PATCH",
    "HEAD",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "G\x00T",
    "",
)
WHOLE_NODE: Final = {"add_node", "remove_node", "rebalance", "change_levels"}
"""What an administrator may change for everybody; these calls never get the right key."""


def raw(method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1", "replace") + body


def request(
    method: str, target: str, body: Any = None, *, key: str | None = API_KEY, what: str = ""
) -> Input:
    """A well-formed request, which must be answered, and not by an error of ours."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    headers = {"Host": "127.0.0.1", "Connection": "close", "Content-Length": str(len(data))}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    pieces = (Piece(0, raw(method, target, headers, data)),)
    return Input(what=what or f"{method} {target[:100]}", port="http", pieces=pieces, answers=1)


def inputs(pick: random.Random, topic_ids: list[UUID]) -> Iterator[Input]:
    kinds: list[Callable[[random.Random], Input]] = [
        _endpoint,
        _endpoint,
        *[_typed] * 6,
        _search,
        _search,
        _sql,
        _sql,
        _broken,
    ]
    while True:
        yield pick.choice(kinds)(pick)


def _search(pick: random.Random) -> Input:
    target, body = queries.search(pick)
    return request("POST", target, body, what=f"search {body[:150]!r}")


def _sql(pick: random.Random) -> Input:
    target, body = queries.sql(pick)
    return request("POST", target, body, what=f"{target} {body[:150]!r}")


def _typed(pick: random.Random) -> Input:
    """What passes validation."""
    one = pick.choice([each for each in ENDPOINTS if each.body is not None or each.query is not None])
    path, made = _path(pick, one), TypedBodies(pick)
    if one.query is not None:
        given = made.parameters(one.query)
        path += "?" + "&".join(f"{name}={quote(value, errors='replace')}" for name, value in given.items())
    body = None if one.body is None else body_bytes(made.of(one.body))
    key = None if one.name in WHOLE_NODE else API_KEY
    return request(one.method, path, body, key=key, what=f"{one.method} {path[:100]} {(body or b'')[:150]!r}")


def _path(pick: random.Random, one: HttpEndpoint) -> str:
    path = one.path
    for name in one.path_names:
        value = pick.choice(NAMES) if pick.random() < 0.7 else pick.choice(NAMES[:3])
        path = path.replace("{" + name + "}", quote(value, safe=pick.choice(("", "/%"))))
    return path


def _endpoint(pick: random.Random) -> Input:
    one: HttpEndpoint = pick.choice(ENDPOINTS)
    path = _path(pick, one)
    if one.query is not None or pick.random() < 0.1:
        path += "?" + _parameters(pick, one)
    body: Any = None
    if one.body is not None or pick.random() < 0.1:
        body = json_bytes(pick) if pick.random() < 0.3 else _body(pick, one)
    keys = (None, "wrong") if one.name in WHOLE_NODE else (API_KEY, API_KEY, API_KEY, None, "wrong", "é")
    return request(one.method, path, body, key=pick.choice(keys))


def _parameters(pick: random.Random, one: HttpEndpoint) -> str:
    names = [each.encode_name for each in msgspec.structs.fields(one.query)] if one.query else []
    chosen = [pick.choice((*names, "nothing")) for _ in range(pick.randrange(1, 4))]
    return "&".join(f"{name}={quote(text(pick)[:2000], errors='replace')}" for name in chosen)


def _body(pick: random.Random, one: HttpEndpoint) -> Any:
    fields = msgspec.structs.fields(one.body) if one.body is not None else ()
    made = {each.encode_name: json_value(pick) for each in fields if pick.random() < 0.8}
    if "name" in made and pick.random() < 0.8:
        made["name"] = pick.choice(NAMES)
    if one.access is HttpAccess.CHANGE and "partitions" in made:
        made["partitions"] = pick.choice((1, 2, 0, -1, 2**31, "x"))
    return made


def _broken(pick: random.Random) -> Input:
    """Requests that break HTTP itself: no answer is promised, only that nobody else notices."""
    target = pick.choice(
        ("/health", "/" + quote(text(pick)[:3000], errors="replace"), "//", "*", "/%ff%00", "/..%2f..")
    )
    headers = {
        "Host": pick.choice(("127.0.0.1", "evil.example", "", "a" * 9000, "[::1", "127.0.0.1:99999999"))
    }
    body = json_bytes(pick)
    match pick.randrange(8):
        case 0:
            headers["Content-Length"] = pick.choice(
                ("-1", "99999999999999999999", "x", "5, 6", str(len(body) * 2))
            )
        case 1:
            headers["Transfer-Encoding"] = pick.choice(("chunked", "chunked, chunked", "gzip", "x" * 100))
            body = pick.choice(
                (b"ffffffffffffffff\r\nabc", b"5\r\nabc\r\n0\r\n\r\n", b"0\r\nA: b\r\n\r\n", body)
            )
        case 2:
            headers.update({f"X-{number}": "y" * 500 for number in range(pick.choice((3, 200)))})
        case 3:
            headers["Expect"] = "100-continue"
        case 4:
            headers.update({"Upgrade": pick.choice(("websocket", "h2c")), "Connection": "Upgrade"})
        case 5:
            headers["Range"] = "bytes=9999999999999-, -1, 0-0" * 50
        case 6:
            headers["Content-Type"] = pick.choice(("text/xml", "multipart/form-data; boundary=" + "x" * 500))
        case _:
            headers["Content-Encoding"] = "gzip"
    data = raw(pick.choice(METHODS), target, headers, body)
    data = damaged(pick, data) if pick.random() < 0.5 else data
    return Input(what="broken HTTP", port="http", pieces=(Piece(0, data * pick.choice((1, 1, 3))),))
