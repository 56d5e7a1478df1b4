"""Reads partitions from given offsets: raw record batches, or records for tools.

Each leader has at most one fetch under way, over all of its partitions that are to be read. The next
one leaves before the answer is handed out, so the network works while the caller does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal

from chronik.client.apis import FETCH
from chronik.client.cluster import Cluster
from chronik.client.fetching import Fetched, FetchOptions, fetch_fields, unpack
from chronik.client.offsets import EARLIEST, LATEST, list_offsets, raise_worst
from chronik.client.retry import Retry, is_retriable
from chronik.model import NO_LEADER, ChronikError, ErrorCode, NodeId, RequestError, TopicPartition
from chronik.records.reader import Record

__all__ = ["Consumer", "ConsumerRecord", "FetchOptions", "Fetched"]

OnOutOfRange = Literal["error", "earliest", "latest"]
DECODED_AT_ONCE: Final = 1_000
_RESET: Final[Mapping[str, int]] = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    tp: TopicPartition
    record: Record


def _take(records: Iterator[Record]) -> list[Record]:
    return list(islice(records, DECODED_AT_ONCE))


@dataclass(frozen=True, slots=True)
class _SentFetch:
    node_id: NodeId
    positions: Mapping[TopicPartition, int]


class Consumer:
    def __init__(
        self,
        cluster: Cluster,
        options: FetchOptions | None = None,
        *,
        on_out_of_range: OnOutOfRange = "error",
    ) -> None:
        self._cluster = cluster
        self._options = options or FetchOptions()
        self._on_out_of_range = on_out_of_range
        self._loop = asyncio.get_running_loop()
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._finished: set[TopicPartition] = set()
        """Partitions that reached the end a caller of `batches` gave."""
        self._fetches: dict[asyncio.Task[Any], _SentFetch] = {}
        self._not_before: dict[TopicPartition, float] = {}
        """When a partition that just failed may be asked for again."""
        self._retry: Retry | None = None
        """Patience since the last good answer; None while all is well."""

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        fetches, self._fetches = list(self._fetches), {}
        for task in fetches:
            task.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets, and no others."""
        self._positions = dict(positions)
        self._paused &= self._positions.keys()

    def position(self, tp: TopicPartition) -> int:
        """The offset behind the last record that was handed out."""
        return self._positions[tp]

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self._positions[tp] = offset

    def pause(self, tp: TopicPartition) -> None:
        self._paused.add(tp)

    def resume(self, tp: TopicPartition) -> None:
        self._paused.discard(tp)

    async def poll(self, timeout_ms: int | None = None) -> list[Fetched]:
        """Wait up to `timeout_ms` for records; [] when none came. Positions move behind what is returned.

        Raises what a retry cannot heal, and the last failure when the cluster stays away past the deadline.
        """
        deadline = None if timeout_ms is None else self._loop.time() + timeout_ms / 1000
        while self._to_read():
            try:
                await self._ask_idle_leaders()
                fetched = await self._collect(deadline)
            except ChronikError as error:
                self._retry = self._retry or self._cluster.retry()
                await self._retry.pause(error)
                fetched = []
            if fetched:
                self._start_fetches(self._known_leaders(self._idle()))
                return fetched
            if deadline is not None and self._loop.time() >= deadline:
                break
        return []

    async def batches(self, until: Mapping[TopicPartition, int] | None = None) -> AsyncIterator[Fetched]:
        """Raw batches, for ever or until each partition's position reached its end offset.

        The last batch of a partition may reach past its end.
        """
        try:
            while until is None or any(self._positions[tp] < end for tp, end in until.items()):
                if until is not None:
                    self._finished = {tp for tp, end in until.items() if self._positions[tp] >= end}
                for fetched in await self.poll():
                    if until is None or fetched.fetch_offset < until[fetched.tp]:
                        yield fetched
        finally:
            self._finished = set()

    async def records(
        self, until: Mapping[TopicPartition, int] | None = None
    ) -> AsyncIterator[ConsumerRecord]:
        async for fetched in self.batches(until):
            end = None if until is None else until.get(fetched.tp)
            coming = fetched.records()
            # Decompression and decoding may take long, and the loop may be a node's.
            while records := await asyncio.to_thread(_take, coming):
                for record in records:
                    if end is None or record.offset < end:
                        yield ConsumerRecord(fetched.tp, record)

    def _to_read(self) -> list[TopicPartition]:
        return [tp for tp in self._positions if tp not in self._paused and tp not in self._finished]

    def _idle(self) -> list[TopicPartition]:
        """Partitions to read that no fetch covers and that did not just fail."""
        now = self._loop.time()
        under_way = {tp for asked in self._fetches.values() for tp in asked.positions}
        return [tp for tp in self._to_read() if tp not in under_way and self._not_before.get(tp, now) <= now]

    async def _ask_idle_leaders(self) -> None:
        """Start a fetch on every leader that has partitions to read and none under way."""
        leaders: dict[TopicPartition, NodeId] = {}
        errors: list[RequestError] = []
        if idle := self._idle():
            for tp, leader in (await self._cluster.find_leaders(idle)).items():
                if isinstance(leader, RequestError):
                    errors.append(leader)
                    self._hold_back(tp)
                else:
                    leaders[tp] = leader
        self._start_fetches(leaders)
        if not self._fetches:
            raise_worst(errors)

    def _known_leaders(self, tps: list[TopicPartition]) -> dict[TopicPartition, NodeId]:
        known = {tp: self._cluster.metadata.leader_of(tp) for tp in tps}
        return {tp: leader_id for tp, leader_id in known.items() if leader_id != NO_LEADER}

    def _start_fetches(self, leaders: Mapping[TopicPartition, NodeId]) -> None:
        busy = {asked.node_id for asked in self._fetches.values()}
        by_leader: dict[NodeId, dict[TopicPartition, int]] = {}
        for tp, leader_id in leaders.items():
            if leader_id not in busy and tp in self._positions:
                by_leader.setdefault(leader_id, {})[tp] = self._positions[tp]
        for leader_id, positions in by_leader.items():
            fields = fetch_fields(positions, self._cluster.metadata, self._options)
            # `_collect` reads its result, and what went wrong.
            task = self._loop.create_task(self._cluster.send(leader_id, FETCH, fields))
            self._fetches[task] = _SentFetch(leader_id, positions)

    async def _collect(self, deadline: float | None) -> list[Fetched]:
        """Wait for the next answer and move positions behind what it brought."""
        timeout = None if deadline is None else max(0.0, deadline - self._loop.time())
        if not self._fetches:  # all that is left to read failed a moment ago
            pause = min(self._not_before.values(), default=0.0) - self._loop.time()
            await asyncio.sleep(max(0.0, pause if timeout is None else min(pause, timeout)))
            return []
        done, _ = await asyncio.wait(self._fetches, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        fetched: list[Fetched] = []
        errors: dict[TopicPartition, Exception] = {}
        for task in [task for task in self._fetches if task in done]:
            asked = self._fetches.pop(task)
            try:
                got, failed = unpack(task.result(), asked.positions)
                fetched += got
                errors.update(failed)
            except ChronikError as error:
                errors.update(dict.fromkeys(asked.positions, error))
        fetched = [part for part in fetched if self._advance(part)]
        try:
            await self._handle(errors)
        except ChronikError as error:
            if not fetched or not is_retriable(error):
                raise
        return [part for part in fetched if len(part.data)]

    def _advance(self, part: Fetched) -> bool:
        """Move behind what came; false when the caller went elsewhere meanwhile."""
        self._retry = None
        self._not_before.pop(part.tp, None)
        if self._positions.get(part.tp) != part.fetch_offset:
            return False
        self._positions[part.tp] = part.next_offset
        return True

    async def _handle(self, errors: Mapping[TopicPartition, Exception]) -> None:
        """Put right what can be: look the leader up again, or start over where the log begins or ends."""
        rest: list[Exception] = []
        lost: list[TopicPartition] = []
        for tp, error in errors.items():
            out_of_range = isinstance(error, RequestError) and error.code == ErrorCode.offset_out_of_range
            if out_of_range and self._on_out_of_range != "error":
                lost.append(tp)
                continue
            self._cluster.forget_leaders([tp.topic])
            self._hold_back(tp)
            rest.append(error)
        if lost:
            at = dict.fromkeys(lost, _RESET[self._on_out_of_range])
            for tp, found in (await list_offsets(self._cluster, at)).items():
                if tp in self._positions:
                    self._positions[tp] = found.offset
        raise_worst(rest)

    def _hold_back(self, tp: TopicPartition) -> None:
        self._not_before[tp] = self._loop.time() + self._cluster.options.retry_backoff_ms / 1000
