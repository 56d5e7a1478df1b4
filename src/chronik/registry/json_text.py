"""JSON as schemas are written in it: strict, bounded in depth, one canonical form."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from chronik.registry.errors import InvalidSchema
from chronik.registry.limits import StepBudget, check_depth

__all__ = ["canonical_json", "parse_json", "sorted_json"]


def parse_json(text: str, budget: StepBudget) -> Any:
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise InvalidSchema(f"The schema is not JSON: {error}.") from None
    check_depth(value, budget)
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:20]} is too large")
    return value


def canonical_json(value: object) -> str:
    """The text without spaces; keys stay in their order."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def sorted_json(value: object) -> str:
    """The text without spaces, keys sorted: values that are equal have the same text."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
