"""Whether both sides of a migration agree: topics, configs, every record, and where groups go on.

Each partition is read on both sides at once, committed records only, as far as the old side went at the
beginning. What retention removed on one side alone is skipped: the first record that both have is looked for
by time. Of compacted topics the last value of each key is compared, since each side compacts at its own time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from chronik.cli.migrate_compare import Comparison, Mark
from chronik.cli.migrate_config import Choice
from chronik.cli.migrate_topics import AFTERWARDS, OldTopic, config_differences
from chronik.model import TopicPartition
from chronik.records.reader import Row
from chronik.words import counted

if TYPE_CHECKING:
    from chronik.client import Cluster
    from chronik.client.group_types import CommittedOffset

KEYS_MAX: Final = 2_000_000
"""Keys of one compacted partition whose last values are compared."""
_ROWS_AT_ONCE: Final = 2_000
_TYPES: Final = frozenset({"", "classic", "consumer"})

Committed = Mapping[str, Mapping[TopicPartition, "CommittedOffset"]]


@dataclass(slots=True)
class TopicReport:
    name: str
    compared: int = 0
    older: int = 0
    """Records that one side alone still has at its beginning: retention comes at different times."""
    newer: int = 0
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class GroupReport:
    name: str
    read_again: int = 0
    findings: list[str] = field(default_factory=list)
    """Each is put right by setting the offset."""
    unknown: list[str] = field(default_factory=list)
    corrected: dict[TopicPartition, int] = field(default_factory=dict)
    """The offsets on the new side that agree exactly, where the present ones do not."""


@dataclass(slots=True)
class Report:
    topics: list[TopicReport] = field(default_factory=list)
    groups: dict[str, GroupReport] = field(default_factory=dict)

    @property
    def findings(self) -> list[str]:
        found = [said for topic in self.topics for said in topic.findings]
        return found + [said for group in self.groups.values() for said in (*group.findings, *group.unknown)]


async def committed_offsets(cluster: Cluster, groups: Choice) -> dict[str, dict[TopicPartition, Any]]:
    """What the groups that are to be moved committed."""
    from chronik.client.groups import Groups

    asked = Groups(cluster)
    found = {}
    for group in await asked.list():
        is_reader = group.protocol_type in ("", "consumer") and group.group_type.lower() in _TYPES
        if is_reader and groups.takes(group.group_id):
            offsets = await asked.offsets(group.group_id)
            found[group.group_id] = {tp: one for tp, one in offsets.items() if one.offset >= 0}
    return found


async def check(
    old: Cluster,
    new: Cluster,
    topics: list[OldTopic],
    old_groups: Committed,
    new_groups: Committed,
    last: int | None,
    tell: Callable[[int], None],
) -> Report:
    """`tell` hears how many of the old side's offsets are done; `last`: only the newest of a partition."""
    report = Report(groups={name: GroupReport(name) for name in sorted(old_groups)})
    known = await new.topics()
    done = 0
    for topic in topics:
        found = TopicReport(topic.name)
        report.topics.append(found)
        info = known.get(topic.name)
        if info is None:
            found.findings.append(f"{topic.name} is not on the new side")
            continue
        if len(info.partitions) != topic.partitions:
            there = counted(len(info.partitions), "partition")
            found.findings.append(
                f"{topic.name} has {topic.partitions} partitions and {there} on the new side"
            )
        for name, value, other in await config_differences(new, topic):
            said = f"{topic.name}: {name} is {value}, and {other} on the new side"
            if name in AFTERWARDS:
                found.notes.append(f"{said}; `chronik migrate finish` sets it")
            else:
                found.findings.append(said)
        for number in sorted(info.partitions.keys() & topic.ends.keys()):
            tp = TopicPartition(topic.name, number)
            marks = [
                Mark(name, offsets[tp].offset, _offset(new_groups, name, tp))
                for name, offsets in old_groups.items()
                if tp in offsets
            ]
            before, size = done, topic.ends[number] - topic.starts[number]
            pair = _Pair(old, new, topic, tp, last, lambda count, at=before: tell(at + count))  # type: ignore[misc]
            await pair.compare(marks, found, report.groups)
            done += size
            tell(done)
    return report


def _offset(groups: Committed, group: str, tp: TopicPartition) -> int | None:
    found = groups.get(group, {}).get(tp)
    return None if found is None else found.offset


class _Pair:
    """One partition on both sides."""

    def __init__(
        self,
        old: Cluster,
        new: Cluster,
        topic: OldTopic,
        tp: TopicPartition,
        last: int | None,
        tell: Callable[[int], None],
    ) -> None:
        self._old, self._new, self._topic, self._tp, self._tell = old, new, topic, tp, tell
        self._start, self._end = topic.starts[tp.partition], topic.ends[tp.partition]
        self._is_part = last is not None and self._end - self._start > last
        if self._is_part:
            self._start = self._end - (last or 0)

    async def compare(self, marks: list[Mark], found: TopicReport, groups: Mapping[str, GroupReport]) -> None:
        from chronik.client.offsets import EARLIEST, LATEST, list_offsets

        self._new_end = (await list_offsets(self._new, {self._tp: LATEST}, read_committed=True))[
            self._tp
        ].offset
        self._new_start = (await list_offsets(self._new, {self._tp: EARLIEST}))[self._tp].offset
        if self._topic.is_compacted:
            await self._compare_keys(found)
            for mark in marks:
                await self._place_by_record(mark, groups[mark.group])
            return
        comparison = Comparison(marks=marks)
        await self._align(found)
        await self._run(comparison)
        counts = comparison.counts
        found.compared += counts.compared
        found.newer += counts.newer
        found.findings += [f"{self._tp}: {said}" for said in comparison.shown]
        if not counts.agree:
            found.findings.append(
                f"{self._tp}: of {counts.compared:,} records {counts.different:,} differ, {counts.missing:,} "
                f"are missing, {counts.extra:,} are too many, {counts.not_yet:,} are not copied yet"
            )
        for mark in marks:
            self._place(mark, groups[mark.group])

    def _place(self, mark: Mark, group: GroupReport) -> None:
        """What a mark means for its group, and the offset that would be exact."""
        if self._is_part and mark.old_offset < self._start:
            group.unknown.append(
                f"group {mark.group}, {self._tp}: its offset is before the records that --last looks at"
            )
            return
        exact = self._new_end if mark.expected is None else mark.expected
        if mark.new_offset is None:
            group.findings.append(f"group {mark.group}, {self._tp}: no offset on the new side")
        elif mark.read_again < 0:
            ahead = counted(-mark.read_again, "record")
            group.findings.append(
                f"group {mark.group}, {self._tp}: {ahead} further on the new side; it has moved already, or "
                "would not read them"
            )
        elif mark.read_again == 0:
            return
        else:
            group.read_again += mark.read_again
        group.corrected[self._tp] = exact

    async def _place_by_record(self, mark: Mark, group: GroupReport) -> None:
        """The same where records cannot be counted: the group must read the same record next."""
        row = await self._first(self._old, mark.old_offset, self._end)
        exact: int | None = self._new_end
        if row is not None:
            exact = await self._find(self._new, row, self._new_start, self._new_end)
        if mark.new_offset is None:
            group.findings.append(f"group {mark.group}, {self._tp}: no offset on the new side")
        else:
            there = await self._first(self._new, mark.new_offset, self._new_end)
            if (row and row[1:]) == (there and there[1:]):
                return
            if exact is None or mark.new_offset > exact:
                said = "it would go on with another record on the new side"
                group.findings.append(f"group {mark.group}, {self._tp}: {said}")
            else:
                group.read_again += 1
        if exact is not None:
            group.corrected[self._tp] = exact

    async def _find(self, cluster: Cluster, wanted: Row, start: int, end: int) -> int | None:
        """The offset of a record with this content; its time says where to begin."""
        from chronik.client.offsets import list_offsets

        at = (await list_offsets(cluster, {self._tp: wanted[1]}))[self._tp].offset
        if at >= 0:
            async for rows in self._rows(cluster, max(at, start), end):
                for row in rows:
                    if row[1:] == wanted[1:]:
                        return row[0]
        return None

    async def _align(self, found: TopicReport) -> None:
        """Move the later beginning's counterpart forward: to the first record that both sides have."""
        old = await self._first(self._old, self._start, self._end)
        new = await self._first(self._new, self._new_start, self._new_end)
        if old is None or new is None or old[1:] == new[1:]:
            return
        if (at := await self._find(self._new, old, self._new_start, self._new_end)) is not None:
            skipped, self._new_start = at - self._new_start, at
        elif (at := await self._find(self._old, new, self._start, self._end)) is not None:
            skipped, self._start = at - self._start, at
        else:
            return
        if not self._is_part:
            found.older += skipped

    async def _first(self, cluster: Cluster, start: int, end: int) -> Row | None:
        async for rows in self._rows(cluster, start, end):
            return rows[0]
        return None

    async def _run(self, comparison: Comparison) -> None:
        first, end = self._topic.starts[self._tp.partition], self._end
        old = self._rows(self._old, self._start, end)
        new = self._rows(self._new, self._new_start, self._new_end)
        old_ended = new_ended = False
        while not (old_ended and new_ended):
            if not old_ended and comparison.wants_old:
                rows = await anext(old, None)
                old_ended = rows is None
                comparison.old(rows or ())
                self._tell(end - first if rows is None else rows[-1][0] - first)
            if not new_ended and comparison.wants_new:
                rows = await anext(new, None)
                new_ended = rows is None
                comparison.new(rows or ())
            comparison.settle(old_ended=old_ended, new_ended=new_ended)
            if old_ended and not comparison.holds_old:
                break  # what the new side has beyond is newer
        await old.aclose()
        await new.aclose()
        comparison.finish()

    async def _rows(self, cluster: Cluster, start: int, end: int) -> AsyncGenerator[list[Row], None]:
        """The committed records of one side, in lists that are not empty."""
        from chronik.client import Consumer, FetchOptions

        if start >= end:
            return
        async with Consumer(
            cluster, FetchOptions(read_committed=True), on_out_of_range="earliest"
        ) as consumer:
            consumer.assign({self._tp: start})
            async for fetched in consumer.batches({self._tp: end}):
                coming = fetched.rows()
                while rows := await asyncio.to_thread(_take, coming):
                    if kept := [row for row in rows if row[0] < end]:
                        yield kept

    async def _compare_keys(self, found: TopicReport) -> None:
        old = await self._last_values(self._old, self._start, self._end)
        new = await self._last_values(self._new, self._new_start, self._new_end)
        if old is None or new is None:
            found.findings.append(
                f"{self._tp}: more than {KEYS_MAX:,} keys, which are not compared; compare the topic by SQL"
            )
            return
        found.compared += len(old)
        differing = sum(new.get(key) != value for key, value in old.items())
        if differing:
            found.findings.append(
                f"{self._tp}: {counted(differing, 'key')} of {len(old):,} with another last value"
            )

    async def _last_values(self, cluster: Cluster, start: int, end: int) -> dict[bytes, bytes] | None:
        """A digest of the last value of each key; deleted keys are left out. None: too many keys."""
        found: dict[bytes, bytes] = {}
        async for rows in self._rows(cluster, start, end):
            for _, timestamp, key, value, headers in rows:
                name = hashlib.blake2b(key or b"", digest_size=16).digest()
                if value is None:
                    found.pop(name, None)
                else:
                    said = repr((timestamp, headers)).encode() + value
                    found[name] = hashlib.blake2b(said, digest_size=16).digest()
            if len(found) > KEYS_MAX:
                return None
        return found


def _take(rows: Any) -> list[Row]:
    return list(islice(rows, _ROWS_AT_ONCE))


async def set_offsets(new: Cluster, groups: Mapping[str, GroupReport]) -> list[str]:
    """Commit the exact offsets for groups; returns what could not be set."""
    from chronik.client.groups import Groups
    from chronik.model import RequestError

    refused = []
    for name, group in groups.items():
        if not group.corrected:
            continue
        try:
            await Groups(new).commit(name, group.corrected)
        except RequestError as error:
            refused.append(
                f"group {name}: its offsets cannot be set ({error}); has it members on the new side?"
            )
    return refused
