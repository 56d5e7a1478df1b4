"""Transactions: which are open, and ending one that hangs."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.admin.needs import BY_NODE
from chronik.client.transactions import ActiveProducer, TransactionListing, Transactions
from chronik.model import ErrorCode, Int16, Int32, Int64, NodeId, RequestError, TopicPartition
from chronik.security.acls import Operation, ResourceType
from chronik.server.access import refusal
from chronik.server.gate import asks
from chronik.transactions.markers import Marker

DESCRIBED_AT_ONCE: Final = 16
LISTED_MAX: Final = 500
ASK_SECONDS: Final = 10.0
_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


class TransactionView(msgspec.Struct, frozen=True, kw_only=True):
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int | None = None
    coordinator: NodeId
    started_ms: int | None = None
    """Null: no transaction is open. So are epoch, timeout and partitions."""
    timeout_ms: int | None = None
    partitions: list[str] = []
    may_abort: bool


class TransactionList(msgspec.Struct, frozen=True, kw_only=True):
    transactions: list[TransactionView]
    """Open ones first."""
    count: int
    """How many the caller may see; more than are listed if there are very many."""


class AbortBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    transactional_id: str | None = None
    topic: str | None = None
    """Instead of an id: with partition and producer, what hangs there though no coordinator knows it."""
    partition: Int32 | None = None
    producer_id: Int64 | None = None


class AbortedBody(msgspec.Struct, frozen=True):
    message: str


class MarkerBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: str
    partition: Int32
    producer_id: Int64
    producer_epoch: Int16
    coordinator_epoch: Int32


def _aborted(body: AbortBody) -> list[str]:
    if body.transactional_id is not None:
        return [body.transactional_id]
    return [f"{body.topic}-{body.partition} producer {body.producer_id}"]


@endpoint(
    "GET",
    "/admin/transactions",
    needs=asks((Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)),
    summary="Transactional ids and what is open under them",
    answer=TransactionList,
)
async def transactions(call: HttpCall) -> TransactionList:
    client = Transactions(call.context.loopback.cluster())
    listed = [
        one
        for one in await client.list()
        if call.access.allows(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, one.transactional_id)
    ]
    listed.sort(key=lambda one: (one.state not in _OPEN, one.transactional_id))
    at_once = asyncio.Semaphore(DESCRIBED_AT_ONCE)

    async def view(one: TransactionListing) -> TransactionView:
        may_abort = call.access.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, one.transactional_id)
        short = TransactionView(
            transactional_id=one.transactional_id,
            state=one.state,
            producer_id=one.producer_id,
            coordinator=one.coordinator_id,
            may_abort=may_abort,
        )
        if one.state not in _OPEN:
            return short
        try:
            async with at_once:
                found = await client.describe(one.transactional_id)
        except RequestError as error:
            if error.code != ErrorCode.transactional_id_not_found:
                raise
            return short  # it expired since it was listed
        return msgspec.structs.replace(
            short,
            state=found.state,
            producer_epoch=found.producer_epoch,
            started_ms=None if found.started_at is None else int(found.started_at.timestamp() * 1000),
            timeout_ms=found.timeout_ms,
            partitions=[
                str(tp)
                for tp in found.partitions
                if call.access.allows(Operation.DESCRIBE, ResourceType.TOPIC, tp.topic)
            ],
        )

    views = await asyncio.gather(*map(view, listed[:LISTED_MAX]))
    return TransactionList(transactions=list(views), count=len(listed))


@endpoint(
    "POST",
    "/admin/transactions/abort",
    needs=asks((Operation.WRITE, ResourceType.TRANSACTIONAL_ID), (Operation.ALTER, ResourceType.CLUSTER)),
    summary="End a transaction that hangs",
    body=AbortBody,
    answer=AbortedBody,
    access=HttpAccess.CHANGE,
    about=_aborted,
)
async def abort_transaction(call: HttpCall) -> AbortedBody:
    """With an id: abort that transaction and fence its producer. With topic, partition and producer: write an
    abort marker past the coordinator, for a transaction that no coordinator knows any more."""
    wanted: AbortBody = call.body
    if wanted.transactional_id is not None:
        call.access.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, wanted.transactional_id)
        return await _abort_known(call, wanted.transactional_id)
    if wanted.topic is None or wanted.partition is None or wanted.producer_id is None:
        raise HttpError(
            400, "invalid_body", "Give a transactional id, or a topic, a partition and a producer id."
        )
    if not call.access.on_cluster(Operation.ALTER):
        raise RequestError(refusal(ResourceType.CLUSTER))
    return await _abort_hanging(call, TopicPartition(wanted.topic, wanted.partition), wanted.producer_id)


async def _abort_known(call: HttpCall, transactional_id: str) -> AbortedBody:
    client = Transactions(call.context.loopback.cluster())
    try:
        found = await client.describe(transactional_id)
    except RequestError as error:
        if error.code == ErrorCode.transactional_id_not_found:
            raise HttpError(404, "not_found", f"No transaction has the id {transactional_id!r}.") from None
        raise
    if found.started_at is None or found.state != "Ongoing":
        raise HttpError(
            409, "not_open", f"Transaction {transactional_id!r} is not open: its state is {found.state}."
        )
    await client.abort(transactional_id)
    return AbortedBody(f"{transactional_id} is aborted, its producer {found.producer_id} is fenced.")


async def _abort_hanging(call: HttpCall, tp: TopicPartition, producer_id: int) -> AbortedBody:
    context = call.context
    registered = context.state.partition(tp)
    if registered is None:
        raise RequestError(ErrorCode.unknown_topic_or_partition, f"There is no partition {tp}.")
    found = await _open_in(call, tp, producer_id)
    marker = MarkerBody(
        topic=tp.topic,
        partition=tp.partition,
        producer_id=producer_id,
        producer_epoch=found.producer_epoch,
        coordinator_epoch=max(found.coordinator_epoch, 0),
    )
    if registered.leader == context.node_id:
        await _write(call, marker)
    else:
        await context.peers.ask(
            registered.leader,
            "POST",
            "/_node/abort",
            marker,
            timeout_s=ASK_SECONDS,
            authorization=call.authorization,
        )
    start = found.transaction_start_offset
    return AbortedBody(f"{tp}: the transaction of producer {producer_id} from offset {start} is aborted.")


async def _open_in(call: HttpCall, tp: TopicPartition, producer_id: int) -> ActiveProducer:
    client = Transactions(call.context.loopback.cluster())
    for one in await client.producers(tp):
        if one.producer_id == producer_id and one.transaction_start_offset >= 0:
            return one
    raise HttpError(409, "not_open", f"Producer {producer_id} has no transaction open in {tp}.")


@endpoint(
    "POST",
    "/_node/abort",
    needs=BY_NODE,
    summary="Write an abort marker into a partition led here; nodes ask each other",
    body=MarkerBody,
    access=HttpAccess.CHANGE,
    about=lambda body: [f"{body.topic}-{body.partition} producer {body.producer_id}"],
)
async def abort_here(call: HttpCall) -> dict[str, str]:
    await _write(call, call.body)
    return {}


async def _write(call: HttpCall, body: MarkerBody) -> None:
    tp = TopicPartition(body.topic, body.partition)
    marker = Marker(
        producer_id=body.producer_id,
        producer_epoch=body.producer_epoch,
        coordinator_epoch=body.coordinator_epoch,
        is_commit=False,
    )
    codes = await call.context.services.transactions.markers.write_local(marker, [tp])
    if codes[tp] is not ErrorCode.none:
        raise RequestError(codes[tp], f"{tp}: {codes[tp].name.replace('_', ' ')}")
