"""Values and mutations that the generators share. Everything is drawn from one `random.Random`."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Final

NAMES: Final = (
    *(f"fuzz-{number}" for number in range(6)),
    "__consumer_offsets",
    "__transaction_state",
    "__cluster_metadata",
    "",
    ".",
    "..",
    "a/b",
    "../../etc",
    "x" * 249,
    "x" * 300,
    "grüße",
    "a\x00b",
    "fuzz.dot",
    "fuzz_dot",
    "\ufeff",
    "%s%n",
    "1",
    "0",
)
NUMBERS: Final = (0, 1, -1, 2, -2, 3, 7, 100, 127, 255, 256, 32767, 65536, 10**6, 2**31 - 1, -(2**31), 2**32)
LONG_NUMBERS: Final = (*NUMBERS, 2**53, 2**62, 2**63 - 1, -(2**63), 10**12, 1_700_000_000_000)
COUNTS: Final = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x00\xff\xff\xff",
    b"\x00\x01\x00\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x80\x80",
    b"\x7f\xff",
    b"\xff\xff",
)


def integer(pick: random.Random, bits: int) -> int:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if pick.random() < 0.2:
        return pick.randint(low, high)
    return min(max(pick.choice(LONG_NUMBERS), low), high)


def damaged(pick: random.Random, valid: bytes, *, start: int = 0) -> bytes:
    """The bytes with a few of them flipped, overwritten by absurd counts, cut, doubled or put in."""
    data = bytearray(valid)
    for _ in range(pick.choice((1, 1, 1, 2, 3, 8))):
        if len(data) <= start:
            break
        at = pick.randrange(start, len(data))
        match pick.randrange(7):
            case 0:
                data[at] ^= 1 << pick.randrange(8)
            case 1:
                data[at] = pick.choice((0, 1, 0x7F, 0x80, 0xFF, pick.randrange(256)))
            case 2:
                count = pick.choice(COUNTS)
                data[at : at + len(count)] = count
            case 3:
                del data[at:]
            case 4:
                data[at:at] = pick.randbytes(pick.choice((1, 2, 4, 30)))
            case 5:
                data[at:at] = data[at : at + pick.randrange(1, 64)]
            case 6:
                del data[at : at + pick.randrange(1, 16)]
    return bytes(data)


def text(pick: random.Random) -> str:
    match pick.randrange(6):
        case 0:
            return pick.choice(NAMES)
        case 1:
            return "".join(
                chr(pick.choice((0, 9, 34, 39, 92, 0x2003, 0xFEFF, 0x1F600, 97))) for _ in range(5)
            )
        case 2:
            return pick.choice(
                ("%", "_", "*", "?", "a?" * 20 + "a" * 20, "(" * 50, "[" * 50, "'; --", "\\", "$$")
            )
        case 3:
            return "y" * pick.choice((1, 40, 41, 300, 20_000))
        case 4:
            return str(pick.choice(LONG_NUMBERS))
        case _:
            return pick.choice(
                ("ada", "id", "2024-01-01", "9999-99-99T99:99:99Z", "NaN", "null", "true", "1e999")
            )


def json_value(pick: random.Random, depth: int = 0) -> Any:
    match pick.randrange(9 if depth < 4 else 6):
        case 0:
            return pick.choice(LONG_NUMBERS)
        case 1:
            return text(pick)
        case 2:
            return pick.choice((None, True, False))
        case 3:
            return pick.choice((0.5, -1e300, 1e-320, 170141183460469231731687303715884105727, -0.0))
        case 4 | 5:
            return pick.choice(("ada", 1, 2, "express delivery"))
        case 6:
            return [json_value(pick, depth + 1) for _ in range(pick.randrange(4))]
        case _:
            return {json_key(pick): json_value(pick, depth + 1) for _ in range(pick.randrange(5))}


def json_key(pick: random.Random) -> str:
    return pick.choice(
        ("id", "customer", "note", "total", "a.b", "", "_key", "key", "value", "offset", text(pick))
    )


STRANGE_JSON: Final = (
    b'{"id":' * 500 + b"1" + b"}" * 500,
    b"[" * 20_000,
    b'{"\\ud800": 1, "id": "\\udfff"}',
    b'{"id": 1' + b"0" * 5_000 + b"}",
    b'{"id": 1e999, "id": -1e999, "id": null}',
    b'{"id": 170141183460469231731687303715884105728}',
    b'{"a":{"a":{"a":1}}, "a.a": 2, "a.a.a": {"b": 3}}',
    b'{"id": NaN, "x": Infinity}',
    b'\xef\xbb\xbf{"id": 1}',
    b'{"id": 1}{"id": 2}',
    b"\xff\xfe\x00",
    b'"',
    b"",
)


def json_bytes(pick: random.Random) -> bytes:
    """Hostile JSON: strange values, valid JSON of strange shape, broken JSON, very wide objects."""
    match pick.randrange(6):
        case 0:
            return pick.choice(STRANGE_JSON)
        case 1:
            return damaged(pick, json.dumps(json_value(pick)).encode("utf-8", "surrogatepass"))
        case 2:
            return json.dumps(
                {f"f{pick.randrange(10**6)}": n for n in range(pick.choice((3, 50, 600)))}
            ).encode()
        case _:
            return json.dumps(
                {"id": json_value(pick), "customer": text(pick), "note": json_value(pick)}
            ).encode()


def any_of(pick: random.Random, choices: Sequence[Any], otherwise: Any, chance: float = 0.85) -> Any:
    return pick.choice(choices) if pick.random() < chance else otherwise
