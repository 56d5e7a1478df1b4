"""docs/DIFFERENCES.md: how many answers were compared with Apache Kafka's, how many differ, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chronik.server.handlers import all_handlers
from chronik.wire.api import ApiKey
from tools.protocol_docs import api_name

COMPARED = Path(__file__).parents[1] / "tests" / "compat" / "differential" / "compared.json"
HEAD = """\
# Differences from Apache Kafka

`tests/compat/test_differential.py` sends the same requests to Apache Kafka 4.1 and to a node and compares the
answers field by field. Every difference has its reason in `tests/compat/differential/differences.toml`; one
that has none fails the test, and so does a reason that is no longer needed. Ids, times and addresses only
have to be there; the wording of error messages is not compared.

Made by `python tools/check_docs.py --write` from what
`pytest tests/compat/test_differential.py --write-differences` counted.

"""
TABLE = """
| API | versions | requests | differ | why |
|---|---|---|---|---|
"""
ALONE = """
## Not compared

Apache Kafka does not offer these:
"""


def differences_page() -> str:
    apis: dict[str, dict[str, Any]] = json.loads(COMPARED.read_text())
    alone = [key for key in sorted(handler.api_key for handler in all_handlers()) if key.name not in apis]
    numbers = _numbered(apis)
    requests = sum(one["requests"] for one in apis.values())
    differing = sum(one["differing"] for one in apis.values())
    rows = [_row(name, one, numbers) for name, one in apis.items()]
    reasons = [f"{number}. {reason}\n" for reason, number in numbers.items()]
    return (
        HEAD
        + f"{requests:,} requests to {len(apis)} APIs were compared; {differing:,} answers differ.\n"
        + TABLE
        + "".join(rows)
        + "\n## Reasons\n\n"
        + "".join(reasons)
        + (f"{ALONE}{', '.join(map(api_name, alone))}.\n" if alone else "")
    )


def _numbered(apis: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Reasons in the order in which the table needs them."""
    numbers: dict[str, int] = {}
    for one in apis.values():
        for reason in one["reasons"]:
            numbers.setdefault(reason, len(numbers) + 1)
    return numbers


def _row(name: str, one: dict[str, Any], numbers: dict[str, int]) -> str:
    low, high = one["versions"]
    why = ", ".join(str(number) for number in sorted(numbers[reason] for reason in one["reasons"]))
    key = ApiKey[name]
    versions = f"{low}" if low == high else f"{low} to {high}"
    return f"| {api_name(key)} | {versions} | {one['requests']} | {one['differing']} | {why} |\n"
