"""Produce: a batch goes from the frame into the log; the answer leaves when enough replicas have it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

import msgspec

from chronik.model import ErrorCode, InvalidRecords, RequestError, TopicPartition
from chronik.records.batch import HEADER_BYTES, read_header
from chronik.records.compression import Compression
from chronik.replication.admission import TooMuchForLoop
from chronik.replication.partition import ACKS_ALL, Appended, Partition
from chronik.security.acls import Operation, ResourceType
from chronik.server.access import Access
from chronik.server.auto_create_topics import create_missing_topics, missing_topics
from chronik.server.dispatch import Call, Handler, RequestContext, handles_hot
from chronik.server.errors import error_of
from chronik.server.gate import asks
from chronik.server.known_requests import Known
from chronik.server.transaction_admission import admission_error, to_admit
from chronik.wire.api import ApiKey
from chronik.wire.produce import (
    FIRST_SUPPORTED,
    FIRST_WITH_TOPIC_ID,
    AnswerTemplate,
    NodeEndpoint,
    ProduceRequest,
    ProduceResult,
    ProduceTarget,
    decode_produce,
    encode_produce_response,
)

log = logging.getLogger(__name__)

FIRST_WITH_ZSTD: Final = 7
_ACKS: Final = (ACKS_ALL, 0, 1)
_APPENDING: Final = -1
"""Keeps an answer waiting, as a partition would, until all batches are appended."""
_NO_RECORDS: Final = memoryview(b"")
_NOT_TAKEN: Final = (-1, -1, -1)
_LEADER_ERRORS: Final = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)


class _PendingProduce:
    """A produce request between its appends and its answer."""

    __slots__ = ("_call", "_frame", "_refused", "_taken", "_timer", "_unacked", "large")

    def __init__(self, call: Call[ProduceRequest]) -> None:
        self._call = call
        self._unacked = {_APPENDING}
        """Partitions that the answer waits for, by their place in the request."""
        self._taken: list[tuple[int, int, int]] = []
        """For each partition: base offset, append time and log start offset."""
        self._refused: dict[int, RequestError] | None = None
        """Why a partition's batch was not taken or not acknowledged, by its place in the request."""
        self._frame: bytearray | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.large: list[int] = []
        """Places of the batches that an I/O thread has to check before they are appended."""

    def append_all(self) -> None:
        """Put every batch into its log, in the order of the request, without an await.

        Those that are found to be `large` are left for `append_large`, and the answer waits for them.
        """
        (transactional_id, acks, timeout_ms, targets, _, _), batches = self._call.request
        services, access = self._call.context.services, self._call.context.access
        now_ms = services.now_ms()
        writer = self._call.context.connection.writer(self._call.context.client_id)
        taken = self._taken
        for index, records in enumerate(batches):
            tp, topic_id = targets[index]
            try:
                if topic_id is not None and not tp.topic:
                    raise RequestError(ErrorCode.unknown_topic_id, f"no topic has the id {topic_id}")
                if not access.is_open:
                    access.require(Operation.WRITE, ResourceType.TOPIC, tp.topic)
                partition = services.replicas.leader(tp)
                if not records:
                    raise RequestError(ErrorCode.invalid_record, "the request carries no records")
                appended = partition.append(
                    records, acks, now_ms, in_transaction=transactional_id is not None
                )
            except TooMuchForLoop:
                taken.append(_NOT_TAKEN)
                self.large.append(index)
            except Exception as error:
                taken.append(_NOT_TAKEN)
                self._refuse(index, error)
            else:
                base_offset, next_offset, append_time_ms = appended
                if partition.writers.last is not writer:
                    partition.writers.note(base_offset, writer)
                taken.append((base_offset, append_time_ms, partition.log_start_offset))
                if acks:
                    self._unacked.add(index)
                    partition.when_acked(next_offset, acks, partial(self._acked, index))
        if not self.large:
            self._appended(acks, timeout_ms)

    @classmethod
    def of_large(cls, call: Call[ProduceRequest]) -> _PendingProduce:
        """A request whose only batch is large."""
        pending = cls(call)
        pending._taken.append(_NOT_TAKEN)
        pending.large.append(0)
        return pending

    async def append_large(self) -> None:
        """Check the large batches in an I/O thread and append them, in the order of the request."""
        request = self._call.request
        for index in self.large:
            try:
                await self._append_large(index)
            except Exception as error:
                self._refuse(index, error)
        self._appended(request.head.acks, request.head.timeout_ms)

    async def _append_large(self, index: int) -> None:
        call, services = self._call, self._call.context.services
        records, acks = call.request.records[index], call.request.head.acks
        is_transactional = call.request.head.transactional_id is not None
        writer = call.context.connection.writer(call.context.client_id)
        appended: Appended | None = None
        while appended is None:
            partition = self._leader_of(index)
            admitted = await partition.look_into(records or _NO_RECORDS, services.now_ms())
            # Anything may have changed meanwhile, so everything is checked again; the last checks do not
            # wait.
            if (refused := await admission_error(call)) is not None:
                raise refused
            partition = self._leader_of(index)
            with contextlib.suppress(TooMuchForLoop):  # the topic's configuration has changed: look again
                appended = partition.append(
                    records or _NO_RECORDS,
                    acks,
                    services.now_ms(),
                    in_transaction=is_transactional,
                    admitted=admitted,
                )
        if partition.writers.last is not writer:
            partition.writers.note(appended.base_offset, writer)
        self._taken[index] = (
            appended.base_offset,
            appended.log_append_time_ms,
            partition.log_start_offset,
        )
        if acks:
            self._unacked.add(index)
            partition.when_acked(appended.next_offset, acks, partial(self._acked, index))

    def _leader_of(self, index: int) -> Partition:
        """The partition that a batch goes to, if the client may write there and the topic is still the one
        that the request named."""
        context = self._call.context
        tp, topic_id = self._call.request.head.targets[index]
        if topic_id is not None and context.services.state.topic_names.get(topic_id) != tp.topic:
            raise RequestError(ErrorCode.unknown_topic_id, f"no topic has the id {topic_id}")
        context.connection.access.require(Operation.WRITE, ResourceType.TOPIC, tp.topic)
        return context.services.replicas.leader(tp)

    def _appended(self, acks: int, timeout_ms: int) -> None:
        """Every batch is in its log or refused: answer, or wait for the acknowledgements."""
        if acks == 0:
            self._finish_silently()
            return
        if self._refused is None:
            # The answer is made now and not when the disk has the batches: then the client waits for it.
            self._frame = self._encode()
        self._unacked.discard(_APPENDING)
        if not self._unacked:
            self._answer()
        elif acks == ACKS_ALL:
            wait_s = max(timeout_ms, 0) / 1000
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._time_out)

    def refuse(self, error: Exception) -> None:
        """Answer that no batch was taken."""
        for index in range(len(self._call.request.records)):
            self._taken.append(_NOT_TAKEN)
            self._refuse(index, error)
        if self._call.request.head.acks == 0:
            self._finish_silently()
        else:
            self._answer()

    def _refuse(self, index: int, error: Exception) -> None:
        if not isinstance(error, RequestError):
            code, message = error_of(error, ErrorCode.not_leader_or_follower)
            if code == ErrorCode.unknown_server_error:
                log.error("an append failed", exc_info=error)
            error = RequestError(code, message)
        if self._refused is None:
            self._refused = {}
        # A traceback would form a cycle with the request's bytes, which only the collector frees.
        self._refused[index] = error.with_traceback(None)

    def _acked(self, index: int, error: RequestError | None) -> None:
        if index not in self._unacked:
            return  # too late: the client got request_timed_out
        self._unacked.discard(index)
        if error is not None:
            self._refuse(index, error)
        if not self._unacked:
            self._answer()

    def _time_out(self) -> None:
        try:
            self._check_time()
        except Exception as error:
            self._call.failed(error)

    def _check_time(self) -> None:
        targets = self._call.request.head.targets
        for index in self._unacked:
            if _is_on_its_way(self._call, targets[index].tp, self._taken[index][0], self._time_out):
                return
        if not self._unacked:
            return  # answered while the disk was waited for
        late = _too_late()
        for index in self._unacked:
            self._refuse(index, late)
        self._unacked.clear()
        self._answer()

    def _answer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        try:
            frame = self._frame if self._refused is None and self._frame is not None else self._encode()
        except Exception as error:
            self._call.failed(error)
        else:
            self._call.responder.respond([frame])

    def _finish_silently(self) -> None:
        """acks=0: there is no answer. After a failure the connection is closed, so that the client asks for
        metadata again."""
        if self._refused is None:
            self._call.responder.respond(None)
        else:
            self._call.responder.close()

    def _encode(self) -> bytearray:
        _, context, correlation_id, request, _, _ = self._call
        leaders: set[int] = set()
        results = [self._result(index, target, leaders) for index, target in enumerate(request.head.targets)]
        endpoints = leader_endpoints(context, leaders) if leaders else None
        return encode_produce_response(context.api_version, correlation_id, results, endpoints)

    def _result(self, index: int, target: ProduceTarget, leaders: set[int]) -> ProduceResult:
        """`leaders` collects the nodes that the answer sends the client to."""
        result = ProduceResult(*target)
        error = self._refused.get(index) if self._refused is not None else None
        if error is None:
            result.base_offset, result.log_append_time_ms, result.log_start_offset = self._taken[index]
            return result
        result.error_code, result.error_message = error.code, error.message
        if isinstance(error, InvalidRecords):
            result.record_errors = error.record_errors
        if error.code in _LEADER_ERRORS:
            found = self._call.context.services.state.partition(target.tp)
            if found is not None:
                result.current_leader = (found.leader, found.leader_epoch)
                leaders.add(found.leader)
        return result


class _PendingBatch(msgspec.Struct, eq=False):
    """A known request between the append of its only batch and its answer.

    Does what `_PendingProduce` does for a request that goes well, with a fifth of the objects, and leaves all
    others to it. That the answers are the same is shown by tests/unit/server/test_same_answers.py.
    """

    _call: Call[ProduceRequest]
    _base: int
    _frame: bytes
    """The answer. Made at the append, so that nothing is left to do once the batch is durable."""
    _timer: asyncio.TimerHandle | None = None

    @classmethod
    def append(cls, call: Call[ProduceRequest]) -> None:
        _, context, correlation_id, (head, (records,)), _, known = call
        if known is None or context.connection.produce_queue.is_busy:
            assert call.handler.hot is not None
            call.handler.hot(call)
            return
        acks, (tp, _) = head.acks, head.targets[0]
        services, access = context.services, context.connection.access
        try:
            if not access.is_open:
                access.require(Operation.WRITE, ResourceType.TOPIC, tp.topic)
            partition = services.replicas.leader(tp)
            base_offset, next_offset, append_time_ms = partition.append(
                records or _NO_RECORDS, acks, services.now_ms()
            )
        except TooMuchForLoop:
            place = context.connection.produce_queue.take_place()
            call.spawn(_append_large(_PendingProduce.of_large(call), place))
            return
        except Exception as error:
            _PendingProduce(call).refuse(error)
            return
        if partition.writers.last is not known.writer:
            partition.writers.note(base_offset, known.writer)
        answer = known.answer
        if answer is None:
            answer = known.answer = AnswerTemplate(context.api_version, head.targets[0])
        log_start = partition.log.log_start_offset if partition.remote is None else partition.log_start_offset
        taken = (base_offset, append_time_ms, log_start)
        pending = cls(call, base_offset, answer.frame(correlation_id, taken))
        if acks == ACKS_ALL:
            wait_s = max(head.timeout_ms, 0) / 1000
            pending._timer = asyncio.get_running_loop().call_later(wait_s, pending._time_out)
        partition.when_acked(next_offset, acks, pending._acked)

    def _acked(self, error: RequestError | None) -> None:
        """Only the first call counts: a second one finds the request answered."""
        if self._timer is not None:
            self._timer.cancel()
        if error is None:
            self._call.responder.respond([self._frame])
        else:
            _PendingProduce(self._call).refuse(error)

    def _time_out(self) -> None:
        tp = self._call.request.head.targets[0].tp
        try:
            if not _is_on_its_way(self._call, tp, self._base, self._time_out):
                self._acked(_too_late())
        except Exception as error:
            self._call.failed(error)


def _is_on_its_way(
    call: Call[ProduceRequest], tp: TopicPartition, base_offset: int, then: Callable[[], None]
) -> bool:
    """Whether the batch is not on this node's disk yet; `then` is called when it is.

    A client's time-out is for the other replicas: as in Kafka it counts from the leader's own append, so that
    with a time-out of 0 a partition without followers takes what it is sent.
    """
    partition = call.context.services.replicas.get(tp)
    if partition is None or partition.log.durable_end_offset > base_offset:
        return False

    def on_disk(error: RequestError | None) -> None:
        # An error has answered the request already. Without one, the watermark moves right after this call,
        # and that may answer the request: so look again in the next turn of the loop.
        if error is None:
            asyncio.get_running_loop().call_soon(then)

    partition.when_acked(partition.log_end_offset, 1, on_disk)
    return True


def _too_late() -> RequestError:
    """The batches may still be replicated later: the client has to find out by itself."""
    return RequestError(ErrorCode.request_timed_out, "not all in-sync replicas answered in time")


def leader_endpoints(context: RequestContext, node_ids: set[int]) -> list[NodeEndpoint]:
    brokers = context.services.state.brokers
    found = []
    for node_id in sorted(node_ids):
        broker = brokers.get(node_id)
        endpoint = broker.endpoints.get(context.connection.endpoint) if broker is not None else None
        if broker is not None and endpoint is not None:
            found.append(NodeEndpoint(node_id, endpoint.host, endpoint.port, broker.rack))
    return found


async def _append_in_turn(call: Call[ProduceRequest], place: AbstractAsyncContextManager[None]) -> None:
    """Append once earlier requests of the connection are in, topics exist and transactions are open."""
    async with place:
        await create_missing_topics(call)
        refused = await admission_error(call)
        if refused is None:
            # The topic may have been deleted meanwhile: another one may have its name.
            named = _named(call.request, call.context)
            pending = _PendingProduce(call._replace(request=named))
            pending.append_all()
            if pending.large:
                await pending.append_large()
    if refused is not None:
        _PendingProduce(call).refuse(refused)


async def _append_large(pending: _PendingProduce, place: AbstractAsyncContextManager[None]) -> None:
    """Later requests of the connection wait meanwhile."""
    async with place:
        await pending.append_large()


def _may_use(access: Access, transactional_id: str | None) -> bool:
    return transactional_id is None or access.permits(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    )


def _read(frame: memoryview, offset: int, context: RequestContext) -> ProduceRequest:
    """The request, with the names of the topics that it gives ids of."""
    return _named(decode_produce(frame, offset, context.api_version), context)


def _named(request: ProduceRequest, context: RequestContext) -> ProduceRequest:
    if context.api_version < FIRST_WITH_TOPIC_ID:
        return request
    names = context.services.state.topic_names
    named = [
        ProduceTarget(TopicPartition(names.get(topic_id, "") if topic_id else "", tp.partition), topic_id)
        for tp, topic_id in request.head.targets
    ]
    return request._replace(head=request.head._replace(targets=named))


def _remember(
    frame: memoryview, handler: Handler[ProduceRequest], context: RequestContext, request: ProduceRequest
) -> Known | None:
    generation = context.services.metadata.applied_index
    return context.connection.known.remember(frame, handler, context, request, generation)


@handles_hot(
    ApiKey.PRODUCE,
    versions=(0, 13),
    needs=asks((Operation.WRITE, ResourceType.TOPIC), (Operation.WRITE, ResourceType.TRANSACTIONAL_ID)),
    reads=_read,
    remembers=_remember,
)
def produce(call: Call[ProduceRequest]) -> None:
    """Versions before FIRST_SUPPORTED are offered because librdkafka wants to see them, and refused."""
    known, context, head = call.known, call.context, call.request.head
    queue = context.connection.produce_queue
    if (refused := _refusal(context, call.request)) is not None:
        _PendingProduce(call).refuse(refused)
    elif queue.is_busy or missing_topics(call) or to_admit(call):
        call.spawn(_append_in_turn(call, queue.take_place()))
    else:
        pending = _PendingProduce(call)
        pending.append_all()
        if pending.large:
            call.spawn(_append_large(pending, queue.take_place()))
        if known is not None:
            is_topic_known = head.targets[0].tp.topic != ""
            any_codec = context.api_version >= FIRST_WITH_ZSTD
            plain = head.acks != 0 and head.transactional_id is None
            if is_topic_known and any_codec and plain:
                known.start = _PendingBatch.append


def _is_zstd(records: memoryview | None) -> bool:
    """Whether the records are compressed with zstd; as in Kafka, the first batch tells."""
    if records is None or len(records) < HEADER_BYTES:
        return False
    return read_header(records).compression == Compression.ZSTD


def _refusal(context: RequestContext, request: ProduceRequest) -> RequestError | None:
    """Why the whole request is refused, whatever the topics are; None if it is not."""
    head = request.head
    if context.api_version < FIRST_SUPPORTED:
        return RequestError(ErrorCode.unsupported_version, "only message format v2 is accepted")
    if head.acks not in _ACKS:
        return RequestError(ErrorCode.invalid_required_acks, "acks must be -1, 0 or 1")
    if context.api_version < FIRST_WITH_ZSTD and any(map(_is_zstd, request.records)):
        return RequestError(
            ErrorCode.unsupported_compression_type, f"zstd needs version {FIRST_WITH_ZSTD} or later (KIP-110)"
        )
    if not _may_use(context.access, head.transactional_id):
        return RequestError(ErrorCode.transactional_id_authorization_failed)
    return None
