"""The archived part of a topic: which files hold it, up to which offsets, and how they look as a table.

An archive is what `chronik pipeline archive` writes. Its last step says by partition where it ends; that
offset is the seam: records before it come from the archive, the others from the log, none from both. Files
may be moved or replaced by a job at any time, so readers must be ready to look again.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from chronik.published.steps import DEAD_LETTERS, META, PublishedStep
from chronik.query.messages import QueryError
from chronik.query.pushdown import RowBounds
from chronik.query.tables import HEADERS_TYPE, TEXT, TIMESTAMP, column_names, literal, quoted

__all__ = ["Archive", "ArchivedFile", "ArchivedTopic"]

log = logging.getLogger(__name__)

_DAY: Final = "/date="


class Footer(NamedTuple):
    """What a Parquet file says of itself; it never changes."""

    schema: pa.Schema
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedFile:
    staged: Path
    """Staging path. The file is moved from here to `place` when its step is published."""
    place: Path
    ranges: Mapping[int, tuple[int, int]]
    """For each partition the first offset of its records and the offset after the last."""
    topic_ids: frozenset[str]
    """More than one if the compact job merged files of a topic and of its successor of the same name."""

    @property
    def is_dead(self) -> bool:
        """Whether it holds dead letters: raw records that could not be decoded."""
        return f"/{DEAD_LETTERS}/" in str(self.place)

    def may_hold(self, bounds: RowBounds) -> bool:
        """Whether a query with these bounds can see one of its records."""
        if not any(
            bounds.partition in (None, number) and low < bounds.end_offset and bounds.first_offset < high
            for number, (low, high) in self.ranges.items()
        ):
            return False
        day = str(self.place).rpartition(_DAY)[2][:10]
        if bounds.first_timestamp_ms is None or not day:
            return True
        first = datetime.datetime.fromtimestamp(bounds.first_timestamp_ms / 1000, datetime.UTC)
        return day >= first.date().isoformat()

    def find(self) -> Path:
        return self.place if self.place.exists() else self.staged


@dataclass(frozen=True, slots=True)
class ArchivedTopic:
    """The archive of one topic at one moment."""

    ends: Mapping[int, int]
    """For each partition the first offset that it does not hold."""
    files: tuple[tuple[Path, Footer, bool], ...]
    """Files that the query may need; the flag says whether they hold dead letters."""

    @property
    def rows(self) -> int:
        return sum(footer.rows for _, footer, _ in self.files)


@dataclass(slots=True)
class _Topic:
    versions: int = -1
    """The last step that was read."""
    ends: dict[str, dict[int, int]] = field(default_factory=dict)
    """Ends by topic id and partition. Not by name: a topic may be deleted and created again under the same
    name."""
    files: dict[str, ArchivedFile] = field(default_factory=dict)
    is_table: bool = False
    """A Delta or Iceberg table, which keeps its own list of files."""


class Archive:
    """All archived topics under one folder. Blocking; used from one thread at a time for each topic."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._topics: dict[str, _Topic] = {}
        self._footers: dict[Path, Footer] = {}

    def look(self, name: str, topic_id: str, bounds: RowBounds) -> ArchivedTopic | None:
        """The archive that this topic has now, or None. FileNotFoundError if it is changing, QueryError if a
        file of it cannot be read."""
        try:
            return self._look(name, topic_id, bounds)
        except FileNotFoundError:
            raise
        except (msgspec.MsgspecError, pa.ArrowException, OSError, ValueError, RecursionError) as error:
            log.warning("the archive of %s cannot be read: %s", name, error)
            raise QueryError(
                503, "archive_damaged", f"The archive of {name} cannot be read; the node's log says why."
            ) from None

    def _look(self, name: str, topic_id: str, bounds: RowBounds) -> ArchivedTopic | None:
        topic = self._topics.setdefault(name, _Topic())
        self._read_steps(name, topic)
        ends = topic.ends.get(topic_id)
        if ends is None or topic.is_table:
            return None
        files = []
        for file in topic.files.values():
            if topic_id not in file.topic_ids or not file.may_hold(bounds):
                continue
            if len(file.topic_ids) > 1:
                log.warning("%s holds records of a deleted topic, too: the archive is not used", file.place)
                return None
            files.append((file.find(), self._footer(file), file.is_dead))
        return ArchivedTopic(ends, tuple(files))

    def _read_steps(self, name: str, topic: _Topic) -> None:
        folder = self.root / META / name
        names = sorted(path.name for path in folder.glob("*.json")) if folder.is_dir() else []
        for each in names:
            if each.partition(".")[0].isdecimal() and int(each.partition(".")[0]) > topic.versions:
                step = msgspec.json.decode((folder / each).read_bytes(), type=PublishedStep)
                self._take_step(topic, step)
                topic.versions = step.version

    def _take_step(self, topic: _Topic, step: PublishedStep) -> None:
        if step.rows and not step.moves and not topic.is_table:
            topic.is_table = True
            log.warning("the archive of %s is no plain Parquet: SQL reads its log only", step.topic)
        replaced = [topic.files.pop(path) for path in step.removes if path in topic.files]
        ranges = {int(number): span for number, span in step.ranges.items() if number.isdecimal()}
        for each in replaced:
            for number, (low, high) in each.ranges.items():
                known = ranges.get(number, (low, high))
                ranges[number] = (min(low, known[0]), max(high, known[1]))
        ids = frozenset(
            {step.topic_id} if not replaced else set().union(*(one.topic_ids for one in replaced))
        )
        for source, target in step.moves.items():
            topic.files[target] = ArchivedFile(
                staged=self.root / source, place=self.root / target, ranges=ranges, topic_ids=ids
            )
        ends = topic.ends.setdefault(step.topic_id, {})
        ends.update({int(number): end for number, end in step.offsets.items() if number.isdecimal()})

    def _footer(self, file: ArchivedFile) -> Footer:
        found = self._footers.get(file.place)
        if found is None:
            with pq.ParquetFile(file.find()) as opened:
                found = Footer(opened.schema_arrow, opened.metadata.num_rows)
            self._footers[file.place] = found
        return found


def relations(archived: ArchivedTopic) -> Iterator[tuple[str, bool]]:
    """SELECTs over the files, each with whether its `value` is undecoded bytes.

    Files of one schema are one SELECT: their schemas grow from step to step.
    """
    groups: dict[tuple[str, bool], list[tuple[Path, pa.Schema]]] = {}
    for path, footer, is_dead in archived.files:
        groups.setdefault((footer.schema.to_string(), is_dead), []).append((path, footer.schema))
    for (_, _), found in groups.items():
        schema = found[0][1]
        listed = ", ".join(literal(str(path)) for path, _ in found)
        files = f"read_parquet([{listed}], hive_partitioning = false)"
        kind = schema.field("value").type
        headers = "headers" if "headers" in schema.names else f"NULL::{HEADERS_TYPE} AS headers"
        if pa.types.is_struct(kind):
            yield f"SELECT {_decoded(kind)}, {headers}{_fields(kind)} FROM {files}", False
        else:
            wanted = f'partition, "offset", timestamp, key, value::BLOB AS value, {headers}'
            yield f"SELECT {wanted} FROM {files}", True


def _decoded(kind: pa.StructType) -> str:
    # A field that a record did not have is null in its struct; merging leaves such fields out.
    value = "CASE WHEN value IS NOT NULL THEN json_merge_patch('{}', to_json(value))::VARCHAR END AS value"
    return f'partition, "offset", {TIMESTAMP}, {TEXT.format("key")} AS key, {value}'


def _fields(kind: pa.StructType) -> str:
    names = [kind.field(number).name for number in range(kind.num_fields)]
    out = []
    for name, column in column_names(names):
        taken = f"value.{quoted(name)}"
        if pa.types.is_nested(kind.field(name).type):
            taken = f"to_json({taken})::VARCHAR"
        out.append(f", {taken} AS {quoted(column)}")
    return "".join(out)
