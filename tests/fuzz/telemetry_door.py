"""Client metrics (KIP-714) as a client pushes them: it asks for its subscription first and names its id.

The metrics are MetricsData by its grammar, well-formed and damaged, large in what is kept of them, compressed
by every codec. Between the pushes somebody changes the subscription and looks at what the clients said.
"""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Callable, Iterator
from typing import Final
from uuid import UUID

from chronik.records.compression import Compression, compress
from chronik.server.otlp import ATTRIBUTES_MAX, FIELDS_MAX, POINTS_MAX, TEXT_CHARS_MAX
from chronik.server.telemetry import ACCEPTED
from chronik.wire.api import ApiKey
from chronik.wire.schema import decode_response, encode_request
from tests.fuzz import http_door
from tests.fuzz.inputs import Input, Piece
from tests.fuzz.values import LONG_NUMBERS, damaged, integer, text
from tests.unit.server.test_otlp import field, fixed, metrics_data, varint

PORT: Final = "telemetry"
"""A conversation on the Kafka port: the second piece needs what the answer to the first says."""
_ID_PLACE: Final = struct.pack(">i", 0x5EED5EED)
"""Stands in a push where the subscription's id goes."""
CODECS: Final = (Compression.NONE, *ACCEPTED)


def inputs(pick: random.Random, topic_ids: list[UUID]) -> Iterator[Input]:
    yield _subscription(pick, "*")
    while True:
        for _ in range(pick.randrange(5, 30)):
            yield _push(pick)
        yield http_door.request("GET", pick.choice(("/admin/client-metrics", "/_node/client-metrics")))
        if pick.random() < 0.2:
            yield _subscription(pick, pick.choice(("*", "*", "*", "", "org.apache", text(pick)[:200])))


def _subscription(pick: random.Random, metrics: str) -> Input:
    body = {"metrics": metrics, "interval_ms": pick.choice((1_000, 100, 300_000))}
    return http_door.request("POST", "/admin/client-metrics/fuzz", body)


def _push(pick: random.Random) -> Input:
    instance = UUID(int=pick.getrandbits(128)) if pick.random() < 0.9 else UUID(int=pick.randrange(4))
    client = pick.choice(("fuzz", None, "é" * 100, text(pick)[:500]))
    fields = {"client_instance_id": instance}
    ask = encode_request(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, 1, client, fields)
    (subscription_id,) = struct.unpack(">i", _ID_PLACE)
    codec, data = pushed(pick)
    said = {
        **fields,
        "subscription_id": subscription_id if pick.random() < 0.95 else integer(pick, 32),
        "terminating": pick.random() < 0.1,
        "compression_type": codec if pick.random() < 0.95 else integer(pick, 8),
        "metrics": data,
    }
    push = encode_request(ApiKey.PUSH_TELEMETRY, 0, 2, client, said)
    return Input(
        what=f"push of {len(data)} bytes", port=PORT, pieces=(Piece(0, ask), Piece(0, push)), answers=2
    )


def answered(push: bytes, answer: bytes) -> bytes:
    """The push with the id that the answer to the question before it names."""
    _, body = decode_response(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, answer)
    return push.replace(_ID_PLACE, struct.pack(">i", body.subscription_id), 1)


def pushed(pick: random.Random) -> tuple[int, bytes]:
    """Codec and compressed metrics."""
    codec = pick.choice(CODECS)
    if codec is not Compression.NONE and pick.random() < 0.25:
        return codec, _large(pick.choice(("\U0001f600", "é", "a")), codec)
    plain = metrics(pick)
    data = plain if codec is Compression.NONE else compress(codec, plain)
    return codec, damaged(pick, data) if pick.random() < 0.1 else data


def metrics(pick: random.Random) -> bytes:
    match pick.randrange(8):
        case 0:
            return damaged(pick, metrics_data(*(_metric(pick) for _ in range(3))))
        case 1:
            return varint(8) * pick.choice((FIELDS_MAX, FIELDS_MAX + 1)) + b"\x00"
        case 2:
            return functools.reduce(lambda inner, _: field(1, inner), range(300), b"\x08\x01")
        case 3:
            return bytes(pick.choice((0, 1, 1_000_000)))
        case 4:
            return metrics_data(*[_metric(pick)] * pick.choice((POINTS_MAX, 2_000)))
        case _:
            return metrics_data(*(_metric(pick) for _ in range(pick.choice((0, 1, 2, 5)))))


def _metric(pick: random.Random) -> bytes:
    kind = pick.choice((5, 7, 9, 10, 11))
    points = b"".join(field(1, _point(pick, kind)) for _ in range(pick.choice((0, 1, 1, 3))))
    body = points + (field(2, pick.choice((0, 1, 2, 2**63))) if pick.random() < 0.5 else b"")
    named = field(1, text(pick)[:2_000].encode("utf-8", "surrogatepass"))
    return named + field(3, pick.choice((b"ms", b"", b"\xff\xfe", b"u" * 5_000))) + field(kind, body)


def _point(pick: random.Random, kind: int) -> bytes:
    number = struct.pack("<d", pick.choice((0.0, float("nan"), float("inf"), -1e308)))
    whole = struct.pack("<Q", pick.choice(LONG_NUMBERS) & (2**64 - 1))
    parts = [fixed(3, whole), fixed(pick.choice((4, 5)), number), fixed(pick.choice((4, 6)), whole)]
    makers: list[Callable[[], bytes]] = [
        lambda: field(1, text(pick)[:1_000].encode("utf-8", "surrogatepass")),
        lambda: field(2, 1),
        lambda: field(3, pick.choice(LONG_NUMBERS)),
        lambda: fixed(4, number),
        lambda: field(5, field(1, b"\x0a\x01x") * 50),
        lambda: field(7, b"\xff" * 100),
    ]
    for _ in range(pick.choice((0, 1, 3, ATTRIBUTES_MAX + 4))):
        key = field(1, text(pick)[:1_000].encode("utf-8", "surrogatepass"))
        parts.append(field(9 if kind == 9 else 7, key + field(2, pick.choice(makers)())))
    pick.shuffle(parts)
    return b"".join(parts)


@functools.cache
def _large(char: str, codec: Compression) -> bytes:
    """As much as can be kept of one push."""
    long = (char * TEXT_CHARS_MAX).encode()
    attribute = field(7, field(1, long) + field(2, field(1, long)))
    point = fixed(4, struct.pack("<d", 1.5)) + attribute * ATTRIBUTES_MAX
    metric = field(1, long) + field(3, long) + field(5, field(1, point))
    return bytes(compress(codec, metrics_data(*[metric] * POINTS_MAX)))
