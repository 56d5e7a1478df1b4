"""What a run compared, kept for docs/DIFFERENCES.md: counts, and the reasons by API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.compat.differential.run import Result
from tests.compat.differential.table import Verdict

FILE = Path(__file__).parent / "compared.json"


def page_facts(result: Result, verdict: Verdict) -> dict[str, Any]:
    return {
        api: {
            "versions": list(one.versions),
            "requests": one.requests,
            "differing": one.differing,
            "reasons": dict(sorted(verdict.reasons.get(api, {}).items())),
        }
        for api, one in result.compared.items()
    }


def write_facts(facts: dict[str, Any]) -> None:
    FILE.write_text(json.dumps(facts, indent=1) + "\n")


def read_facts() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def names(facts: dict[str, Any]) -> dict[str, Any]:
    """What must not be stale: which APIs in which versions differ for which reasons. Counts vary."""
    return {api: (tuple(one["versions"]), set(one["reasons"])) for api, one in facts.items()}
