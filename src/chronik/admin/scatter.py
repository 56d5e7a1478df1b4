"""A search over the whole cluster: each partition is searched exactly once, on the node that leads it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from chronik.admin.context import AdminContext
from chronik.admin.endpoint import HttpCall
from chronik.admin.errors import HttpError
from chronik.admin.peers import AnswerBudget, understood
from chronik.admin.visible import readable_topics
from chronik.metrics import clock
from chronik.model import ErrorCode, Int32, Int64, NodeId, RequestError, TopicPartition, Unavailable
from chronik.query.gateway import log_states
from chronik.query.messages import QueryError
from chronik.query.request import SearchRequest, SearchResult, check_request, sort_key, sort_of
from chronik.security.acls import Operation, ResourceType

__all__ = ["NodeSearch", "believed", "search_cluster", "search_here"]

SEARCH_SECONDS: Final = 10.0
ANSWERS_BYTES_MAX: Final = 128 * 1024 * 1024
"""What all nodes together may answer to one search. A node for whose answer there is no room has failed."""


Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class NodeSearch(msgspec.Struct, frozen=True, kw_only=True):
    """A node's share of a search."""

    request: SearchRequest
    partitions: dict[str, list[Int32]]
    topic_ids: dict[str, str]
    """A topic may have been deleted and created again; an index of the old one must not answer."""


class NodeHit(msgspec.Struct, frozen=True):
    """What the nodes' hits are put in order by; the rest is shown as it came."""

    index: str = msgspec.field(name="_index")
    partition: Int32
    offset: Int64
    score: float | None = msgspec.field(name="_score")
    sort: list[Any] = msgspec.field(default_factory=list)


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    total: Count
    searched: Count
    lag: Count = 0
    hits: list[dict[str, Any]]
    failures: list[dict[str, Any]]


def believed(
    node_id: NodeId, given: object, request: SearchRequest, wanted: Mapping[str, Sequence[int]]
) -> Mapping[str, Any]:
    """Another node's answer; Unavailable if it is not one to this question."""
    answer = understood(node_id, given, NodeAnswer)
    partitions = sum(map(len, wanted.values()))
    if max(answer.searched, len(answer.failures)) > partitions or len(answer.hits) > (
        request.from_ + request.size
    ):
        raise Unavailable(f"node {node_id} answers more than it was asked for")
    is_sorted = sort_of(request) is not None
    for hit in understood(node_id, answer.hits, list[NodeHit]):
        if hit.partition not in wanted.get(hit.index, ()) or (is_sorted and not hit.sort):
            raise Unavailable(f"node {node_id} answers something else: a hit in {hit.index}-{hit.partition}")
    return msgspec.structs.asdict(answer)


async def search_cluster(call: HttpCall, request: SearchRequest, topics: list[str] | None) -> dict[str, Any]:
    """`topics` is None for all that are searchable and that the caller may read."""
    context = call.context
    began = clock()
    context.queries.require_installed()
    check_request(request)
    shares, failures = _shares(call, topics)
    budget = AnswerBudget(ANSWERS_BYTES_MAX)
    answers = await asyncio.gather(
        *(
            _ask(context, node_id, request, wanted, call.authorization, budget)
            for node_id, wanted in shares.items()
        )
    )
    total = lag = searched = 0
    hits: list[dict[str, Any]] = []
    for answer in answers:
        total += answer["total"]
        searched += answer["searched"]
        lag += answer["lag"]
        hits += answer["hits"]
        failures += answer["failures"]
    order = sort_of(request)
    hits.sort(key=lambda hit: sort_key(hit, order))
    shown = hits[request.from_ : request.from_ + request.size]
    scores = [hit["_score"] for hit in hits if hit["_score"] is not None]
    return {
        "took": round((clock() - began) * 1000, 3),
        "timed_out": False,
        "lag": lag,
        "_shards": {
            "total": searched + len(failures),
            "successful": searched,
            "skipped": 0,
            "failed": len(failures),
            "failures": failures[:100],
        },
        "hits": {
            "total": {"value": total, "relation": "gte" if failures else "eq"},
            "max_score": max(scores) if scores else None,
            "hits": shown,
        },
    }


def _shares(
    call: HttpCall, topics: list[str] | None
) -> tuple[dict[NodeId, dict[str, list[int]]], list[dict[str, Any]]]:
    """Which node searches what, and the partitions that nobody can search now."""
    context, settings = call.context, call.context.settings
    if settings.disable_realtime_index and settings.published_index_dir is None:
        raise HttpError(409, "index_disabled", "Real-time indexing is turned off on this node.")
    for name in topics or ():
        call.access.require(Operation.READ, ResourceType.TOPIC, name)
    names = readable_topics(call) if topics is None else topics
    shares: dict[NodeId, dict[str, list[int]]] = {}
    failures: list[dict[str, Any]] = []
    for name in names:
        topic = context.state.topics.get(name)
        if topic is None:
            raise RequestError(ErrorCode.unknown_topic_or_partition, f"There is no topic {name!r}.")
        if not context.services.topic_config(name).searchable:
            if topics is not None:
                raise HttpError(
                    400,
                    "not_searchable",
                    f"Topic {name!r} is not searchable: set its config searchable=true.",
                )
            continue
        for one in topic.partitions:
            if context.state.is_alive(one.leader):
                shares.setdefault(one.leader, {}).setdefault(name, []).append(one.partition)
            else:
                failures.append({"index": name, "shard": one.partition, "reason": "it has no leader"})
    return shares, failures


async def _ask(
    context: AdminContext,
    node_id: NodeId,
    request: SearchRequest,
    wanted: dict[str, list[int]],
    authorization: str | None,
    budget: AnswerBudget,
) -> Mapping[str, Any]:
    topics = context.state.topics
    ids = {name: str(topics[name].topic_id) for name in wanted if name in topics}
    share = NodeSearch(request=request, partitions=wanted, topic_ids=ids)
    try:
        if node_id == context.node_id:
            return await search_here(context, share)
        answer = await context.peers.ask(
            node_id,
            "POST",
            "/_node/search",
            share,
            timeout_s=SEARCH_SECONDS,
            authorization=authorization,
            budget=budget,
        )
        return believed(node_id, answer, request, wanted)
    except (HttpError, QueryError) as error:
        if 400 <= error.status < 500:
            raise
        reason = str(error)
    except Unavailable as error:
        reason = str(error)
    missing = [
        {"index": name, "shard": number, "reason": reason} for name, ns in wanted.items() for number in ns
    ]
    return {"total": 0, "searched": 0, "lag": 0, "hits": [], "failures": missing}


async def search_here(context: AdminContext, share: NodeSearch) -> dict[str, Any]:
    """This node's share: the hits of partitions that it leads."""
    led = {
        (name, number): here
        for name, numbers in share.partitions.items()
        for number in numbers
        if (here := context.services.replicas.get(TopicPartition(name, number))) is not None
    }
    ends: dict[str, dict[str, int]] = {name: {} for name, _ in led}
    for (name, number), here in led.items():
        ends[name][str(number)] = here.last_stable_offset
    body = {
        "request": msgspec.to_builtins(share.request),
        "partitions": share.partitions,
        "topic_ids": share.topic_ids,
        "ends": ends,
        "logs": msgspec.to_builtins(log_states(led.values())),
    }
    answer = await context.queries.ask("search", body, timeout_s=SEARCH_SECONDS)
    found = msgspec.convert(answer, SearchResult)
    lag = 0
    for (name, number), here in led.items():
        reached = max(here.log_start_offset, found.reached.get(name, {}).get(number, 0))
        lag += max(0, ends[name][str(number)] - reached)
    return {**msgspec.to_builtins(found), "lag": lag}
