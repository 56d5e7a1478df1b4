"""The history of one record in the cluster, from the answers of all its replicas."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

import msgspec

from chronik.admin.context import AdminContext
from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.admin.explaining import (
    ArchiveState,
    BatchFacts,
    ClientFacts,
    FollowerAck,
    IndexState,
    RecordQuestion,
    ReplicaFacts,
    facts_here,
)
from chronik.admin.needs import BY_NODE, on_topic
from chronik.admin.peers import understood
from chronik.admin.routes.topics import known_topic
from chronik.client.transactions import Transactions
from chronik.metadata.commands import RemoteLog
from chronik.model import ChronikError, ErrorCode, Int32, Int64, NodeId, RequestError, Unavailable
from chronik.security.acls import Operation, ResourceType
from chronik.security.quotas import CONSUMER_RATE

ASK_SECONDS: Final = 3.0


class ExplainQuery(msgspec.Struct, frozen=True, kw_only=True):
    partition: Int32
    offset: Int64


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    node_id: NodeId
    is_leader: bool
    is_in_sync: bool
    facts: ReplicaFacts | None = None
    """Null when the node did not answer."""
    problem: str | None = None
    acknowledged: FollowerAck | None = None
    """Null: not yet, or not known, as of records that were written before the leader began to lead. Of the
    leader itself: between the batch's LogAppendTime and the first acknowledgement of a follower, as far as
    there are."""


class RemoteCopy(msgspec.Struct, frozen=True, kw_only=True):
    """What of the partition is in the object store."""

    has_record: bool
    start_offset: int
    end_offset: int
    """The store has everything from the start to here."""
    object: str | None = None
    """The object that holds the record; null if it is not there, or the store did not tell."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    topic_id: str
    partition: int
    offset: int
    leader: NodeId
    """-1: nobody leads the partition now."""
    leader_epoch: int
    reported_by: NodeId
    """The node whose batch and offsets are shown: the leader, or another replica if it does not answer."""
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    """Consumers see records before it."""
    last_stable_offset: int
    """Consumers with isolation.level=read_committed see records before it."""
    batch: BatchFacts | None
    """Null: compaction removed the record; or it is in the object store alone, and that did not tell."""
    client: ClientFacts | None = None
    """Who wrote the batch; null if no node remembers, or the caller may not DESCRIBE the cluster."""
    transactional_id: str | None = None
    """Null: none, no coordinator knows it any more, or the caller may not DESCRIBE it."""
    replicas: list[ReplicaReport]
    index: IndexState | None
    archive: ArchiveState
    remote: RemoteCopy | None = None
    """Null: nothing of the partition is in an object store."""


@endpoint(
    "GET",
    "/admin/topics/{name}/explain",
    needs=on_topic(Operation.READ),
    summary="One record's way: batch, files, replicas, search index, archive",
    query=ExplainQuery,
    answer=Explanation,
    access=HttpAccess.DATA,
    quota=CONSUMER_RATE,
)
async def explain(call: HttpCall) -> Explanation:
    """Works on any node. Shows no key and no value."""
    query: ExplainQuery = call.query
    topic = known_topic(call.context, call.path["name"])
    registered = next((one for one in topic.partitions if one.partition == query.partition), None)
    if registered is None:
        raise RequestError(
            ErrorCode.unknown_topic_or_partition,
            f"{topic.name} has the partitions 0 to {len(topic.partitions) - 1}, not {query.partition}.",
        )
    question = RecordQuestion(
        topic=topic.name, topic_id=str(topic.topic_id), partition=query.partition, offset=query.offset
    )
    leader = registered.leader if call.context.state.is_alive(registered.leader) else -1

    async def ask(node_id: NodeId) -> ReplicaReport:
        facts, problem = await _ask(call.context, node_id, question, call.authorization)
        return ReplicaReport(
            node_id=node_id,
            is_leader=node_id == leader,
            is_in_sync=node_id in registered.isr,
            facts=facts,
            problem=problem,
        )

    reports = list(await asyncio.gather(*map(ask, registered.replicas)))
    facts = _most_reliable(reports)
    if facts is None:
        problems = "; ".join(f"node {one.node_id}: {one.problem}" for one in reports)
        raise Unavailable(f"no replica of {topic.name}-{query.partition} answers ({problems})")
    _require_within(question, facts)
    if not call.access.on_cluster(Operation.DESCRIBE):
        facts = _without_client(facts)
        reports = [
            msgspec.structs.replace(one, facts=None if one.facts is None else _without_client(one.facts))
            for one in reports
        ]
    acks = _when_each_had_it(leader, registered.leader_epoch, facts)
    reports = [msgspec.structs.replace(one, acknowledged=acks.get(one.node_id)) for one in reports]
    return Explanation(
        topic=topic.name,
        topic_id=question.topic_id,
        partition=query.partition,
        offset=query.offset,
        leader=leader,
        leader_epoch=registered.leader_epoch,
        reported_by=facts.node_id,
        log_start_offset=facts.log_start_offset,
        log_end_offset=facts.log_end_offset,
        high_watermark=facts.high_watermark,
        last_stable_offset=facts.last_stable_offset,
        batch=facts.batch,
        client=facts.client,
        transactional_id=await _transactional_id(call, facts.batch),
        replicas=reports,
        index=facts.index,
        archive=facts.archive,
        remote=_remote_copy(registered.remote, query.offset, facts.remote_object),
    )


def _without_client(facts: ReplicaFacts) -> ReplicaFacts:
    """Who may read a topic need not know the addresses of those who write to it."""
    return msgspec.structs.replace(facts, client=None)


def _when_each_had_it(leader: NodeId, leader_epoch: int, facts: ReplicaFacts) -> dict[NodeId, FollowerAck]:
    """The leader's acknowledgements, with what the batch itself tells of the time of its append."""
    acks = {ack.node_id: ack for ack in facts.followers}
    appended_ms = None
    batch = facts.batch
    if batch is not None and batch.timestamp_type == "LogAppendTime" and batch.leader_epoch == leader_epoch:
        appended_ms = batch.max_timestamp_ms
        acks = {
            node: ack if ack.after_ms is not None else msgspec.structs.replace(ack, after_ms=appended_ms)
            for node, ack in acks.items()
        }
    first_ms = min((ack.by_ms for ack in acks.values()), default=None)
    if appended_ms is not None:
        acks[leader] = FollowerAck(node_id=leader, after_ms=appended_ms, by_ms=appended_ms)
    elif first_ms is not None:
        acks[leader] = FollowerAck(node_id=leader, after_ms=None, by_ms=first_ms)
    return acks


async def _transactional_id(call: HttpCall, batch: BatchFacts | None) -> str | None:
    """Who wrote the batch, as long as its coordinator knows the producer id."""
    if batch is None or batch.producer_id is None or not batch.is_transactional:
        return None
    transactions = Transactions(call.context.loopback.cluster())
    try:
        async with asyncio.timeout(ASK_SECONDS):
            listed = await transactions.list(producer_ids=[batch.producer_id])
    except (ChronikError, TimeoutError):
        return None
    names = [one.transactional_id for one in listed]
    may_see = partial(call.access.allows, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)
    return next(filter(may_see, names), None)


def _remote_copy(remote: RemoteLog | None, offset: int, object_name: str | None) -> RemoteCopy | None:
    if remote is None or remote.start_offset == remote.end_offset:
        return None
    return RemoteCopy(
        has_record=remote.start_offset <= offset < remote.end_offset,
        start_offset=remote.start_offset,
        end_offset=remote.end_offset,
        object=object_name,
    )


@endpoint(
    "POST",
    "/_node/explain",
    needs=BY_NODE,
    summary="What this node's replica says of a record; nodes ask each other",
    body=RecordQuestion,
    answer=ReplicaFacts,
    access=HttpAccess.DATA,
)
async def explain_node(call: HttpCall) -> ReplicaFacts:
    return await facts_here(call.context, call.body)


def _most_reliable(reports: list[ReplicaReport]) -> ReplicaFacts | None:
    """The leader's answer, else that of an in-sync replica, else that of any other."""
    answered = [one for one in reports if one.facts is not None]
    answered.sort(key=lambda one: (not one.is_leader, not one.is_in_sync))
    return answered[0].facts if answered else None


def _require_within(question: RecordQuestion, facts: ReplicaFacts) -> None:
    name, offset = f"{question.topic}-{question.partition}", question.offset
    if offset < facts.log_start_offset:
        raise RequestError(
            ErrorCode.offset_out_of_range,
            f"Offset {offset} of {name} is gone: retention or DeleteRecords removed everything before "
            f"{facts.log_start_offset}, where the log starts now (see retention.ms and retention.bytes).",
        )
    if offset >= facts.log_end_offset:
        last = facts.log_end_offset - 1
        written = f"the last one is {last}" if last >= facts.log_start_offset else "the log is empty"
        raise RequestError(
            ErrorCode.offset_out_of_range,
            f"Offset {offset} of {name} has not been written yet: {written}.",
        )


async def _ask(
    context: AdminContext, node_id: NodeId, question: RecordQuestion, authorization: str | None
) -> tuple[ReplicaFacts | None, str | None]:
    try:
        if node_id == context.node_id:
            return await facts_here(context, question), None
        answer: Any = await context.peers.ask(
            node_id, "POST", "/_node/explain", question, timeout_s=ASK_SECONDS, authorization=authorization
        )
        return understood(node_id, answer, ReplicaFacts), None
    except (Unavailable, HttpError, RequestError) as error:
        return None, str(error)
