"""Produce: a batch goes from the frame into the log; the answer leaves when enough replicas have it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

from chronik.model import ErrorCode, RequestError, TopicPartition
from chronik.records.batch import HEADER_BYTES, read_header
from chronik.replication.partition import ACKS_ALL
from chronik.server.dispatch import HotCall, Repeat, RequestContext, Responder, error_of, handles_hot
from chronik.server.repeated_produce import RepeatedProduce, too_late
from chronik.server.topics import ensure_topic
from chronik.transactions.coordinator import ProducerIdentity
from chronik.wire.api import ApiKey
from chronik.wire.produce import (
    FIRST_SUPPORTED,
    NodeEndpoint,
    ProducePartition,
    ProduceRequest,
    ProduceResult,
    decode_produce,
    encode_produce_response,
)

log = logging.getLogger(__name__)

FIRST_WITH_ABORTABLE: Final = 11
FIRST_THAT_ADDS: Final = 12
"""From here on clients leave it to the broker to add partitions to their transaction."""

_RETRY_LATER: Final = (
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)
_LEADER_ERRORS: Final = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)


class _PendingProduce:
    """A produce request between its appends and its answer."""

    __slots__ = ("_call", "_leaders", "_left", "_request", "_timer", "results")

    def __init__(self, call: HotCall, request: ProduceRequest) -> None:
        self._call = call
        self._request = request
        self._left = 1
        """What the answer waits for: the appending itself, then every batch that is not acknowledged yet."""
        self._leaders: set[int] | None = None
        """Nodes that the answer sends the client to."""
        self._timer: asyncio.TimerHandle | None = None
        self.results: list[ProduceResult] = []

    def append_all(self) -> None:
        """Put every batch into its log, in the order of the request, without an await."""
        request = self._request
        services = self._call.context.services
        now_ms = services.now_ms()
        acks = request.acks
        in_transaction = request.transactional_id is not None
        for data in request.partitions:
            result = ProduceResult(data.topic, data.topic_id, data.partition)
            self.results.append(result)
            try:
                topic = data.topic or self._topic_of(data)
                partition = services.replicas.leader(TopicPartition(topic, data.partition))
                if not data.records:
                    raise RequestError(ErrorCode.invalid_record, "the request carries no records")
                appended = partition.append(data.records, acks, now_ms, in_transaction=in_transaction)
            except RequestError as error:
                self._refuse(result, error)
            except Exception as error:
                self._refuse(result, self._unexpected(error))
            else:
                result.log_append_time_ms = appended.log_append_time_ms
                result.log_start_offset = partition.log.log_start_offset
                if acks:
                    self._left += 1
                    acked = partial(self._acked, result, appended.base_offset)
                    partition.when_acked(appended.next_offset, acks, acked)
        if acks == 0:
            self._finish_silently()
            return
        if self._left > 1 and acks == ACKS_ALL:
            wait_s = max(request.timeout_ms, 0) / 1000
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._time_out)
        self._one_less()

    def _topic_of(self, data: ProducePartition) -> str:
        if data.topic_id is None:
            return data.topic or ""
        topic = self._call.context.services.state.topic_names.get(data.topic_id)
        if topic is None:
            raise RequestError(ErrorCode.unknown_topic_id, f"no topic has the id {data.topic_id}")
        return topic

    def _unexpected(self, error: Exception) -> RequestError:
        code, message = error_of(error, ErrorCode.not_leader_or_follower)
        if code == ErrorCode.unknown_server_error:
            log.error("an append failed", exc_info=error)
        return RequestError(code, message)

    def _refuse(self, result: ProduceResult, error: RequestError) -> None:
        result.error_code = error.code
        result.error_message = error.message
        result.base_offset = -1
        if error.code in _LEADER_ERRORS and result.topic is not None:
            found = self._call.context.services.state.partition(
                TopicPartition(result.topic, result.partition)
            )
            if found is not None:
                result.current_leader = (found.leader, found.leader_epoch)
                self._leaders = {found.leader, *(self._leaders or ())}

    def _acked(self, result: ProduceResult, base_offset: int, error: RequestError | None) -> None:
        if error is None:
            result.base_offset = base_offset
        else:
            self._refuse(result, error)
        self._one_less()

    def refuse(self, error: RequestError) -> None:
        """Answer that no batch was taken."""
        for data in self._request.partitions:
            result = ProduceResult(data.topic, data.topic_id, data.partition)
            self.results.append(result)
            self._refuse(result, error)
        self._answer()

    def _one_less(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._answer()

    def _time_out(self) -> None:
        late = too_late()
        for result in self.results:
            if result.base_offset < 0 and result.error_code == ErrorCode.none:
                self._refuse(result, late)
        self._left = 0
        self._answer()

    def _answer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        header = self._call.context.header
        endpoints = leader_endpoints(self._call, self._leaders) if self._leaders else None
        frame = encode_produce_response(header.api_version, header.correlation_id, self.results, endpoints)
        self._call.responder.respond([frame])

    def _finish_silently(self) -> None:
        """acks=0: a failure is told by closing the connection, so that the client looks again who leads."""
        if any(result.error_code != ErrorCode.none for result in self.results):
            self._call.responder.close()
        else:
            self._call.responder.respond(None)


def leader_endpoints(call: HotCall, node_ids: set[int]) -> list[NodeEndpoint]:
    brokers = call.context.services.state.brokers
    found = []
    for node_id in sorted(node_ids):
        broker = brokers.get(node_id)
        endpoint = broker.endpoints.get("kafka") if broker is not None else None
        if broker is not None and endpoint is not None:
            found.append(NodeEndpoint(node_id, endpoint.host, endpoint.port, broker.rack))
    return found


def _refuse_all(call: HotCall, request: ProduceRequest, code: ErrorCode, message: str) -> None:
    header = call.context.header
    results = [
        ProduceResult(data.topic, data.topic_id, data.partition, error_code=code, error_message=message)
        for data in request.partitions
    ]
    if request.acks == 0:
        call.responder.close()
    else:
        call.responder.respond([encode_produce_response(header.api_version, header.correlation_id, results)])


def _missing_topics(call: HotCall, request: ProduceRequest) -> Sequence[str]:
    services = call.context.services
    topics = services.state.topics
    missing = []
    for data in request.partitions:
        if data.topic and data.topic not in topics:
            missing.append(data.topic)
    return missing if missing and services.settings.auto_create_topics else ()


async def _admit_then_append(
    call: HotCall, request: ProduceRequest, producer: ProducerIdentity, tps: Collection[TopicPartition]
) -> None:
    """The first batches of a transaction in their partitions: its coordinator must know of them (KIP-890)."""
    gate, version = call.context.services.gate, call.context.api_version
    refused: RequestError | None = None
    async with gate.turn(producer.producer_id):
        # What came before in this producer's order may have opened the transaction here meanwhile.
        new = [tp for tp in tps if _opens_transaction(call, producer.producer_id, tp)]
        try:
            if new:
                adds = version >= FIRST_THAT_ADDS
                await gate.admit(request.transactional_id or "", producer, new, adds=adds)
        except Exception as error:
            code, message = error_of(error, ErrorCode.coordinator_not_available)
            refused = RequestError(_told(code, version), message)
        if refused is None:
            _PendingProduce(call, request).append_all()
    if refused is not None:
        _refuse_all(call, request, refused.code, refused.message or "")


def _told(code: ErrorCode, version: int) -> ErrorCode:
    """Codes that the version's clients answer as they should: with a retry, an abort, or by giving up."""
    if code is ErrorCode.transaction_abortable and version < FIRST_WITH_ABORTABLE:
        return ErrorCode.invalid_txn_state
    if code is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if code in _RETRY_LATER and version < FIRST_THAT_ADDS:
        return ErrorCode.not_enough_replicas
    return code


def _opens_transaction(call: HotCall, producer_id: int, tp: TopicPartition) -> bool:
    partition = call.context.services.replicas.get(tp)
    if partition is None:
        return False
    producers = partition.log.producers
    return producers is None or not producers.has_open_transaction(producer_id)


def _to_admit(
    call: HotCall, request: ProduceRequest
) -> tuple[ProducerIdentity, Collection[TopicPartition]] | None:
    """Who writes to which partitions, if a coordinator has to be asked or earlier writes still wait."""
    services = call.context.services
    producer: ProducerIdentity | None = None
    tps = []
    for data in request.partitions:
        if data.records is None or len(data.records) < HEADER_BYTES:
            continue
        header = read_header(data.records)
        if not header.is_transactional:
            continue
        topic = data.topic if data.topic_id is None else services.state.topic_names.get(data.topic_id)
        tps.append(TopicPartition(topic or "", data.partition))
        producer = ProducerIdentity(header.producer_id, header.producer_epoch)
    if producer is None:
        return None
    if services.gate.is_busy(producer.producer_id) or any(
        _opens_transaction(call, producer.producer_id, tp) for tp in tps
    ):
        return producer, tps
    return None


def _admit_and_append(call: HotCall, request: ProduceRequest) -> None:
    """Append now, unless a transaction's coordinator has to be asked first."""
    if request.transactional_id is not None and (admission := _to_admit(call, request)):
        call.context.services.spawn(_admit_then_append(call, request, *admission))
    else:
        _PendingProduce(call, request).append_all()


async def _create_then_append(call: HotCall, request: ProduceRequest, missing: Sequence[str]) -> None:
    for topic in dict.fromkeys(missing):
        try:
            await ensure_topic(call.context.services, topic)
        except Exception as error:
            # The append below answers unknown_topic_or_partition, which clients answer with a retry.
            log.warning("topic %s could not be created on first use: %s", topic, error)
    _admit_and_append(call, request)


def _refuse_repeated(
    context: RequestContext, data: ProducePartition, responder: Responder, error: RequestError
) -> None:
    call = HotCall(context, memoryview(b""), 0, responder)
    _PendingProduce(call, ProduceRequest(None, 1, 0, [data])).refuse(error)


def _repeat_of(call: HotCall, request: ProduceRequest) -> Repeat | None:
    """What answers this request's like, if they will be that simple: one batch, and an answer."""
    if not request.records_at or not request.acks:
        return None
    data = request.partitions[0]
    services = call.context.services
    topic = data.topic or (services.state.topic_names.get(data.topic_id) if data.topic_id else None) or ""
    partition = services.replicas.get(TopicPartition(topic, data.partition))
    if partition is None:
        return None
    start = call.buffer[: request.records_at].tobytes()
    return RepeatedProduce(start, call.context, request, partition, _refuse_repeated)


@handles_hot(ApiKey.PRODUCE, versions=(0, 13), advertised_from=0)
def produce(call: HotCall) -> Repeat | None:
    version = call.context.api_version
    request = decode_produce(call.buffer, call.offset, version)
    if version < FIRST_SUPPORTED:
        _refuse_all(call, request, ErrorCode.unsupported_version, "only message format v2 is accepted")
    elif request.acks not in (ACKS_ALL, 0, 1):
        _refuse_all(call, request, ErrorCode.invalid_required_acks, "acks must be -1, 0 or 1")
    elif missing := _missing_topics(call, request):
        call.context.services.spawn(_create_then_append(call, request, missing))
    else:
        _admit_and_append(call, request)
        return _repeat_of(call, request)
    return None
