"""Pipeline files by grammar: tables, keys and values as they should be, with some that should not."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Final

from tests.fuzz.values import damaged, integer, text

NAMES: Final = ("orders", "clean", "out", "orders_bad", "Orders", "a b", "", "1", "ü", "select", "x" * 300)
TOP: Final = ("name", "bootstrap", "trigger", "checkpoint", "nmae")
SOURCE: Final = (
    *("topic", "topics", "table", "format", "decode", "schema", "registry", "start", "watermark"),
    *("options", "topcis"),
)
STEP: Final = ("name", "sql", "python", "input", "sqll")
SINK: Final = ("from", "format", "path", "topic", "key", "value", "mode", "partition_by", "options", "form")
WORDS: Final = (
    *("json", "avro", "csv", "raw", "parquet", "delta", "iceberg", "topic", "index", "console", "append"),
    *("update", "complete", "available-now", "continuous", "batch", "10 seconds", "earliest", "latest"),
    *("orders", "clean", "file.py:function", "SELECT * FROM orders", "id bigint", "http://127.0.0.1:1"),
)


def pipeline_file(pick: random.Random) -> str:
    lines = [_line(pick, key) for key in _some(pick, TOP, 0.7)]
    for _ in range(pick.choice((0, 1, 1, 2))):
        lines += [f"[sources.{_key(pick)}]", *(_line(pick, key) for key in _some(pick, SOURCE, 0.3))]
    for _ in range(pick.choice((0, 0, 1, 3))):
        lines += [
            pick.choice(("[[steps]]", "[[steps]]", "[steps]")),
            *(_line(pick, key) for key in _some(pick, STEP, 0.6)),
        ]
    for _ in range(pick.choice((0, 1, 1, 2))):
        lines += [f"[sinks.{_key(pick)}]", *(_line(pick, key) for key in _some(pick, SINK, 0.4))]
    if pick.random() < 0.1:
        pick.shuffle(lines)
    made = "\n".join(lines)
    if pick.random() < 0.15:
        made = damaged(pick, made.encode("utf-8", "replace")).decode("utf-8", "replace")
    if pick.random() < 0.02:
        made += pick.choice(
            (
                "\nx = " + "[" * 5_000,
                "\n" + "a." * 5_000 + "b = 1",
                "\nx = " + "{a=" * 3_000,
                "\nx=" + "9" * 5_000,
            )
        )
    return made


def _some(pick: random.Random, keys: Sequence[str], chance: float) -> list[str]:
    return [key for key in keys if pick.random() < chance]


def _key(pick: random.Random) -> str:
    name = pick.choice(NAMES) if pick.random() < 0.5 else "orders"
    return name if name.isidentifier() and name.isascii() else json.dumps(name)


def _line(pick: random.Random, key: str) -> str:
    return f"{key} = {_value(pick)}"


def _value(pick: random.Random, depth: int = 0) -> str:
    match pick.randrange(10):
        case 0 | 1 | 2 | 3 | 4:
            return json.dumps(pick.choice(WORDS))
        case 5:
            return json.dumps(text(pick))
        case 6:
            return str(pick.choice((integer(pick, 64), "true", "1.5", "nan", "2024-01-01", "07:32:00")))
        case 7 if depth < 3:
            return "[" + ", ".join(_value(pick, depth + 1) for _ in range(pick.randrange(3))) + "]"
        case 8 if depth < 3:
            pairs = (
                f"{key} = {_value(pick, depth + 1)}" for key in _some(pick, ("column", "delay", "x"), 0.6)
            )
            return "{ " + ", ".join(pairs) + " }"
        case _:
            quotes = pick.choice(('"' * 3, "'" * 3))
            return quotes + "\n" + pick.choice(WORDS) + "\n" + quotes
