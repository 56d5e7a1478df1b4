"""What a search asks for and gets, and the order of hits. Light: the node itself reads this, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from chronik.model import Int64
from chronik.query.messages import QueryError

__all__ = ["NATIVE", "SearchRequest", "SearchResult", "check_request", "sort_key", "sort_of"]

SIZE_MAX: Final = 1_000
WINDOW_MAX: Final = 10_000
NATIVE: Final = {
    "@timestamp": "_timestamp",
    "_timestamp": "_timestamp",
    "timestamp_ms": "_timestamp",
    "_offset": "_offset",
    "_doc": "_offset",
    "_partition": "_partition",
}


class SearchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    query: dict[str, Any] = msgspec.field(default_factory=lambda: {"match_all": {}})
    from_: Int64 = msgspec.field(name="from", default=0)
    size: Int64 = 10
    sort: list[Any] | dict[str, Any] | str = []
    highlight: dict[str, Any] | None = None
    source: Any = msgspec.field(name="_source", default=True)
    track_total_hits: Any = True
    timeout: Any = None
    refresh: bool = False
    """Wait (a few seconds at most) for the index where it is needed to find all that is committed now."""


class SearchResult(msgspec.Struct, kw_only=True):
    total: int
    hits: list[dict[str, Any]]
    searched: int
    """Partitions that were searched."""
    failures: list[dict[str, Any]]
    """Partitions that could not be, and why."""
    reached: dict[str, dict[int, int]]
    """For each topic and partition the offset up to which it was searched."""


def check_request(request: SearchRequest) -> None:
    if request.from_ < 0 or not 0 <= request.size <= SIZE_MAX:
        raise QueryError(400, "invalid_query", f"size is 0 to {SIZE_MAX}, from is not negative.")
    if request.from_ + request.size > WINDOW_MAX:
        raise QueryError(
            400, "invalid_query", f"from and size together reach {WINDOW_MAX} at most; use a range to go on."
        )
    sort_of(request)


def sort_of(request: SearchRequest) -> tuple[str, bool] | None:
    """Field and direction; None for the best first. Further sort fields only break ties, as offsets do."""
    given = request.sort
    items = given if isinstance(given, list) else [given]
    if not items:
        return None
    first = items[0]
    if isinstance(first, str):
        name, direction = first, "desc" if first == "_score" else "asc"
    elif isinstance(first, Mapping) and len(first) == 1:
        ((name, inner),) = first.items()
        direction = inner.get("order", "asc") if isinstance(inner, Mapping) else inner
    else:
        raise QueryError(400, "invalid_query", 'sort takes names or {"name": "asc"}.')
    if direction not in ("asc", "desc"):
        raise QueryError(400, "invalid_query", f"A sort direction is asc or desc, not {direction!r}.")
    return None if name == "_score" else (str(name).removesuffix(".keyword"), direction == "asc")


def sort_key(hit: Mapping[str, Any], order: tuple[str, bool] | None) -> tuple[Any, ...]:
    """Hits of all partitions and nodes in one order; values that are missing come last."""
    place = (hit["_index"], hit["partition"], hit["offset"])
    if order is None:
        return (-(hit["_score"] or 0.0), *place)
    value = hit["sort"][0]
    if isinstance(value, str):
        return (1, value if order[1] else tuple(-ord(char) for char in value), *place)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return (2, 0, *place)
    return (0, value if order[1] else -value, *place)
