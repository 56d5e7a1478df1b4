"""Schemas and data of strangers, and a registry that answers anything: a reason, never the end of a job."""

from __future__ import annotations

import copy
import http.server
import io
import json
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from chronik.model import ChronikError
from chronik.spark.jobs.avro import ANSWER_BYTES_MAX, decoder, fetch_latest, fetch_schema
from tests.fuzz.values import damaged, json_value

TRIES = 1_500
NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
EMPTY = {"type": "record", "name": "Empty", "fields": []}
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "parts", "type": {"type": "array", "items": "bytes"}},
        {"name": "more", "type": {"type": "map", "values": "double"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["a", "b"]}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}


def of(*fields: Any) -> dict[str, Any]:
    named = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(fields)]
    return {"type": "record", "name": "Outer", "fields": named}


def framed(datum: bytes) -> bytes:
    return b"\x00\x00\x00\x00\x01" + datum


@pytest.mark.parametrize(
    ("schema", "datum"),
    [
        (NODE, b"\x02" * 1_000_000),
        (of({"type": "array", "items": "null"}), b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"),
        (of({"type": "array", "items": {"type": "array", "items": EMPTY}}), b"\x02\xfe\xff\xff\xff\x7f"),
        (of({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}), b"\xfe\xff\xff\xff\x7f"),
        ("string", b"\x02x"),
        (of("Nowhere"), b""),
        ({"type": "record"}, b""),
        (5, b""),
        (of({"type": "bytes", "logicalType": "decimal", "precision": "x"}), b"\x00"),
    ],
)
def test_a_schema_that_cannot_be_columns_costs_its_own_records(schema: Any, datum: bytes) -> None:
    read = decoder({1: schema})
    text, reason = read(framed(datum))
    assert text is None
    assert reason is not None
    assert reason.startswith("schema 1 ")


def test_any_datum_of_any_schema_is_text_or_has_a_reason() -> None:
    import fastavro

    out = io.BytesIO()
    good = {"id": 1, "note": "x", "parts": [b"a"], "more": {"b": 1.5}, "kind": "a", "price": b"\x01"}
    fastavro.schemaless_writer(out, fastavro.parse_schema(copy.deepcopy(ORDER)), good)
    texts = 0
    for seed in range(TRIES):
        pick = random.Random(seed)
        schema: Any = copy.deepcopy(ORDER)
        if seed % 2:
            field = pick.choice(schema["fields"])
            field[pick.choice(("name", "type"))] = json_value(pick)
        text, reason = decoder({1: schema})(damaged(pick, framed(out.getvalue())) if seed % 3 else b"\x00")
        assert (text is None) == (reason is not None)
        texts += text is not None
        assert text is None or json.loads(text) is not None
    assert texts > TRIES // 50


class Registry(http.server.BaseHTTPRequestHandler):
    answer = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[1]",
        b"5",
        b'{"schema": 5}',
        b'{"schema": "{"}',
        b'{"schema": null}',
        b"[" * 200_000,
        b'{"schema": "' + b"[" * 200_000 + b'"}',
        b'{"schema": "' + b" " * ANSWER_BYTES_MAX + b'"}',
        b"\xff\xfe",
    ],
)
def test_a_registry_that_answers_something_else_is_named(
    registry: str, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(Registry, "answer", answer)
    with pytest.raises(ChronikError, match="registry"):
        fetch_schema(registry, 1)
    with pytest.raises(ChronikError, match="registry"):
        fetch_latest(registry, "orders")


def test_a_registry_that_points_elsewhere_does_not_pass_on_who_asks(
    registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def do_get(self: Registry) -> None:
        seen.append((self.path, self.headers.get("authorization")))
        self.send_response(200 if self.path == "/elsewhere" else 302)
        self.send_header("location", "/elsewhere")
        self.end_headers()
        self.wfile.write(b'{"schema": "5"}')

    monkeypatch.setattr(Registry, "do_GET", do_get)
    assert fetch_schema(registry.replace("//", "//:KEY@"), 1) == 5
    assert seen == [("/schemas/ids/1", "Bearer KEY"), ("/elsewhere", None)]
