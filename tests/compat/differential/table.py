"""The table of differences that are known: which requests, which field, and why."""

from __future__ import annotations

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.compat.differential.compare import Difference

FILE = Path(__file__).parent / "differences.toml"
FIELDS = {"api", "case", "path", "kafka", "chronik", "reason", "defect"}


@dataclass
class Entry:
    """One row. In `path`, `[]` stands for any element and `*` for anything; the other fields may have `*`.

    `kafka` and `chronik` are the values of the two sides. A list stands for any of its texts.

    `reason` says why the difference is meant; `defect` describes a wrong answer that is still to be mended.
    """

    paths: tuple[re.Pattern[str], ...]
    text: Mapping[str, Any]
    used: int = 0

    @property
    def why(self) -> str:
        return str(self.text.get("reason") or self.text["defect"])

    def covers(self, one: Difference) -> bool:
        text = self.text
        return (
            any(path.fullmatch(one.path) for path in self.paths)
            and _is_one_of(text.get("api"), one.api)
            and _is_one_of(text.get("case"), one.case)
            and _is_one_of(text.get("kafka"), one.kafka)
            and _is_one_of(text.get("chronik"), one.chronik)
        )


def _is_one_of(given: str | list[str] | None, value: object) -> bool:
    """`given` is a value, several, or None for any; `*` in it stands for anything."""
    if given is None:
        return True
    return any(fnmatchcase(str(value), one) for one in ([given] if isinstance(given, str) else given))


@dataclass
class Verdict:
    meant: int = 0
    defects: int = 0
    reasons: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Fields that differ, by API and reason."""
    unlisted: list[Difference] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    """Reasons for differences that are no more."""


def load() -> list[Entry]:
    entries = []
    for text in tomllib.loads(FILE.read_text())["difference"]:
        assert text.keys() <= FIELDS, f"unknown field in {text}"
        assert ("reason" in text) != ("defect" in text), f"either a reason or a defect: {text}"
        given = text["path"]
        paths = [_pattern(path) for path in ([given] if isinstance(given, str) else given)]
        entries.append(Entry(tuple(paths), text))
    return entries


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"(\[\]|\*)", path)
    return re.compile("".join({"[]": r"\[[^\]]*\]", "*": ".*"}.get(part, re.escape(part)) for part in parts))


def judge(found: Iterable[Difference]) -> Verdict:
    entries, verdict = load(), Verdict()
    for one in found:
        entry = next((entry for entry in entries if entry.covers(one)), None)
        if entry is None:
            verdict.unlisted.append(one)
            continue
        entry.used += 1
        verdict.reasons[one.api][entry.why] += 1
        if "defect" in entry.text:
            verdict.defects += 1
        else:
            verdict.meant += 1
    verdict.stale = [entry.text["reason"] for entry in entries if not entry.used and "reason" in entry.text]
    return verdict
