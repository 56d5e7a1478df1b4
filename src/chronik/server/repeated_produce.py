"""The requests that a producer goes on sending to one partition: one batch each, acks=1 or acks=all.

They begin with the same bytes but for the correlation id. What these bytes say is found out once, by the
handler; then each request takes the short way: from its records to the log, from the log to its answer.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from chronik.model import ErrorCode, RequestError, StorageError
from chronik.replication.partition import ACKS_ALL, Partition
from chronik.server.dispatch import RequestContext, Responder
from chronik.wire.produce import ProducePartition, ProduceRequest, ProduceResult, SingleAnswer, last_records

_HEAD: Final = struct.Struct(">ii")
"""API key and version in one number, which need not be told apart; correlation id."""

Refuse: TypeAlias = Callable[[RequestContext, ProducePartition, Responder, RequestError], None]


def too_late() -> RequestError:
    """The batches may still be replicated later: the client has to find out by itself."""
    return RequestError(ErrorCode.request_timed_out, "not all in-sync replicas answered in time")


class RepeatedProduce:
    __slots__ = (
        "_acks",
        "_answer",
        "_context",
        "_data",
        "_key_and_version",
        "_partition",
        "_records_at",
        "_refuse",
        "_start",
        "_wait_s",
    )

    def __init__(
        self,
        start: bytes,
        context: RequestContext,
        request: ProduceRequest,
        partition: Partition,
        refuse: Refuse,
    ) -> None:
        """`start` is what stands before the records in requests like this one."""
        self._key_and_version, _ = _HEAD.unpack_from(start)
        self._start = start[_HEAD.size :]
        self._records_at = len(start)
        self._context = context
        self._acks = request.acks
        self._wait_s = max(request.timeout_ms, 0) / 1000
        self._data = request.partitions[0]._replace(records=None)
        self._partition = partition
        self._refuse = refuse
        self._answer: SingleAnswer | None = None

    def start(self, frame: memoryview, responder: Responder) -> bool:
        """Append and answer, if the request begins as these do and its batch can be taken at once."""
        records_at = self._records_at
        if len(frame) < records_at:
            return False
        key_and_version, correlation_id = _HEAD.unpack_from(frame)
        if key_and_version != self._key_and_version or frame[8:records_at].tobytes() != self._start:
            return False
        records = last_records(frame, records_at)
        if not records:
            return False
        partition, services = self._partition, self._context.services
        try:
            if services.replicas.leader(partition.tp) is not partition:
                return False
            appended = partition.append(records, self._acks, services.now_ms())
        except (RequestError, StorageError):
            return False  # nothing was appended; on the long way the client hears why
        base_offset, next_offset, log_append_time_ms, _ = appended
        # The answer is made now and not when the disk has the batch: then the client waits for it.
        answer = self.answer.frame(
            correlation_id, base_offset, log_append_time_ms, partition.log.log_start_offset
        )
        waiting = _Waiting(self, correlation_id, responder, answer)
        if self._acks == ACKS_ALL:
            waiting.end_after(self._wait_s)
        partition.when_acked(next_offset, self._acks, waiting.acked)
        return True

    @property
    def answer(self) -> SingleAnswer:
        if self._answer is None:
            data = self._data
            result = ProduceResult(data.topic, data.topic_id, data.partition)
            self._answer = SingleAnswer(self._context.api_version, result)
        return self._answer

    def refuse(self, correlation_id: int, responder: Responder, error: RequestError) -> None:
        header = self._context.header._replace(correlation_id=correlation_id)
        self._refuse(self._context._replace(header=header), self._data, responder, error)


class _Waiting:
    """A request between its append and its answer."""

    __slots__ = ("_correlation_id", "_frame", "_repeat", "_responder", "_timer")

    def __init__(
        self, repeat: RepeatedProduce, correlation_id: int, responder: Responder, frame: bytes
    ) -> None:
        self._repeat = repeat
        self._correlation_id = correlation_id
        self._responder = responder
        self._frame = frame
        self._timer: asyncio.TimerHandle | None = None

    def end_after(self, seconds: float) -> None:
        """acks=all: answer by then, if only with an error. What comes after the first answer is ignored."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._time_out)

    def _time_out(self) -> None:
        self.acked(too_late())

    def acked(self, error: RequestError | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if error is None:
            self._responder.respond([self._frame])
        else:
            self._repeat.refuse(self._correlation_id, self._responder, error)
