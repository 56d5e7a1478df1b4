"""Fetch: reads what is there, or waits on the partitions themselves until there is enough or time is up."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.replication.partition import Partition
from chronik.server.dispatch import HotCall, error_of, handles_hot
from chronik.server.fetch_sessions import INITIAL_EPOCH, FetchSession
from chronik.server.handlers.produce import leader_endpoints
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
_MAX_WAIT_MS: Final = 5 * 60 * 1000


class _PendingFetch:
    """A fetch between its arrival and its answer."""

    def __init__(self, call: HotCall, request: FetchRequest, session: FetchSession | None) -> None:
        self._call = call
        self._request = request
        self._session = session
        self._wanted = list(session.wanted.values()) if session is not None else request.partitions
        self._services = call.context.services
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + min(max(request.max_wait_ms, 0), _MAX_WAIT_MS) / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._watched: list[Partition] = []
        self._wake_scheduled = False
        self._finished = False

    # --- trying ------------------------------------------------------------------------------------

    def attempt(self) -> None:
        """Read what can be read without waiting; answer if that is enough."""
        results: list[FetchResult] = []
        cold: list[tuple[FetchResult, Partition, FetchPartition, int]] = []
        room = self._bytes_max()
        for wanted in self._wanted:
            result = FetchResult(wanted.topic, wanted.topic_id, wanted.partition)
            results.append(result)
            try:
                partition = self._prepare(wanted, result)
                limit = self._limit(partition)
                if room <= 0 or result.preferred_read_replica >= 0:
                    continue
                found = partition.read_now(wanted.fetch_offset, min(wanted.partition_max_bytes, room), limit)
            except Exception as error:
                self._refuse(result, wanted, error)
                continue
            if found is None:
                cold.append((result, partition, wanted, limit))
                room -= wanted.partition_max_bytes
            else:
                self._take(result, partition, wanted, found)
                room -= found.size_bytes
        if cold:
            self._services.spawn(self._read_cold(results, cold))
        else:
            self._conclude(results)

    async def _read_cold(
        self, results: list[FetchResult], cold: list[tuple[FetchResult, Partition, FetchPartition, int]]
    ) -> None:
        room = self._bytes_max() - sum(result.size_bytes for result in results)
        for result, partition, wanted, limit in cold:
            try:
                size = min(wanted.partition_max_bytes, room)
                found = await partition.read(wanted.fetch_offset, size, limit) if room > 0 else EMPTY
                self._take(result, partition, wanted, found)
                room -= found.size_bytes
            except Exception as error:
                self._refuse(result, wanted, error)
        if not self._finished:
            self._conclude(results)

    def _bytes_max(self) -> int:
        return min(self._request.max_bytes, self._services.limits.response_bytes_max)

    def _prepare(self, wanted: FetchPartition, result: FetchResult) -> Partition:
        """The partition to read, after every check that does not need the log's bytes."""
        topic = wanted.topic
        if self._call.context.api_version >= FIRST_WITH_TOPIC_ID:
            name = self._services.state.topic_names.get(wanted.topic_id)
            if name is None:
                raise RequestError(ErrorCode.unknown_topic_id)
            topic = name
        partition = self._services.replicas.replica(TopicPartition(topic, wanted.partition))
        partition.check_epoch(wanted.current_leader_epoch)
        if partition.is_leader:
            if not self._services.replicas.may_lead:
                raise RequestError(ErrorCode.not_leader_or_follower)  # deposed, perhaps, without knowing it
            result.preferred_read_replica = self._nearer_replica(partition, wanted.fetch_offset)
        elif not self._may_read_follower(partition):
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
        # Loops may fire a timer a moment before its time; a second wait would have no timer to end it.
        self._deadline = self._loop.time()
        self._wake()

    def _wake(self) -> None:
        """A watermark moved or time is up: look again, once per turn of the loop."""
        if not self._wake_scheduled and not self._finished:
            self._wake_scheduled = True
            self._loop.call_soon(self._again)

    def _again(self) -> None:
        self._wake_scheduled = False
        if not self._finished:
            self.attempt()

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
        header = self._call.context.header
        self._call.responder.respond(
            encode_fetch_response(
                header.api_version,
                header.correlation_id,
                results,
                session_id=session.session_id if session is not None else 0,
                endpoints=leader_endpoints(self._call, leaders) if leaders else None,
            )
        )


@handles_hot(ApiKey.FETCH, versions=(4, 18), in_turn=True)
def fetch(call: HotCall) -> None:
    header = call.context.header
    request = decode_fetch(call.buffer, call.offset, header.api_version)
    try:
        session = call.context.services.fetch_sessions.open(request)
    except RequestError as error:
        call.responder.respond(
            encode_fetch_response(header.api_version, header.correlation_id, [], error_code=error.code)
        )
        return
    _PendingFetch(call, request, session).attempt()
