"""The search index of one topic: documents in, hits out, and proof that its files are what was written.

tantivy's segment files are written once and end in a checksum of themselves. They are checked when an index
is opened, and again whenever a file's size or time is not what it was: a damaged index must not answer.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import tantivy

from chronik.published.documents import FORMAT, FORMAT_FILE, Documents, index_schema
from chronik.published.paths import Paths
from chronik.query.dsl import Translator
from chronik.query.messages import QueryError
from chronik.records.reader import Row

__all__ = [
    "EVERYTHING",
    "IndexDamaged",
    "IndexSnapshot",
    "Span",
    "TopicIndex",
    "find",
    "open_index",
    "snapshot_of",
    "verify",
]

WRITER_BYTES: Final = 96 * 1024 * 1024
"""Most memory that a writer takes, as records come. With less it would write and merge more segments."""
SMALL_WRITER_BYTES: Final = 15_000_000
"""The least that tantivy takes."""
WRITER_THREADS: Final = 2
"""Writer threads: one takes documents while the other writes its segment."""
_PARTITIONS_MAX: Final = 65_000
_FOOTER_MAGIC: Final = 1337
_FOOTER_TAIL: Final = struct.Struct("<II")


Span: TypeAlias = tuple[int, int | None]
"""First offset, and the offset behind the last; None for no end."""
EVERYTHING: Final[Span] = (0, None)


class IndexDamaged(Exception):
    """The files are not what was written; the index is to be built again."""


@contextlib.contextmanager
def panics_as(error: Callable[[], Exception]) -> Iterator[None]:
    """A panic of tantivy is no Exception, and would end the thread or the process that meets it."""
    try:
        yield
    except BaseException as found:
        if type(found).__name__ != "PanicException":
            raise
        raise error() from found


def open_index(path: Path) -> tantivy.Index:
    """IndexDamaged if its fields, a list without a checksum, are not ours: reading a document would panic."""
    index = tantivy.Index.open(str(path))
    if index.schema != index_schema():
        raise IndexDamaged("its list of fields is not what was written")
    return index


class Hit(NamedTuple):
    partition: int
    offset: int
    timestamp_ms: int
    key: str | None
    text: str | None
    score: float | None


class Found(NamedTuple):
    total: int
    hits: list[Hit]
    words: set[str]


@dataclass(frozen=True, slots=True)
class IndexSnapshot:
    """The state of the index at a commit. All searches until the next commit see this state."""

    index: tantivy.Index
    searcher: tantivy.Searcher
    paths: Sequence[str]
    reached: Mapping[int, int]
    """For each partition the offset up to which the index holds everything."""
    starts: Mapping[int, int] = field(default_factory=dict)
    """For each partition the offset before which the index holds nothing."""


class TopicIndex:
    """Not safe for use from two threads at once, except that `search` may run beside the writing methods."""

    def __init__(self, path: Path) -> None:
        """Open the index that is there, or create an empty one. IndexDamaged if files cannot be trusted."""
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        mark = path / FORMAT_FILE
        try:
            if (path / "meta.json").exists():
                if not mark.exists() or mark.read_text() != FORMAT:
                    raise IndexDamaged("it has another format")
                verify(path)
                self._paths = Paths.load(path)
                self._index = open_index(path)
            else:
                self._paths = Paths()
                self._paths.save(path)
                self._index = tantivy.Index(index_schema(), path=str(path))
                mark.write_text(FORMAT)
        except (ValueError, FileNotFoundError) as error:
            raise IndexDamaged(str(error)) from error
        self._index.config_reader("manual")
        self._schema = self._index.schema
        self._writer: tantivy.IndexWriter | None = None
        self._documents: Documents | None = None
        self._starts: dict[int, int] = {}
        with panics_as(lambda: IndexDamaged("its files contradict each other")):
            self._index.reload()
            self.snapshot = self._look({})
            self._held = self._partitions()
        self._seen: dict[str, tuple[int, int]] = {}
        self.pending = 0
        self.check()

    def close(self) -> None:
        self._writer = self._documents = None

    @staticmethod
    def remove(path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)

    # --- writing -----------------------------------------------------------------------------------

    def add(self, partition: int, rows: Sequence[Row]) -> int:
        """Take these records in; they can be found after `commit`. Returns how many were left out."""
        if self._documents is None:
            self._documents = Documents(self._open_writer(), self._paths)
        self._held |= {partition}
        left_out = self._documents.add_rows(partition, rows)
        self.pending += len(rows)
        return left_out

    def _open_writer(self) -> tantivy.IndexWriter:
        if self._writer is None:
            # A crash of the process can leave the lock file behind, but not the lock.
            self._writer = self._index.writer(WRITER_BYTES, WRITER_THREADS)
        return self._writer

    def commit(self, reached: Mapping[int, int]) -> None:
        """Let everything that was added be found; that is all before these offsets."""
        if self._writer is not None and self.pending:
            if not self._paths.is_saved:
                self._paths.save(self.path)
            self._writer.commit()
            self.pending = 0
            self._index.reload()
            self._seen = self._committed()
        self.snapshot = self._look(reached)

    def reach(self, reached: Mapping[int, int]) -> None:
        """Say how far it is where there was nothing to add."""
        self.snapshot = replace(self.snapshot, reached=dict(reached))

    def _look(self, reached: Mapping[int, int]) -> IndexSnapshot:
        searcher, paths = self._index.searcher(), tuple(self._paths)
        return IndexSnapshot(self._index, searcher, paths, dict(reached), dict(self._starts))

    def purge(self, partition: int, before_offset: int) -> None:
        """Forget documents of records before the start of the log."""
        self._starts[partition] = before_offset
        if before_offset and (self.pending or self.count(partition, 0, before_offset)):
            self._delete(partition, 0, before_offset)
        else:
            self.snapshot = replace(self.snapshot, starts=dict(self._starts))

    def clear(self, partition: int, first_offset: int, end_offset: int) -> None:
        """Forget everything between these offsets, before it is added again. Searches see the change after
        the next commit."""
        self._delete(partition, first_offset, end_offset)

    def _delete(self, partition: int, first_offset: int, end_offset: int) -> None:
        between = _within(self._schema, {partition: (first_offset, end_offset)})
        self._open_writer().delete_documents_by_query(between)
        self.pending += 1

    def rest(self) -> None:
        """Nothing came for a while: give the writer's memory back."""
        if not self.pending:
            self.close()

    # --- reading -----------------------------------------------------------------------------------

    def _of(self, partition: int) -> tantivy.Query:
        return tantivy.Query.term_query(self._schema, "_partition", partition)

    def count(self, partition: int, first_offset: int, end_offset: int | None) -> int:
        """Documents between these offsets, as of the last commit."""
        between = _within(self._schema, {partition: (first_offset, end_offset)})
        return _count(self._index.searcher().search(between, 1))

    def purged_below(self, partition: int) -> int:
        return self._starts.get(partition, 0)

    def span(self, partition: int) -> tuple[int, int, int]:
        """First offset, offset behind the last, and number of documents of a partition."""
        searcher, mine = self._index.searcher(), self._of(partition)
        ends: list[int] = []
        count = 0
        for order in (tantivy.Order.Asc, tantivy.Order.Desc):
            found = searcher.search(mine, 1, order_by_field="_offset", order=order)
            count = _count(found)
            ends += [int(value) for value, _ in found.hits]
        return (ends[0], ends[1] + 1, count) if len(ends) == 2 else (0, 0, 0)

    def _partitions(self) -> frozenset[int]:
        """All that there are documents of."""
        searcher = self._index.searcher()
        numbers = {"terms": {"field": "_partition", "size": _PARTITIONS_MAX}}
        found = searcher.aggregate(tantivy.Query.all_query(), {"numbers": numbers})
        return frozenset(int(bucket["key"]) for bucket in found["numbers"]["buckets"])

    @property
    def documents(self) -> int:
        return self._index.searcher().num_docs

    @property
    def size_bytes(self) -> int:
        return sum(size for size, _ in self._seen.values())

    def narrowed(self, spans: Mapping[int, Span]) -> Mapping[int, Span]:
        """Filter by partition only if the index has others than those wanted."""
        is_all = self._held <= spans.keys() and set(spans.values()) == {EVERYTHING}
        return {} if is_all else spans

    # --- trust -------------------------------------------------------------------------------------

    def check(self) -> None:
        """IndexDamaged if a file that never changes has changed."""
        current = self._committed()
        try:
            for name, seen in self._seen.items():
                if name in current and current[name] != seen:
                    verify_file(self.path / name)
        except FileNotFoundError:
            pass  # merged away between two looks
        self._seen = current

    def _committed(self) -> dict[str, tuple[int, int]]:
        """Size and time of each file that the index lists. Others are still being written."""
        segments = _segments(self.path)
        return {name: seen for name, seen in _files(self.path).items() if name.partition(".")[0] in segments}


def snapshot_of(rows: Mapping[int, Sequence[Row]]) -> IndexSnapshot:
    """An index of these records alone, in memory."""
    index, paths = tantivy.Index(index_schema()), Paths()
    writer = index.writer(SMALL_WRITER_BYTES, 1)
    documents = Documents(writer, paths)
    for number, own in rows.items():
        documents.add_rows(number, own)
    writer.commit()
    index.reload()
    return IndexSnapshot(index, index.searcher(), tuple(paths), {})


def find(
    snapshot: IndexSnapshot,
    body: Any,
    spans: Mapping[int, Span],
    *,
    limit: int,
    order: str | None,
    ascending: bool,
) -> Found:
    """The first `limit` hits in these spans of partitions, by score or by `order`, and how many there are.

    No spans mean all of the index.
    """
    index, searcher = snapshot.index, snapshot.searcher
    translator = Translator(index, snapshot.paths)
    try:
        query = translator.translate(body)
        if spans:
            mine = tantivy.Query.const_score_query(_within(index.schema, spans), 0.0)
            query = tantivy.Query.boolean_query([(tantivy.Occur.Must, query), (tantivy.Occur.Must, mine)])
        with panics_as(lambda: QueryError(400, "invalid_query", "The search engine cannot run this query.")):
            found = searcher.search(
                query,
                max(1, limit),
                order_by_field=order,
                order=tantivy.Order.Asc if ascending else tantivy.Order.Desc,
            )
            hits = [
                _hit(searcher.doc(address), float(value) if order is None else None)
                for value, address in found.hits[:limit]
            ]
    except ValueError as error:
        raise QueryError(400, "invalid_query", f"{error}.") from None
    return Found(_count(found), hits, translator.words)


def _within(schema: tantivy.Schema, spans: Mapping[int, Span]) -> tantivy.Query:
    whole = [number for number, span in spans.items() if span == EVERYTHING]
    parts = [tantivy.Query.term_set_query(schema, "_partition", whole)] if whole else []
    for number, (first, end) in spans.items():
        if number not in whole:
            own = tantivy.Query.term_query(schema, "_partition", number)
            kind = tantivy.FieldType.Unsigned
            between = tantivy.Query.range_query(schema, "_offset", kind, first, end, True, end is None)
            both = [(tantivy.Occur.Must, own), (tantivy.Occur.Must, between)]
            parts.append(tantivy.Query.boolean_query(both))
    return tantivy.Query.boolean_query([(tantivy.Occur.Should, part) for part in parts])


def _count(found: tantivy.SearchResult) -> int:
    return int(getattr(found, "count", None) or 0)


def _hit(document: tantivy.Document, score: float | None) -> Hit:
    value = document.get_first("_value")
    return Hit(
        partition=document.get_first("_partition") or 0,
        offset=document.get_first("_offset") or 0,
        timestamp_ms=document.get_first("_timestamp") or 0,
        key=document.get_first("_key"),
        text=None if value is None else bytes(value).decode("utf-8", "ignore"),
        score=score,
    )


def _files(path: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for entry in path.iterdir():
        with contextlib.suppress(FileNotFoundError):
            stat = entry.stat()
            found[entry.name] = (stat.st_size, stat.st_mtime_ns)
    return found


def _segments(path: Path) -> set[str]:
    """The segments that are committed."""
    try:
        meta = json.loads((path / "meta.json").read_bytes())
        return {str(one["segment_id"]).replace("-", "") for one in meta["segments"]}
    except FileNotFoundError as error:
        raise IndexDamaged("meta.json is gone") from error
    except (ValueError, KeyError, TypeError) as error:
        raise IndexDamaged(f"meta.json cannot be read: {error}") from error


def verify(path: Path, checked: Set[tuple[str, int, int]] = frozenset()) -> set[tuple[str, int, int]]:
    """Every file that the index's own list names is there and is what was written.

    Files are known by name, size and time; those in `checked` are not read again. Returns all of them.
    """
    segments = _segments(path)
    there: set[str] = set()
    seen = set()
    for name, (size, modified) in _files(path).items():
        segment = name.partition(".")[0]
        if segment in segments:
            there.add(segment)
            if (name, size, modified) not in checked:
                verify_file(path / name)
            seen.add((name, size, modified))
    if missing := segments - there:
        raise IndexDamaged(f"{len(missing)} segments are gone")
    return seen


def verify_file(path: Path) -> None:
    """A segment's file ends in JSON with its checksum, that JSON's length, and a magic number."""
    data = path.read_bytes()
    try:
        length, magic = _FOOTER_TAIL.unpack(data[-8:])
        if magic != _FOOTER_MAGIC or length > len(data) - 8:
            raise IndexDamaged(f"{path.name} has no end")
        footer = json.loads(data[-8 - length : -8])
        wanted = footer["crc"]
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise IndexDamaged(f"{path.name} has no readable end") from error
    if zlib.crc32(memoryview(data)[: -8 - length]) != wanted:
        raise IndexDamaged(f"{path.name} is not what was written")
