"""Whether the transaction's coordinator lets a Produce request begin it in further partitions (KIP-890)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from chronik.model import ErrorCode, ProducerIdentity, RequestError, TopicPartition
from chronik.records.batch import HEADER_BYTES, read_header
from chronik.security.acls import Operation, ResourceType
from chronik.server.dispatch import Call
from chronik.server.errors import error_of
from chronik.wire.produce import ProduceRequest

__all__ = ["admission_error", "to_admit"]

FIRST_WITH_ABORTABLE: Final = 11
FIRST_THAT_ADDS: Final = 12
"""From this version on clients leave it to the broker to add partitions to their transaction."""

_RETRY_LATER: Final = (
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)


async def admission_error(call: Call[ProduceRequest]) -> RequestError | None:
    """Why the transaction's coordinator refuses these batches (KIP-890); None if they may be appended.

    While the coordinator is asked, a marker may end what the producer had open in another partition. So it is
    asked again until every partition in which the transaction begins now is one that it just confirmed.
    """
    version = call.context.api_version
    confirmed: Collection[TopicPartition] = ()
    while (admission := to_admit(call)) is not None and not set(admission[1]) <= set(confirmed):
        producer, confirmed = admission
        try:
            await call.context.services.transaction_verifier.verify(
                call.request.head.transactional_id or "", producer, confirmed, adds=version >= FIRST_THAT_ADDS
            )
        except Exception as error:
            code, message = error_of(error, ErrorCode.coordinator_not_available)
            return RequestError(_code_for(code, version), message)
    return None


def _code_for(code: ErrorCode, version: int) -> ErrorCode:
    """The code to which this version's clients react as they should: by a retry, an abort, or giving up."""
    if code is ErrorCode.transaction_abortable and version < FIRST_WITH_ABORTABLE:
        return ErrorCode.invalid_txn_state
    if code is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if code in _RETRY_LATER and version < FIRST_THAT_ADDS:
        return ErrorCode.not_enough_replicas
    return code


def _opens_transaction(call: Call[ProduceRequest], producer: ProducerIdentity, tp: TopicPartition) -> bool:
    partition = call.context.services.replicas.get(tp)
    if partition is None:
        return False
    producers = partition.log.producers
    return producers is None or not producers.has_open_transaction(*producer)


def to_admit(
    call: Call[ProduceRequest],
) -> tuple[ProducerIdentity, Collection[TopicPartition]] | None:
    """The producer and the partitions in which its transaction begins with this request: those that its
    coordinator has to be asked about. One that may not be written to does not become part of it."""
    head, batches = call.request
    access = call.context.access
    if head.transactional_id is None:
        return None
    producer: ProducerIdentity | None = None
    new = []
    for (tp, _), records in zip(head.targets, batches, strict=True):
        if records is None or len(records) < HEADER_BYTES:
            continue
        if not access.allows(Operation.WRITE, ResourceType.TOPIC, tp.topic):
            continue
        header = read_header(records)
        if not header.is_transactional:
            continue
        producer = ProducerIdentity(header.producer_id, header.producer_epoch)
        if _opens_transaction(call, producer, tp):
            new.append(tp)
    return (producer, new) if producer is not None and new else None
