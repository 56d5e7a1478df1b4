"""Full-text search, in the shapes that people know from Elasticsearch."""

from __future__ import annotations

from typing import Any

import msgspec

from chronik.admin.endpoint import Content, HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.admin.needs import BY_NODE
from chronik.admin.peers import understood
from chronik.admin.scatter import SEARCH_SECONDS, NodeSearch, search_cluster, search_here
from chronik.admin.visible import visible_topics
from chronik.model import Int32, Unavailable
from chronik.query.request import SearchRequest
from chronik.security.acls import Operation, ResourceType
from chronik.security.quotas import CONSUMER_RATE
from chronik.server.gate import asks

ASK_SECONDS = 3.0
INDICES_BYTES_MAX = 4 * 1024 * 1024


class SearchAnswer(msgspec.Struct, frozen=True):
    """A hit has `_index` (topic), `_id` (PARTITION-OFFSET), `_score`, `_source`, `highlight`, `sort`."""

    took: float
    timed_out: bool
    lag: int
    """Committed records that were not searched: the index does not have them yet, and they are many."""
    _shards: dict[str, Any]
    hits: dict[str, Any]


class IndexRow(msgspec.Struct, frozen=True):
    """What another node must say of each of its indexes; the rest is shown as it came."""

    index: str
    node: Int32


class CatQuery(msgspec.Struct, frozen=True):
    format: str = "text"
    """text or json"""


@endpoint(
    "POST",
    "/_search",
    needs=asks((Operation.READ, ResourceType.TOPIC)),
    summary="Search all searchable topics",
    body=SearchRequest,
    answer=SearchAnswer,
    access=HttpAccess.DATA,
    quota=CONSUMER_RATE,
)
async def search_all(call: HttpCall) -> dict[str, Any]:
    """Queries: match_all, match, match_phrase, multi_match, term, terms, range, prefix, fuzzy, exists, ids,
    bool, query_string. Sort by _score, @timestamp, _offset, or a field of the value. Totals are exact;
    partitions that could not be searched are counted in _shards.failed."""
    return await search_cluster(call, call.body, None)


@endpoint(
    "POST",
    "/{topic}/_search",
    needs=asks((Operation.READ, ResourceType.TOPIC)),
    summary="Search one topic, or several separated by commas",
    body=SearchRequest,
    answer=SearchAnswer,
    access=HttpAccess.DATA,
    quota=CONSUMER_RATE,
)
async def search_topic(call: HttpCall) -> dict[str, Any]:
    names = [name for name in call.path["topic"].split(",") if name]
    return await search_cluster(call, call.body, names)


@endpoint(
    "POST",
    "/_node/search",
    needs=BY_NODE,
    summary="This node's share of a search; nodes ask each other",
    body=NodeSearch,
    access=HttpAccess.DATA,
    deadline_s=SEARCH_SECONDS + 5,
)
async def search_node(call: HttpCall) -> dict[str, Any]:
    return await search_here(call.context, call.body)


@endpoint(
    "GET",
    "/_node/indices",
    needs=BY_NODE,
    summary="The indexes of this node; nodes ask each other",
)
async def node_indices(call: HttpCall) -> list[dict[str, Any]]:
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
    needs=asks((Operation.DESCRIBE, ResourceType.TOPIC)),
    summary="The search indexes of all nodes",
    query=CatQuery,
    media_type="text/plain",
)
async def cat_indices(call: HttpCall) -> Content:
    context = call.context
    rows: list[dict[str, Any]] = await node_indices.function(call)
    visible = {"-", *visible_topics(call)}
    for node_id in context.peers.addresses():
        try:
            answer = await context.peers.ask(
                node_id,
                "GET",
                "/_node/indices",
                timeout_s=ASK_SECONDS,
                authorization=call.authorization,
                answer_bytes_max=INDICES_BYTES_MAX,
            )
            understood(node_id, answer, list[IndexRow])
            rows += answer
        except (Unavailable, HttpError) as error:
            rows.append({"index": "-", "node": node_id, "problem": str(error)})
    rows = [row for row in rows if row["index"] in visible]
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
