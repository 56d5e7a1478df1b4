"""What a backup needs beside Kafka's own requests: users with their SCRAM credentials, and records restored
at their old offsets.

Nothing else shows credentials. Whoever has one can guess its password at leisure, and pass for the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.admin.needs import on_cluster_or_by_node
from chronik.admin.peers import understood
from chronik.admin.routes.topics import known_topic
from chronik.metadata import commands as c
from chronik.metadata.security import QuotaEntry, UserEntry
from chronik.model import ErrorCode, Int32, Int64, NodeId, RequestError, TopicPartition
from chronik.replication.partition import ACKS_ALL
from chronik.security.acls import AclBinding, Operation, check_binding
from chronik.security.quotas import check_entity, check_quota
from chronik.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS, Credential, check_credential
from chronik.server.access import Access
from chronik.server.config_changes import check_resource, set_configs
from chronik.server.gate import on_cluster
from chronik.server.services import Services

RECORDS_BYTES_MAX: Final = 64 * 1024 * 1024
METADATA_BYTES_MAX: Final = 64 * 1024 * 1024
COMMANDS_AT_ONCE: Final = 500
FORWARD_SECONDS: Final = 60.0
END_BYTES_MAX: Final = 64 * 1024
"""Of the answer that says where the log ends now."""
PRODUCER_ID_MAX: Final = 1 << 62
"""A restore goes no further, so that enough ids are left for new producers."""
ALL_BROKERS: Final = ""


class TopicShape(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    partitions: Int32
    replication_factor: Int32
    configs: dict[str, str]


class ClusterShape(msgspec.Struct, frozen=True, kw_only=True):
    """All of a cluster but its nodes and records."""

    cluster_id: str | None = None
    topics: list[TopicShape] = []
    broker_configs: dict[str, str] = {}
    """The configs of all brokers together."""
    group_configs: dict[str, dict[str, str]] = {}
    client_metrics: dict[str, dict[str, str]] = {}
    next_producer_id: Int64 = 0
    users: list[UserEntry] = []
    acls: list[AclBinding] = []
    quotas: list[QuotaEntry] = []


class BackupQuery(msgspec.Struct, frozen=True):
    with_users: bool = True
    """Users with their SCRAM credentials: super users and full API keys only."""


class RestoredRecords(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: Int32
    log_end_offset: Int64
    """The partition's current end offset. Refused if it ends elsewhere."""
    batches: bytes
    """Whole record batches."""


class RestoredEnd(msgspec.Struct, frozen=True, kw_only=True):
    log_end_offset: Int64


class AppliedChanges(msgspec.Struct, frozen=True, kw_only=True):
    changes: int


@endpoint(
    "GET",
    "/admin/backup/metadata",
    needs=on_cluster(Operation.ALTER),
    summary="Topics, configs, users, ACLs and quotas, for a backup",
    query=BackupQuery,
    answer=ClusterShape,
    access=HttpAccess.CHANGE,
)
async def backup_metadata(call: HttpCall) -> ClusterShape:
    """Includes the SCRAM credentials of users, unless they are not wanted: for super users and full API keys
    only. Leaves out delegation tokens."""
    with_users = call.query.with_users
    if with_users and not call.access.is_super:
        raise RequestError(
            ErrorCode.cluster_authorization_failed,
            "Users' credentials are shown to super users and full API keys only.",
        )
    state = call.context.state
    security = state.security.snapshot()
    return ClusterShape(
        cluster_id=state.cluster_id,
        topics=[
            TopicShape(
                name=topic.name,
                topic_id=str(topic.topic_id),
                partitions=len(topic.partitions),
                replication_factor=len(topic.partitions[0].replicas),
                configs=dict(topic.configs),
            )
            for _, topic in sorted(state.topics.items())
        ],
        broker_configs=dict(state.broker_configs.get(ALL_BROKERS, {})),
        group_configs=dict(state.group_configs),
        client_metrics=dict(state.client_metrics),
        next_producer_id=state.next_producer_id,
        users=list(security.users) if with_users else [],
        acls=list(security.acls),
        quotas=list(security.quotas),
    )


def _restored(shape: ClusterShape) -> Iterator[str]:
    yield from (one.user for one in shape.users)
    yield from (f"{one.principal} on {one.resource_name}" for one in shape.acls)
    for quota in shape.quotas:
        yield " ".join(f"{kind} {name or '<default>'}" for kind, name in quota.entity)
    yield from shape.broker_configs
    yield from shape.group_configs
    yield from shape.client_metrics


@endpoint(
    "POST",
    "/admin/restore/metadata",
    needs=on_cluster(Operation.ALTER),
    summary="Put back users, ACLs, quotas and configs of a backup",
    body=ClusterShape,
    answer=AppliedChanges,
    access=HttpAccess.CHANGE,
    body_bytes_max=METADATA_BYTES_MAX,
    deadline_s=600.0,
    about=_restored,
)
async def restore_metadata(call: HttpCall) -> AppliedChanges:
    """Adds to what is there. Create topics with CreateTopics first."""
    metadata = call.context.services.metadata
    commands = list(_commands(call.body, call.context.services, call.access))
    for some in _batches(commands):
        outcome = await metadata.submit(c.Batch(commands=tuple(some)))
        for part in outcome.parts:
            if part.refused is not None:
                raise RequestError(part.refused.code, part.refused.message)
    return AppliedChanges(changes=len(commands))


def _batches(commands: list[Any]) -> Iterator[list[Any]]:
    """Groups of commands, in order. One command holds many ACLs, so each of those is alone in its group."""
    some: list[Any] = []
    for command in commands:
        if some and (len(some) >= COMMANDS_AT_ONCE or isinstance(command, c.AddAcls)):
            yield some
            some = []
        some.append(command)
        if isinstance(command, c.AddAcls):
            yield some
            some = []
    if some:
        yield some


def _commands(shape: ClusterShape, services: Services, access: Access) -> Iterator[Any]:
    """The author of the backup's file is not trusted: each value is checked as a client's would be."""
    for user in shape.users:
        for credential in user.credentials:
            _check_credential(user.user, credential)
            yield c.PutCredential(user=user.user, credential=credential)
    _check_acls_and_quotas(shape)
    for start in range(0, len(shape.acls), COMMANDS_AT_ONCE):
        yield c.AddAcls(bindings=tuple(shape.acls[start : start + COMMANDS_AT_ONCE]))
    for quota in shape.quotas:
        yield c.SetQuota(entity=quota.entity, values=dict(quota.values))
    tables = (
        (c.BROKER_RESOURCE, {ALL_BROKERS: shape.broker_configs} if shape.broker_configs else {}),
        (c.GROUP_RESOURCE, shape.group_configs),
        (c.CLIENT_METRICS_RESOURCE, shape.client_metrics),
    )
    for resource_type, table in tables:
        for name, values in table.items():
            check_resource(services, resource_type, name)
            yield set_configs(services, access, resource_type, name, dict(values), replace=False)
    if shape.next_producer_id > PRODUCER_ID_MAX:
        raise RequestError(ErrorCode.invalid_request, "The backup's next producer id is out of range.")
    next_producer_id = services.state.next_producer_id
    if shape.next_producer_id > next_producer_id:
        # Batches name producer ids of the other cluster: new producers must get higher ones.
        yield c.AllocateProducerIds(broker_id=-1, count=shape.next_producer_id - next_producer_id)


def _check_credential(user: str, credential: Credential) -> None:
    """Each login pays for the iterations."""
    if credential.mechanism not in MECHANISMS:
        raise RequestError(
            ErrorCode.unsupported_sasl_mechanism, f"The backup's {user} has an unknown mechanism."
        )
    if not ITERATIONS_MIN <= credential.iterations <= ITERATIONS_MAX:
        raise RequestError(
            ErrorCode.unacceptable_credential,
            f"The backup's {user} has {credential.iterations} iterations: "
            f"{ITERATIONS_MIN} to {ITERATIONS_MAX} are accepted.",
        )
    try:
        check_credential(user, credential.salt)
    except ValueError as error:
        raise RequestError(
            ErrorCode.unacceptable_credential, f"The backup's {user[:100]}: {error}."
        ) from None


def _check_acls_and_quotas(shape: ClusterShape) -> None:
    try:
        for binding in shape.acls:
            check_binding(binding)
        for quota in shape.quotas:
            check_entity(quota.entity)
            for key, value in quota.values.items():
                check_quota(quota.entity, key, value)
    except ValueError as error:
        raise RequestError(ErrorCode.invalid_request, f"The backup's {error}.") from None


@endpoint(
    "POST",
    "/admin/restore/records",
    needs=on_cluster_or_by_node(Operation.ALTER),
    summary="Put back records of a backup at their offsets",
    body=RestoredRecords,
    answer=RestoredEnd,
    access=HttpAccess.CHANGE,
    body_bytes_max=RECORDS_BYTES_MAX,
    deadline_s=120.0,
    about=lambda body: [f"{body.topic}-{body.partition}"],
)
async def restore_records(call: HttpCall) -> RestoredEnd:
    """Any node hands it to the partition's leader; answers when all in-sync replicas have the records."""
    context, body = call.context, call.body
    topic = known_topic(context, body.topic)
    if not 0 <= body.partition < len(topic.partitions):
        raise RequestError(
            ErrorCode.unknown_topic_or_partition, f"There is no {body.topic}-{body.partition}."
        )
    leader: NodeId = topic.partitions[body.partition].leader
    if leader != context.node_id:
        if call.caller.signed is not None:
            raise HttpError(409, "not_leader", f"Node {context.node_id} does not lead {body.topic}.")
        answer = await context.peers.ask(
            leader,
            "POST",
            "/admin/restore/records",
            body,
            timeout_s=FORWARD_SECONDS,
            authorization=call.authorization,
            answer_bytes_max=END_BYTES_MAX,
        )
        return understood(leader, answer, RestoredEnd)
    partition = context.services.replicas.leader(TopicPartition(body.topic, body.partition))
    appended = partition.append_restored(
        memoryview(bytearray(body.batches)), body.log_end_offset, context.services.now_ms()
    )
    committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: RequestError | None) -> None:
        if not committed.done():
            committed.set_result(None) if error is None else committed.set_exception(error)

    partition.when_acked(appended.next_offset, ACKS_ALL, done)
    await committed
    return RestoredEnd(log_end_offset=appended.next_offset)
