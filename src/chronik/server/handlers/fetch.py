"""Fetch: reads what is there. If that is too little, it waits until partitions have more or time is up."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from chronik.metrics import clock
from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.replication.partition import Partition
from chronik.security.acls import Operation, ResourceType
from chronik.server.dispatch import Call, RequestContext, handles_hot
from chronik.server.errors import error_of
from chronik.server.fetch_sessions import INITIAL_EPOCH, FetchSession, Owner
from chronik.server.gate import asks
from chronik.server.handlers.produce import leader_endpoints
from chronik.server.throttling import fetch_bytes_max
from chronik.storage.reading import EMPTY, LogSlice
from chronik.wire.api import ApiKey
from chronik.wire.fetch import (
    FIRST_WITH_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    FetchResult,
    decode_fetch,
    encode_fetch_response,
)

log = logging.getLogger(__name__)

READ_COMMITTED: Final = 1
_CACHED_SECONDS: Final = 0.02
"""Time enough for remote records that are in memory; what is not is fetched for the next request."""
_ALL_CACHED_SECONDS: Final = 0.5
"""What all partitions of a request may take of it together."""
_MAX_WAIT_MS: Final = 5 * 60 * 1000


class _RemoteWait:
    """How long a fetch waits for a slow object store: as long as it has nothing, until its time is up. Each
    partition after that has the time for what is in memory, so that none keeps the others from being read."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline: float, wait_ms: int) -> None:
        self._loop = loop
        self._until = max(deadline, loop.time() + wait_ms / 1000)
        self._end: float | None = None

    def until(self, is_empty: bool) -> float:
        now = self._loop.time()
        if is_empty and now < self._until - _CACHED_SECONDS:
            return self._until
        if self._end is None:
            self._end = now + _ALL_CACHED_SECONDS
        return min(now + _CACHED_SECONDS, self._end)


class _Reading:
    """What one attempt has found (KIP-74). Only the first partition with records may exceed the answer's
    size, and only by its first batch; all others give what fits, or nothing."""

    __slots__ = ("is_empty", "results", "room")

    def __init__(self, bytes_max: int) -> None:
        self.results: list[FetchResult] = []
        self.room = max(bytes_max, 0)
        self.is_empty = True

    def add(self, result: FetchResult) -> None:
        self.results.append(result)
        if result.size_bytes:
            self.is_empty = False
            self.room = max(self.room - result.size_bytes, 0)


class _PendingFetch:
    """A fetch between its arrival and its answer."""

    def __init__(self, call: Call[FetchRequest], session: FetchSession | None) -> None:
        self._call = call
        self._request = request = call.request
        self._session = session
        self._wanted = list(session.wanted.values()) if session is not None else request.partitions
        self._services = call.context.services
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + min(max(request.max_wait_ms, 0), _MAX_WAIT_MS) / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._watched: list[Partition] = []
        self._wake_scheduled = False
        self._is_reading = False
        """Whether `_read_rest` is under way. It may last, and records come much faster than it ends."""
        self._is_late = False
        """Whether to look again then."""
        self._finished = False

    # --- trying ------------------------------------------------------------------------------------

    def attempt(self) -> None:
        """Read what can be read without waiting; answer if that is enough."""
        reading = _Reading(self._bytes_max())
        for place, wanted in enumerate(self._wanted):
            result = FetchResult(wanted.topic, wanted.topic_id, wanted.partition)
            try:
                partition = self._prepare(wanted, result)
                if result.preferred_read_replica >= 0:
                    found: LogSlice | None = EMPTY
                else:
                    found = partition.read_now(
                        wanted.fetch_offset,
                        min(wanted.partition_max_bytes, reading.room),
                        self._limit(partition),
                        min_one_batch=reading.is_empty,
                    )
                if found is None:
                    self._is_reading = True
                    self._call.spawn(self._read_alone(reading, place))
                    return
                self._take(result, partition, wanted, found)
            except Exception as error:
                self._refuse(result, wanted, error)
            reading.add(result)
        self._conclude(reading.results)

    async def _read_alone(self, reading: _Reading, start: int) -> None:
        try:
            await self._read_rest(reading, start)
        finally:
            self._is_reading = False
            if self._is_late:
                self._is_late = False
                self._wake()

    async def _read_rest(self, reading: _Reading, start: int) -> None:
        """Read the first partition that is not in memory, and all after it. They are read in order, since the
        bytes that each may return depend on those before it."""
        remote_wait = _RemoteWait(
            self._loop, self._deadline, self._services.settings.remote_fetch_max_wait_ms
        )
        for wanted in self._wanted[start:]:
            result = FetchResult(wanted.topic, wanted.topic_id, wanted.partition)
            try:
                partition = self._prepare(wanted, result)
                if result.preferred_read_replica < 0:
                    found = await partition.read(
                        wanted.fetch_offset,
                        min(wanted.partition_max_bytes, reading.room),
                        self._limit(partition),
                        min_one_batch=reading.is_empty,
                        until=remote_wait.until(reading.is_empty),
                        asker=self._call.context.connection,
                    )
                    self._take(result, partition, wanted, found)
            except Exception as error:
                self._refuse(result, wanted, error)
            reading.add(result)
        if not self._finished:
            self._conclude(reading.results)

    def _bytes_max(self) -> int:
        bytes_max = min(self._request.max_bytes, self._services.limits.response_bytes_max)
        return fetch_bytes_max(self._call.context, bytes_max)

    def _prepare(self, wanted: FetchPartition, result: FetchResult) -> Partition:
        """The partition to read, after every check that does not need the log's bytes."""
        topic = wanted.topic
        if self._call.context.api_version >= FIRST_WITH_TOPIC_ID:
            name = self._services.state.topic_names.get(wanted.topic_id)
            if name is None:
                raise RequestError(ErrorCode.unknown_topic_id)
            topic = name
        access = self._call.context.access
        if not access.is_open:
            access.require(Operation.READ, ResourceType.TOPIC, topic)
        partition = self._services.replicas.replica(TopicPartition(topic, wanted.partition))
        partition.check_epoch(wanted.current_leader_epoch)
        if partition.is_leader:
            if not self._services.replicas.may_lead:
                raise RequestError(ErrorCode.not_leader_or_follower)  # another node may lead by now
            result.preferred_read_replica = self._nearer_replica(partition, wanted.fetch_offset)
        elif not self._may_read_follower(partition) or wanted.fetch_offset > partition.log_end_offset:
            # A follower may not have these records yet. For OFFSET_OUT_OF_RANGE clients would reset.
            raise RequestError(ErrorCode.not_leader_or_follower)
        result.high_watermark = partition.high_watermark
        result.last_stable_offset = partition.last_stable_offset
        result.log_start_offset = partition.log_start_offset
        diverging = partition.diverging_epoch(wanted.last_fetched_epoch, wanted.fetch_offset)
        if diverging is not None:
            result.diverging = diverging
        return partition

    def _nearer_replica(self, partition: Partition, fetch_offset: int) -> int:
        """An in-sync follower in the consumer's rack, if the leader stands in another (KIP-392); else -1."""
        rack = self._request.rack_id
        if not rack or rack == self._services.settings.rack or self._request.replica_id >= 0:
            return -1
        state = self._services.state
        for peer, progress in partition.followers.items():
            broker = state.brokers.get(peer)
            near = broker is not None and broker.rack == rack and not broker.fenced
            has_it = partition.log_start_offset <= fetch_offset <= progress.acked_end
            if near and has_it and peer in partition.isr:
                return peer
        return -1

    def _may_read_follower(self, partition: Partition) -> bool:
        """Consumers may read a follower (KIP-392), which shows only what is committed."""
        return self._call.context.api_version >= 11 and partition.leader_id >= 0

    def _limit(self, partition: Partition) -> int:
        if self._request.isolation_level == READ_COMMITTED:
            return partition.last_stable_offset
        return partition.high_watermark

    def _take(
        self, result: FetchResult, partition: Partition, wanted: FetchPartition, found: LogSlice
    ) -> None:
        if result.diverging is not None:
            return
        result.buffers = found.buffers
        result.size_bytes = found.size_bytes
        partition.was_read(found.size_bytes)
        if self._request.isolation_level == READ_COMMITTED:
            result.aborted = partition.aborted_transactions(wanted.fetch_offset, found)

    def _refuse(self, result: FetchResult, wanted: FetchPartition, error: Exception) -> None:
        code, _ = error_of(error, ErrorCode.not_leader_or_follower)
        if code == ErrorCode.unknown_server_error:
            log.error("a read of %s-%d failed", wanted.topic, wanted.partition, exc_info=error)
        result.error_code = code
        if code in (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch):
            topic = wanted.topic or self._services.state.topic_names.get(wanted.topic_id, "")
            found = self._services.state.partition(TopicPartition(topic, wanted.partition))
            if found is not None:
                result.current_leader = (found.leader, found.leader_epoch)

    # --- waiting -----------------------------------------------------------------------------------

    def _conclude(self, results: list[FetchResult]) -> None:
        size = 0
        urgent = False
        for result in results:
            size += result.size_bytes
            urgent = (
                urgent
                or result.error_code != ErrorCode.none
                or result.diverging is not None
                or result.preferred_read_replica >= 0
            )
        if urgent or size >= self._request.min_bytes or self._loop.time() >= self._deadline or not results:
            self._answer(results)
        else:
            self._wait()

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline, self._expire)
        if not self._watched:
            for wanted in self._wanted:
                topic = wanted.topic or self._services.state.topic_names.get(wanted.topic_id, "")
                partition = self._services.replicas.get(TopicPartition(topic, wanted.partition))
                if partition is not None:
                    partition.watch(self._wake)
                    self._watched.append(partition)

    def _expire(self) -> None:
        # An event loop may fire a timer slightly early. Waiting again would then have no timer to end it.
        self._deadline = self._loop.time()
        self._wake()

    def _wake(self) -> None:
        """A watermark moved or time is up: look again, once per turn of the loop."""
        if not self._wake_scheduled and not self._finished:
            self._wake_scheduled = True
            self._loop.call_soon(self._again)

    def _again(self) -> None:
        self._wake_scheduled = False
        if self._is_reading:
            self._is_late = True
        elif not self._finished:
            began = clock()
            try:
                self.attempt()
                self._call.responder.worked(clock() - began)
            except Exception as error:
                self._call.failed(error)

    def _answer(self, results: list[FetchResult]) -> None:
        self._finished = True
        if self._timer is not None:
            self._timer.cancel()
        for partition in self._watched:
            partition.unwatch(self._wake)
        session = self._session
        if session is not None:
            if self._request.session_epoch != INITIAL_EPOCH:
                results = [result for result in results if session.has_news(result)]
            session.remember(results)
        leaders = {result.current_leader[0] for result in results if result.current_leader is not None}
        self._call.responder.respond(
            encode_fetch_response(
                self._call.context.api_version,
                self._call.correlation_id,
                results,
                session_id=session.session_id if session is not None else 0,
                endpoints=leader_endpoints(self._call.context, leaders) if leaders else None,
            )
        )


def _read(frame: memoryview, offset: int, context: RequestContext) -> FetchRequest:
    return decode_fetch(frame, offset, context.api_version)


@handles_hot(
    ApiKey.FETCH,
    versions=(4, 18),
    needs=asks((Operation.READ, ResourceType.TOPIC)),
    reads=_read,
    in_turn=True,
)
def fetch(call: Call[FetchRequest]) -> None:
    try:
        connection = call.context.connection
        owner = Owner(connection.access.principal, connection.peer_host, call.context.client_id)
        sessions = call.context.services.fetch_sessions
        by_id = call.context.api_version >= FIRST_WITH_TOPIC_ID
        now_s = asyncio.get_running_loop().time()
        session = sessions.open(call.request, owner, now_s=now_s, by_id=by_id)
    except RequestError as error:
        call.responder.respond(
            encode_fetch_response(call.context.api_version, call.correlation_id, [], error_code=error.code)
        )
        return
    _PendingFetch(call, session).attempt()
