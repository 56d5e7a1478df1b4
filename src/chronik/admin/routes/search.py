"""Full-text search, in the shapes that people know from Elasticsearch."""

from __future__ import annotations

from typing import Any

import msgspec

from chronik.admin.endpoint import Access, Call, Content, endpoint
from chronik.admin.errors import HttpError
from chronik.admin.scatter import SEARCH_SECONDS, NodeSearch, search_cluster, search_here
from chronik.model import Unavailable
from chronik.query.request import SearchRequest

ASK_SECONDS = 3.0


class SearchAnswer(msgspec.Struct, frozen=True):
    """A hit has `_index` (topic), `_id` (PARTITION-OFFSET), `_score`, `_source`, `highlight`, `sort`."""

    took: float
    timed_out: bool
    lag: int
    """Committed records that were not searched: the index does not have them yet, and they are many."""
    _shards: dict[str, Any]
    hits: dict[str, Any]


class CatQuery(msgspec.Struct, frozen=True):
    format: str = "text"
    """text or json"""


@endpoint(
    "POST",
    "/_search",
    summary="Search all searchable topics",
    body=SearchRequest,
    answer=SearchAnswer,
    access=Access.DATA,
)
async def search_all(call: Call) -> dict[str, Any]:
    """Queries: match_all, match, match_phrase, multi_match, term, terms, range, prefix, fuzzy, exists, ids,
    bool, query_string. Sort by _score, @timestamp, _offset, or a field of the value. Totals are exact;
    partitions that could not be searched are counted in _shards.failed."""
    return await search_cluster(call.context, call.body, None, call.authorization)


@endpoint(
    "POST",
    "/{topic}/_search",
    summary="Search one topic, or several separated by commas",
    body=SearchRequest,
    answer=SearchAnswer,
    access=Access.DATA,
)
async def search_topic(call: Call) -> dict[str, Any]:
    names = [name for name in call.path["topic"].split(",") if name]
    return await search_cluster(call.context, call.body, names, call.authorization)


@endpoint(
    "POST",
    "/_node/search",
    summary="This node's share of a search; nodes ask each other",
    body=NodeSearch,
    access=Access.DATA,
    deadline_s=SEARCH_SECONDS + 5,
)
async def search_node(call: Call) -> dict[str, Any]:
    return await search_here(call.context, call.body)


@endpoint("GET", "/_node/indices", summary="The indexes of this node; nodes ask each other")
async def node_indices(call: Call) -> list[dict[str, Any]]:
    queries = call.context.queries
    if not any(call.context.services.topic_config(name).searchable for name in call.context.state.topics):
        return []
    found: list[dict[str, Any]] = await queries.ask("indices", None, timeout_s=ASK_SECONDS)
    lags = queries.lag()
    for one in found:
        one["lag"] = sum(lag for tp, lag in lags.items() if tp.topic == one["index"])
        one["node"] = call.context.node_id
    return found


@endpoint(
    "GET",
    "/_cat/indices",
    summary="The search indexes of all nodes",
    query=CatQuery,
    media_type="text/plain",
)
async def cat_indices(call: Call) -> Content:
    context = call.context
    rows: list[dict[str, Any]] = await node_indices.function(call)
    for node_id in context.peers.addresses():
        try:
            rows += await context.peers.ask(node_id, "GET", "/_node/indices", timeout_s=ASK_SECONDS)
        except (Unavailable, HttpError) as error:
            rows.append({"index": "-", "node": node_id, "problem": str(error)})
    rows.sort(key=lambda row: (row["index"], row["node"]))
    if call.query.format == "json":
        return Content(msgspec.json.encode(rows), "application/json")
    names = ("index", "node", "partitions", "ready", "documents", "lag", "size_bytes", "problem")
    lines = [[str(row.get(name, "")) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *lines, strict=True)]
    table = [
        " ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in (names, *lines)
    ]
    return Content(("\n".join(line.rstrip() for line in table) + "\n").encode(), "text/plain; charset=utf-8")
