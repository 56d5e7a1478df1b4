"""More partitions for a topic; who writes to one of them."""

from __future__ import annotations

import msgspec

from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.needs import on_topic
from chronik.admin.routes.topics import known_topic
from chronik.client.transactions import Transactions
from chronik.model import Int32, NodeId, TopicPartition
from chronik.security.acls import Operation
from chronik.server.topics import plan_partitions


class MorePartitions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    count: Int32
    """How many the topic has afterwards."""
    dry_run: bool = False


class PartitionsAdded(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    before: int
    after: int
    replicas: tuple[tuple[NodeId, ...], ...]
    """The replicas of each added partition, preferred leader first."""


class ProducersQuery(msgspec.Struct, frozen=True, kw_only=True):
    partition: Int32


class ProducerView(msgspec.Struct, frozen=True, kw_only=True):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    transaction_start_offset: int | None
    """Null: it has no transaction open in the partition."""


class ProducerList(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    producers: list[ProducerView]


@endpoint(
    "POST",
    "/admin/topics/{name}/partitions",
    needs=on_topic(Operation.ALTER),
    summary="Give a topic more partitions",
    body=MorePartitions,
    answer=PartitionsAdded,
    access=HttpAccess.CHANGE,
)
async def add_partitions(call: HttpCall) -> PartitionsAdded:
    """With `dry_run` it only says where they would be. Afterwards a key may belong to another partition."""
    wanted: MorePartitions = call.body
    topic = known_topic(call.context, call.path["name"])
    command = plan_partitions(call.context.services, topic, wanted.count, None)
    if not wanted.dry_run:
        call.context.quotas.charge_mutation(call.caller.principal, len(command.assignments))
        await call.context.services.metadata.submit(command)
    return PartitionsAdded(
        topic=topic.name,
        before=command.first_partition,
        after=command.first_partition + len(command.assignments),
        replicas=command.assignments,
    )


@endpoint(
    "GET",
    "/admin/topics/{name}/producers",
    needs=on_topic(Operation.READ),
    summary="The producers that a partition's leader remembers",
    query=ProducersQuery,
    answer=ProducerList,
)
async def producers(call: HttpCall) -> ProducerList:
    """It also says where each one's open transaction begins."""
    topic = known_topic(call.context, call.path["name"])
    tp = TopicPartition(topic.name, call.query.partition)
    found = await Transactions(call.context.loopback.cluster()).producers(tp)
    return ProducerList(
        topic=tp.topic,
        partition=tp.partition,
        producers=[
            ProducerView(
                producer_id=one.producer_id,
                producer_epoch=one.producer_epoch,
                last_sequence=one.last_sequence,
                last_timestamp_ms=one.last_timestamp_ms,
                transaction_start_offset=None
                if one.transaction_start_offset < 0
                else one.transaction_start_offset,
            )
            for one in found
        ],
    )
