"""One search on this node: which partitions, in what order, how hits look.

A topic is searched in up to three places, each with the same query: its index, a small index made for this
search of records that are not in it yet, and what the pipeline published of records that the log has lost.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from chronik.client import Fetched
from chronik.query.dsl import Translator
from chronik.query.history import History, PublishedIndex
from chronik.query.index import EVERYTHING, Found, Hit, IndexDamaged, IndexSnapshot, Span, find, snapshot_of
from chronik.query.indexed_topic import IndexedTopic
from chronik.query.indexer import Indexer
from chronik.query.messages import QueryError
from chronik.query.request import NATIVE, SearchRequest, SearchResult, sort_key, sort_of
from chronik.query.tail import Chosen, FetchedBatch, choose, fresh

__all__ = ["Search"]

log = logging.getLogger(__name__)

SORTED_MAX: Final = 20_000
"""Most hits that are sorted by a field of the JSON value. The index cannot sort by those itself."""
HITS_BYTES_MAX: Final = 8 * 1024 * 1024
"""Most bytes of values in the hits of one search. As objects in the node they take several times that."""
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
"""The same while hits are sorted by a field, before those that are not sent are dropped."""
FRAGMENT_CHARS: Final = 160
LOOKS_MAX: Final = 10
"""How often a search is repeated because records were deleted meanwhile."""
BEING_BUILT: Final = "its index is being built"


class Search:
    """One search of some partitions. Runs on a thread of its own."""

    def __init__(self, indexer: Indexer, history: History | None, request: SearchRequest) -> None:
        self._indexer = indexer
        self._history = history
        self._request = request
        self._order = order = sort_of(request)
        self._native = None if order is None else NATIVE.get(order[0])
        self._ascending = order is not None and order[1]
        self._by_value = order is not None and self._native is None
        self._limit = SORTED_MAX if self._by_value else request.from_ + request.size
        self._bytes = 0
        self.result = SearchResult(total=0, hits=[], searched=0, failures=[], reached={})

    def run(self, wanted: Mapping[str, list[int]], topic_ids: Mapping[str, str]) -> SearchResult:
        """The best from+size hits of these partitions."""
        for name, partitions in wanted.items():
            topic = self._indexer.topic(name, topic_ids)
            self._search(name, topic_ids.get(name, ""), topic, partitions)
        hits = self.result.hits
        hits.sort(key=lambda hit: sort_key(hit, self._order))
        del hits[self._request.from_ + self._request.size :]
        if self._by_value and len(msgspec.msgpack.encode(hits)) > HITS_BYTES_MAX:
            raise _too_large()
        return self.result

    def _search(self, name: str, topic_id: str, topic: IndexedTopic | None, partitions: list[int]) -> None:
        failed: dict[int, str] = {}
        published = None
        try:
            published = None if self._history is None else self._history.find(name, topic_id)
        except IndexDamaged as error:
            log.warning("the published index of %s is damaged: %s", name, error)
            failed = dict.fromkeys(partitions, f"its published index is damaged: {error}")
        reached = self.result.reached.setdefault(name, {})
        if not self._indexer.is_on:
            if published is not None:
                if spans := {one: EVERYTHING for one in published.ends if one in partitions}:
                    self._take(name, published.snapshot, spans)
                reached |= {one: published.ends.get(one, 0) for one in partitions}
        elif topic is None:
            failed |= dict.fromkeys(partitions, BEING_BUILT)
        else:
            failed |= self._search_topic(topic, published, partitions, reached)
        self.result.searched += len(partitions) - len(failed)
        self.result.failures += [
            {"index": name, "shard": number, "reason": reason} for number, reason in failed.items()
        ]

    def _search_topic(
        self,
        topic: IndexedTopic,
        published: PublishedIndex | None,
        partitions: list[int],
        reached: dict[int, int],
    ) -> dict[int, str]:
        result = self.result
        for _ in range(LOOKS_MAX):
            total, hit_count = result.total, len(result.hits)
            view = _View.take(topic, partitions)
            failed = self._search_view(topic, view, published, partitions, reached)
            if published is None or all(topic.starts.get(one, 0) == view.starts[one] for one in partitions):
                return failed
            # Retention moved on meanwhile: records between the two starts may be missing. Look again.
            result.total = total
            del result.hits[hit_count:]
        return dict.fromkeys(partitions, "its oldest records are being deleted")

    def _search_view(
        self,
        topic: IndexedTopic,
        view: _View,
        published: PublishedIndex | None,
        partitions: list[int],
        reached: dict[int, int],
    ) -> dict[int, str]:
        """Search the index, the records that are not indexed yet, and the published index of older ones."""
        try:
            topic.index.check()
        except IndexDamaged as error:
            self._indexer.damaged_from_thread(topic, str(error))
            return dict.fromkeys(partitions, "its index is damaged and is being built again")
        chosen = self._choose(view)
        ready = view.ready(view.indexed if chosen is None else view.read)
        if chosen is None:
            self._indexer.hurry()
        reached |= {one: (view.indexed if chosen is None else view.read)[one] for one in ready}
        failed = {one: BEING_BUILT for one in partitions if one not in ready}
        own: dict[int, Span] = dict.fromkeys(ready, EVERYTHING)
        # Documents of records that the log has deleted must not be found.
        own |= {one: (view.starts[one], None) for one in ready if view.starts[one] > view.held_from(one)}
        old: dict[int, Span] = {}
        if published is not None:
            old = {
                one: (0, view.starts[one]) for one in ready if view.starts[one] and published.ends.get(one)
            }
        if ready:
            self._take(topic.name, view.snapshot, topic.index.narrowed(own))
        if chosen is not None and chosen.rows:
            self._take(topic.name, snapshot_of(chosen.rows), {}, chosen.total)
        if published is not None and old:
            self._take(topic.name, published.snapshot, old)
        return failed

    def _choose(self, view: _View) -> Chosen | None:
        """Records that are not indexed yet and may match the query, or None if there are too many."""
        batches = {one: found for one in view.ready(view.read) if (found := view.fresh(one))}
        if not batches:
            return Chosen({}, None)
        query = self._request.query
        Translator(view.snapshot.index, view.snapshot.paths).translate(query)  # says what is wrong with it
        return choose(
            batches,
            query,
            self._limit,
            order=self._native,
            ascending=self._ascending,
            by_value=self._by_value,
        )

    def _take(
        self, name: str, snapshot: IndexSnapshot, spans: Mapping[int, Span], total: int | None = None
    ) -> None:
        """Add hits from this snapshot to the result. `total` is given if the snapshot has not all of them."""
        request, order = self._request, self._order
        found = find(
            snapshot, request.query, spans, limit=self._limit, order=self._native, ascending=self._ascending
        )
        if self._by_value and found.total > SORTED_MAX:
            raise QueryError(
                400,
                "too_many_to_sort",
                f"{found.total} hits are too many to sort by {order[0] if order else ''}: "
                f"at most {SORTED_MAX}. Narrow the query, sort by @timestamp, or use SQL.",
            )
        self.result.total += found.total if total is None else total
        self._bytes += sum(len(hit.text or "") for hit in found.hits)
        if self._bytes > (HELD_BYTES_MAX if self._by_value else HITS_BYTES_MAX):
            raise _too_large()
        self.result.hits += [shown(name, hit, request, found, order) for hit in found.hits]


def _too_large() -> QueryError:
    why = "The hits are too large to be sent together: ask for fewer of them with size."
    return QueryError(413, "result_too_large", why)


class _View(NamedTuple):
    """Some partitions of a topic at one moment: the index, and what is not indexed yet."""

    snapshot: IndexSnapshot
    parts: Mapping[int, Sequence[Fetched]]
    indexed: Mapping[int, int]
    """For each partition the offset up to which everything is indexed."""
    read: Mapping[int, int]
    """For each partition the offset up to which everything is indexed or in `parts`."""
    starts: Mapping[int, int]
    targets: Mapping[int, int]

    @classmethod
    def take(cls, topic: IndexedTopic, partitions: list[int]) -> _View:
        # Tails first: what moves from a tail to the index meanwhile is then seen in the index.
        tails = {one: (tail.parts, tail.position) for one in partitions if (tail := topic.tails.get(one))}
        snapshot = topic.index.snapshot
        indexed = {one: snapshot.reached[one] for one in tails if one in snapshot.reached}
        return cls(
            snapshot=snapshot,
            parts={one: parts for one, (parts, _) in tails.items()},
            indexed=indexed,
            read={one: max(end, tails[one][1]) for one, end in indexed.items()},
            starts={one: topic.starts.get(one, 0) for one in partitions},
            targets={one: topic.targets.get(one, 0) for one in partitions},
        )

    def ready(self, ends: Mapping[int, int]) -> list[int]:
        """Partitions that have reached the end that the log had when indexing began."""
        return [one for one, end in ends.items() if end >= self.targets[one]]

    def held_from(self, partition: int) -> int:
        return self.snapshot.starts.get(partition, 0)

    def fresh(self, partition: int) -> list[FetchedBatch]:
        first = max(self.indexed[partition], self.starts[partition])
        return fresh(self.parts[partition], first)


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
            found = msgspec.json.decode(text)
            msgspec.msgpack.encode(found)  # what cannot be sent to the node is shown as it came
            return found
        except (ValueError, OverflowError, RecursionError):
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
