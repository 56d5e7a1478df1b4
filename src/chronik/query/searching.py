"""One search on this node's indexes: which partitions, in what order, how hits look."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from chronik.query.index import Found, Hit, IndexDamaged
from chronik.query.indexer import Indexer, Topic
from chronik.query.messages import QueryError
from chronik.query.request import NATIVE, SearchRequest, SearchResult, sort_key, sort_of

__all__ = ["search_local"]

SORTED_MAX: Final = 20_000
"""Hits that may be sorted by a field of the JSON value, which has no column of its own."""
FRAGMENT_CHARS: Final = 160


def search_local(
    indexer: Indexer,
    request: SearchRequest,
    wanted: Mapping[str, list[int]],
    topic_ids: Mapping[str, str],
) -> SearchResult:
    """The best from+size hits of these partitions. Runs on a thread of its own."""
    result = SearchResult(total=0, hits=[], searched=0, failures=[])
    for name, partitions in wanted.items():
        topic = indexer.topics.get(name)
        if topic is not None and topic.topic_id != topic_ids.get(name):
            topic = None
        ready = [number for number in partitions if topic is not None and topic.is_ready(number)]
        for number in partitions:
            if number not in ready:
                reason = "its index is being built"
                result.failures.append({"index": name, "shard": number, "reason": reason})
        if topic is not None and ready:
            try:
                topic.index.check()
                _search_topic(topic, ready, request, result)
            except IndexDamaged as error:
                indexer.damaged_from_thread(topic, str(error))
                reason = "its index is damaged and is being built again"
                result.failures += [{"index": name, "shard": one, "reason": reason} for one in ready]
    order = sort_of(request)
    result.hits.sort(key=lambda hit: sort_key(hit, order))
    del result.hits[request.from_ + request.size :]
    return result


def _search_topic(topic: Topic, partitions: list[int], request: SearchRequest, result: SearchResult) -> None:
    order = sort_of(request)
    window = request.from_ + request.size
    native = None if order is None else NATIVE.get(order[0])
    by_value = order is not None and native is None
    found = topic.index.search(
        request.query,
        partitions,
        limit=SORTED_MAX if by_value else window,
        order=native,
        ascending=order is not None and order[1],
    )
    if by_value and found.total > SORTED_MAX:
        raise QueryError(
            400,
            "too_many_to_sort",
            f"{found.total} hits are too many to sort by {order[0] if order else ''}: at most {SORTED_MAX}. "
            "Narrow the query, sort by @timestamp, or use SQL.",
        )
    result.total += found.total
    result.searched += len(partitions)
    result.hits += [shown(topic.name, hit, request, found, order) for hit in found.hits]


def shown(
    topic: str, hit: Hit, request: SearchRequest, found: Found, order: tuple[str, bool] | None
) -> dict[str, Any]:
    source = _source(hit.text)
    out: dict[str, Any] = {
        "_index": topic,
        "_id": f"{hit.partition}-{hit.offset}",
        "_score": hit.score,
        "partition": hit.partition,
        "offset": hit.offset,
        "timestamp_ms": hit.timestamp_ms,
        "key": hit.key,
    }
    if request.source is not False:
        out["_source"] = source
    if order is not None:
        own = {"_timestamp": hit.timestamp_ms, "_offset": hit.offset, "_partition": hit.partition}
        native = NATIVE.get(order[0])
        out["sort"] = [own[native] if native else _at(source, order[0])]
    if request.highlight is not None:
        fields = request.highlight.get("fields", {"*": {}})
        if marks := highlight(source, found.words, fields if isinstance(fields, Mapping) else {"*": {}}):
            out["highlight"] = marks
    return out


def _source(text: str | None) -> Any:
    if text and text.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _at(source: Any, path: str) -> Any:
    for name in path.split("."):
        if not isinstance(source, Mapping):
            return None
        source = source.get(name)
    return source


def highlight(source: Any, words: set[str], fields: Mapping[str, Any]) -> dict[str, list[str]]:
    """The pieces of the wanted fields in which a searched word stands, with `<em>` around it."""
    if not words:
        return {}
    pattern = re.compile(
        r"(?<!\w)(" + "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True)[:50]) + ")",
        re.IGNORECASE,
    )
    marks: dict[str, list[str]] = {}
    for path, text in _texts(source, ""):
        if ("*" in fields or path in fields) and (match := pattern.search(text)):
            start = max(0, match.start() - FRAGMENT_CHARS // 3)
            piece = text[start : start + FRAGMENT_CHARS]
            marks.setdefault(path, []).append(pattern.sub(r"<em>\1</em>", piece))
    return marks


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list):
        for inner in value[:100]:
            yield from _texts(inner, path)
    elif isinstance(value, str):
        yield path or "value", value
