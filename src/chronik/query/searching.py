"""One search on this node's indexes: which partitions, in what order, how hits look."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from chronik.query.history import History, PublishedIndex
from chronik.query.index import EVERYTHING, Found, Hit, IndexDamaged, Span, TopicIndex
from chronik.query.indexer import Indexer, Topic
from chronik.query.messages import QueryError
from chronik.query.request import NATIVE, SearchRequest, SearchResult, sort_key, sort_of

__all__ = ["Search"]

log = logging.getLogger(__name__)

SORTED_MAX: Final = 20_000
"""Hits that may be sorted by a field of the JSON value, which has no column of its own."""
FRAGMENT_CHARS: Final = 160


class Search:
    """One search of some partitions. Runs on a thread of its own."""

    def __init__(self, indexer: Indexer, history: History | None, request: SearchRequest) -> None:
        self._indexer = indexer
        self._history = history
        self._request = request
        self._order = sort_of(request)
        self.result = SearchResult(total=0, hits=[], searched=0, failures=[], reached={})

    def run(self, wanted: Mapping[str, list[int]], topic_ids: Mapping[str, str]) -> SearchResult:
        """The best from+size hits of these partitions."""
        for name, partitions in wanted.items():
            topic = self._indexer.topics.get(name)
            if topic is not None and topic.topic_id != topic_ids.get(name):
                topic = None
            self._search(name, topic_ids.get(name, ""), topic, partitions)
        hits = self.result.hits
        hits.sort(key=lambda hit: sort_key(hit, self._order))
        del hits[self._request.from_ + self._request.size :]
        return self.result

    def _search(self, name: str, topic_id: str, topic: Topic | None, partitions: list[int]) -> None:
        failed: dict[int, str] = {}
        published = None
        try:
            published = None if self._history is None else self._history.find(name, topic_id)
        except IndexDamaged as error:
            log.warning("the published index of %s is damaged: %s", name, error)
            failed = dict.fromkeys(partitions, f"its published index is damaged: {error}")
        if not self._indexer.is_on:
            if published is not None:
                self._take(name, published, {one: EVERYTHING for one in published.ends if one in partitions})
                self.result.reached[name] = {one: published.ends.get(one, 0) for one in partitions}
        else:
            ready = [one for one in partitions if topic is not None and topic.is_ready(one)]
            failed |= {one: "its index is being built" for one in partitions if one not in ready}
            if topic is not None and ready:
                failed |= self._search_both(topic, published, ready)
        self.result.searched += len(partitions) - len(failed)
        self.result.failures += [
            {"index": name, "shard": number, "reason": reason} for number, reason in failed.items()
        ]

    def _search_both(
        self, topic: Topic, published: PublishedIndex | None, ready: list[int]
    ) -> dict[int, str]:
        """The node's own index from where the log begins; what was published up to there."""
        own = dict.fromkeys(ready, EVERYTHING)
        old: dict[int, Span] = {}
        starts = {number: topic.starts.get(number, 0) for number in ready}
        if published is not None:
            old = {one: (0, starts[one]) for one in ready if starts[one] and published.ends.get(one)}
            own |= {one: (starts[one], None) for one in old}
        try:
            topic.index.check()
            self._take(topic.name, topic.index, own)
        except IndexDamaged as error:
            self._indexer.damaged_from_thread(topic, str(error))
            return dict.fromkeys(ready, "its index is damaged and is being built again")
        if published is None:
            return {}
        self._take(topic.name, published, old)
        # Where retention moved on meanwhile, hits between the two starts may be missing.
        moved = [one for one in ready if topic.starts.get(one, 0) != starts[one]]
        return dict.fromkeys(moved, "its oldest records are being deleted")

    def _take(self, name: str, index: TopicIndex | PublishedIndex, spans: Mapping[int, Span]) -> None:
        if not spans:
            return
        request, order = self._request, self._order
        native = None if order is None else NATIVE.get(order[0])
        by_value = order is not None and native is None
        found = index.search(
            request.query,
            spans,
            limit=SORTED_MAX if by_value else request.from_ + request.size,
            order=native,
            ascending=order is not None and order[1],
        )
        if by_value and found.total > SORTED_MAX:
            raise QueryError(
                400,
                "too_many_to_sort",
                f"{found.total} hits are too many to sort by {order[0] if order else ''}: "
                f"at most {SORTED_MAX}. Narrow the query, sort by @timestamp, or use SQL.",
            )
        self.result.total += found.total
        self.result.hits += [shown(name, hit, request, found, order) for hit in found.hits]


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
