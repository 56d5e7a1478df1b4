"""Every API, asked by somebody without rights and by somebody with just those that it declares."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from chronik.metadata import commands as c
from chronik.model import ErrorCode
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.security.acls import CLUSTER_NAME, AclBinding, Operation, ResourceType
from chronik.server.access import Access, Authorizer
from chronik.server.gate import NOTHING
from chronik.server.handlers import all_handlers
from chronik.wire.api import ApiKey, parse_request_header
from chronik.wire.schema import decode_response, encode_request
from tests.unit.server.harness import CONNECTION, Harness, answer
from tests.unit.server.live import live

TOPIC = ErrorCode.topic_authorization_failed
GROUP = ErrorCode.group_authorization_failed
CLUSTER = ErrorCode.cluster_authorization_failed
TXN = ErrorCode.transactional_id_authorization_failed
REFUSALS = {TOPIC, GROUP, CLUSTER, TXN, ErrorCode.delegation_token_authorization_failed}
HOT = {ApiKey.PRODUCE, ApiKey.FETCH}

TELEMETRY = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}
"""A client's own; Kafka asks for no right either."""
OPEN = {
    *(ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CLUSTER, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE),
    *TELEMETRY,
}
"""What needs no right: a client must be able to find the cluster and to say who it is."""
BY_SECRET_APIS = {ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN}
NO_TOKENS = ErrorCode.delegation_token_request_not_allowed

PRODUCER = {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0}
MEMBER = {"group_id": "g", "member_id": "m", "generation_id": 1}
COMMIT = [{"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
PARTITIONS = [{"name": "orders", "partitions": [{"partition_index": 0}]}]
MARKER = {
    "producer_id": 1,
    "producer_epoch": 0,
    "transaction_result": True,
    "topics": [{"name": "orders", "partition_indexes": [0]}],
    "coordinator_epoch": 0,
}
CONFIGS = [
    {"resource_type": kind, "resource_name": name} for kind, name in ((2, "orders"), (4, "1"), (32, "g"))
]

ACL = {
    "resource_type": 2,
    "resource_name": "orders",
    "resource_pattern_type": 3,
    "principal": "User:mallory",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
ACL_FILTER = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}

REQUESTS: dict[ApiKey, tuple[int, dict[str, Any], set[ErrorCode]]] = {
    ApiKey.LIST_OFFSETS: (7, {"replica_id": -1, "isolation_level": 0, "topics": PARTITIONS}, {TOPIC}),
    ApiKey.METADATA: (12, {"topics": [{"name": "orders"}]}, {TOPIC}),
    ApiKey.OFFSET_COMMIT: (8, {"group_id": "g", "topics": COMMIT}, {GROUP}),
    ApiKey.OFFSET_FETCH: (8, {"groups": [{"group_id": "g", "topics": None}]}, {GROUP}),
    ApiKey.FIND_COORDINATOR: (4, {"key_type": 0, "coordinator_keys": ["g"]}, {GROUP}),
    ApiKey.JOIN_GROUP: (9, {"group_id": "g", "protocol_type": "consumer", "protocols": []}, {GROUP}),
    ApiKey.HEARTBEAT: (4, MEMBER, {GROUP}),
    ApiKey.LEAVE_GROUP: (5, {"group_id": "g", "members": [{"member_id": "m"}]}, {GROUP}),
    ApiKey.SYNC_GROUP: (5, {**MEMBER, "assignments": []}, {GROUP}),
    ApiKey.DESCRIBE_GROUPS: (5, {"groups": ["g"]}, {GROUP}),
    ApiKey.LIST_GROUPS: (4, {}, set()),
    ApiKey.API_VERSIONS: (3, {"client_software_name": "x", "client_software_version": "1"}, set()),
    ApiKey.SASL_HANDSHAKE: (1, {"mechanism": "PLAIN"}, {ErrorCode.illegal_sasl_state}),
    ApiKey.SASL_AUTHENTICATE: (1, {"auth_bytes": b"x"}, {ErrorCode.illegal_sasl_state}),
    ApiKey.DESCRIBE_ACLS: (
        3,
        {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1},
        {CLUSTER},
    ),
    ApiKey.CREATE_ACLS: (3, {"creations": [ACL]}, {CLUSTER}),
    ApiKey.DELETE_ACLS: (3, {"filters": [ACL_FILTER]}, {CLUSTER}),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, {"users": None}, {CLUSTER}),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        0,
        {"deletions": [{"name": "alice", "mechanism": 1}], "upsertions": []},
        {CLUSTER},
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (1, {"components": [], "strict": False}, {CLUSTER}),
    ApiKey.ALTER_CLIENT_QUOTAS: (
        1,
        {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "a"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
                }
            ],
            "validate_only": False,
        },
        {CLUSTER},
    ),
    ApiKey.CREATE_DELEGATION_TOKEN: (2, {"renewers": [], "max_lifetime": -1}, {NO_TOKENS}),
    ApiKey.RENEW_DELEGATION_TOKEN: (2, {"hmac": b"x", "renew_period": -1}, {NO_TOKENS}),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (2, {"hmac": b"x", "expiry_time_period": -1}, {NO_TOKENS}),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (2, {"owners": None}, {NO_TOKENS}),
    ApiKey.CREATE_TOPICS: (7, {"topics": [{"name": "new", "num_partitions": 1}], "timeout": 1000}, {TOPIC}),
    ApiKey.DELETE_TOPICS: (6, {"topics": [{"name": "orders"}], "timeout": 1000}, {TOPIC}),
    ApiKey.DELETE_RECORDS: (2, {"topics": PARTITIONS, "timeout": 1000}, {TOPIC}),
    ApiKey.INIT_PRODUCER_ID: (4, {"transactional_id": "t", "transaction_timeout": 1000}, {TXN}),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        4,
        {"topics": [{"topic": "orders", "partitions": [{"partition": 0, "leader_epoch": 0}]}]},
        {TOPIC},
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        3,
        {
            "v3_and_below_transactional_id": "t",
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": "orders", "partitions": [0]}],
        },
        {TXN},
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (3, {**PRODUCER, "group_id": "g"}, {TXN}),
    ApiKey.END_TXN: (3, {**PRODUCER, "committed": True}, {TXN}),
    ApiKey.WRITE_TXN_MARKERS: (1, {"markers": [MARKER]}, {CLUSTER}),
    ApiKey.TXN_OFFSET_COMMIT: (3, {**PRODUCER, "group_id": "g", "topics": COMMIT}, {TXN}),
    ApiKey.DESCRIBE_CONFIGS: (4, {"resources": CONFIGS}, {TOPIC, GROUP, CLUSTER}),
    ApiKey.ALTER_CONFIGS: (2, {"resources": CONFIGS}, {TOPIC, GROUP, CLUSTER}),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (1, {"resources": CONFIGS}, {TOPIC, GROUP, CLUSTER}),
    ApiKey.DESCRIBE_LOG_DIRS: (4, {"topics": None}, {CLUSTER}),
    ApiKey.CREATE_PARTITIONS: (3, {"topics": [{"name": "orders", "count": 2}], "timeout": 1000}, {TOPIC}),
    ApiKey.DELETE_GROUPS: (2, {"groups_names": ["g"]}, {GROUP}),
    ApiKey.ELECT_LEADERS: (
        2,
        {"election_type": 0, "topic_partitions": [{"topic": "orders", "partitions": [0]}], "timeout": 1000},
        {CLUSTER},
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, {"topics": [], "timeout": 1000}, {CLUSTER}),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, {"topics": None, "timeout": 1000}, {CLUSTER}),
    ApiKey.OFFSET_DELETE: (0, {"group_id": "g", "topics": PARTITIONS}, {GROUP}),
    ApiKey.DESCRIBE_QUORUM: (0, {"topics": []}, {CLUSTER}),
    ApiKey.DESCRIBE_CLUSTER: (1, {}, set()),
    ApiKey.DESCRIBE_PRODUCERS: (0, {"topics": [{"name": "orders", "partition_indexes": [0]}]}, {TOPIC}),
    ApiKey.UNREGISTER_BROKER: (0, {"broker_id": 3}, {CLUSTER}),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, {"transactional_ids": ["t"]}, {TXN}),
    ApiKey.LIST_TRANSACTIONS: (0, {}, set()),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (
        0,
        {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["orders"]},
        {GROUP},
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, {"group_ids": ["g"]}, {GROUP}),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (
        2,
        {"dirs": [{"path": "/d", "topics": [{"name": "orders", "partitions": [0]}]}]},
        {CLUSTER},
    ),
    ApiKey.LIST_CONFIG_RESOURCES: (1, {"resource_types": []}, {CLUSTER}),
    ApiKey.UPDATE_FEATURES: (2, {"feature_updates": [], "timeout": 1000}, {CLUSTER}),
    ApiKey.SHARE_GROUP_HEARTBEAT: (1, {"group_id": "g", "member_id": "m", "member_epoch": 0}, {GROUP}),
    ApiKey.SHARE_FETCH: (1, {"group_id": "g", "member_id": "m", "share_session_epoch": 0}, {GROUP}),
    ApiKey.SHARE_ACKNOWLEDGE: (1, {"group_id": "g", "member_id": "m", "share_session_epoch": 0}, {GROUP}),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (0, {"client_instance_id": None}, set()),
    ApiKey.PUSH_TELEMETRY: (
        0,
        {"client_instance_id": None, "subscription_id": 0, "metrics": b""},
        {ErrorCode.invalid_request},
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, {"topics": [{"name": "orders"}]}, {TOPIC}),
}
"""Version, fields, and all error codes in the answer to somebody without rights, as Apache Kafka has them."""


def codes(answer: Any) -> Iterator[ErrorCode]:
    if dataclasses.is_dataclass(answer):
        for field in dataclasses.fields(answer):
            value = getattr(answer, field.name)
            if field.name.endswith("error_code"):
                yield value
            yield from codes(value)
    elif isinstance(answer, tuple | list):
        for item in answer:
            yield from codes(item)


def acl(operation: Operation, kind: ResourceType, **fields: Any) -> AclBinding:
    name = CLUSTER_NAME if kind is ResourceType.CLUSTER else "*"
    given = {"resource_name": name, "principal": "User:mallory", **fields}
    return AclBinding(resource_type=kind, operation=operation, **given)


class Closed(Harness):
    """A harness whose caller is User:mallory, with an authorizer in between."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.authorizer = Authorizer(self.store)
        self.access: Access = self.authorizer.access("User:mallory", "10.0.0.9")

    def frame(self, frame: bytes) -> bytes | None:
        header, offset = parse_request_header(frame, 4)
        connection = dataclasses.replace(CONNECTION, access=self.access)
        return asyncio.run(answer(self.dispatcher, header, frame, offset, connection))

    def allow(self, *bindings: AclBinding) -> None:
        self.submit(c.AddAcls(bindings=bindings))


def test_every_api_declares_what_it_needs() -> None:
    """A new API comes with its row here, or with a reason to be open."""
    declared = {handler.api_key: handler.needs for handler in all_handlers()}
    without = {key for key, needs in declared.items() if needs is NOTHING or not needs.demands}
    assert without == OPEN | BY_SECRET_APIS
    assert set(declared) == set(REQUESTS) | HOT


@pytest.mark.parametrize("api_key", REQUESTS, ids=lambda key: key.name)
def test_an_api_without_the_right(api_key: ApiKey) -> None:
    harness = Closed()
    harness.topic()
    before = harness.store.snapshot()
    version, fields, expected = REQUESTS[api_key]
    answer = harness.call(api_key, version, **fields)
    assert set(codes(answer)) - {ErrorCode.none} == expected
    if expected:
        assert harness.store.snapshot() == before, "nothing was changed"


@pytest.mark.parametrize(
    "api_key", [key for key in REQUESTS if key not in OPEN | BY_SECRET_APIS], ids=lambda key: key.name
)
def test_an_api_with_the_rights_that_it_declares(api_key: ApiKey) -> None:
    harness = Closed()
    harness.topic()
    needs = next(handler.needs for handler in all_handlers() if handler.api_key is api_key)
    harness.allow(*(acl(operation, kind) for operation, kind in needs.demands))
    version, fields, _ = REQUESTS[api_key]
    if api_key is ApiKey.FIND_COORDINATOR:
        fields = {**fields, "coordinator_keys": []}  # a real coordinator is asked below
    answer = harness.call(api_key, version, **fields)
    assert not set(codes(answer)) & REFUSALS


def test_metadata_hides_what_may_not_be_seen() -> None:
    harness = Closed()
    ids = {name: harness.topic(name) for name in ("seen", "hidden")}
    harness.allow(acl(Operation.WRITE, ResourceType.TOPIC, resource_name="seen"))
    everything = harness.call(ApiKey.METADATA, 12, topics=None)
    assert [topic.name for topic in everything.topics] == ["seen"]
    named = [{"name": name} for name in ("seen", "hidden", "missing")]
    asked = harness.call(ApiKey.METADATA, 12, topics=named, allow_auto_topic_creation=True)
    assert [(topic.name, topic.error_code) for topic in asked.topics] == [
        ("seen", ErrorCode.none),
        ("hidden", TOPIC),
        ("missing", TOPIC),
    ]
    assert asked.topics[1].topic_id is None
    assert "missing" not in harness.store.state.topics
    by_id = harness.call(ApiKey.METADATA, 12, topics=[{"name": None, "topic_id": ids["hidden"]}])
    assert (by_id.topics[0].name, by_id.topics[0].error_code) == (None, TOPIC)


def test_creating_by_first_use_needs_the_right_to_create() -> None:
    harness = Closed()
    harness.allow(acl(Operation.WRITE, ResourceType.TOPIC, resource_name="new"))
    wanted = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
    assert harness.call(ApiKey.METADATA, 12, **wanted).topics[0].error_code == TOPIC
    harness.allow(acl(Operation.CREATE, ResourceType.CLUSTER))
    assert harness.call(ApiKey.METADATA, 12, **wanted).topics[0].error_code == ErrorCode.none


def test_operations_that_are_told_are_those_that_are_allowed() -> None:
    harness = Closed()
    harness.topic()
    harness.allow(
        acl(Operation.READ, ResourceType.TOPIC),
        acl(Operation.ALTER, ResourceType.CLUSTER),
        acl(Operation.READ, ResourceType.GROUP),
    )
    read = 1 << Operation.READ | 1 << Operation.DESCRIBE
    alter = 1 << Operation.ALTER | 1 << Operation.DESCRIBE
    metadata = harness.call(
        ApiKey.METADATA,
        10,
        topics=None,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    assert metadata.topics[0].topic_authorized_operations == read
    assert metadata.cluster_authorized_operations == alter
    cluster = harness.call(ApiKey.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=True)
    assert cluster.cluster_authorized_operations == alter


def test_some_of_a_request_is_allowed() -> None:
    harness = Closed()
    harness.topic("mine")
    harness.topic("other")
    harness.allow(acl(Operation.ALL, ResourceType.TOPIC, resource_name="mine"))
    answer = harness.call(ApiKey.DELETE_TOPICS, 6, topics=[{"name": "other"}, {"name": "mine"}], timeout=1000)
    assert {topic.name: topic.error_code for topic in answer.responses} == {
        "mine": ErrorCode.none,
        "other": TOPIC,
    }
    assert set(harness.store.state.topics) == {"other"}


def test_a_revoked_right_is_gone_with_the_next_question() -> None:
    harness = Closed()
    harness.topic()
    right = acl(Operation.DESCRIBE, ResourceType.TOPIC)
    asked = (Operation.DESCRIBE, ResourceType.TOPIC, "orders")
    harness.allow(right)
    assert harness.access.allows(*asked)
    harness.submit(c.RemoveAcls(bindings=(right,)))
    assert not harness.access.allows(*asked)


class Answers:
    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue()

    def respond(self, buffers: list[Any] | None) -> None:
        self.frames.put_nowait(None if buffers is None else b"".join(buffers))

    def close(self) -> None:
        self.frames.put_nowait(None)

    def worked(self, seconds: float) -> None:
        pass


async def test_repeated_produces_and_waiting_fetches_obey_a_revoked_right(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        parts = node.node.parts
        await node.topic("orders")
        await node.topic("other")
        authorizer = Authorizer(parts.metadata)
        access = authorizer.access("User:mallory", "10.0.0.9")
        connection = dataclasses.replace(CONNECTION, access=access)
        answers = Answers()

        def start(key: ApiKey, version: int, correlation_id: int, **fields: Any) -> bool:
            """Whether the request was put together from what is known."""
            frame = memoryview(bytearray(encode_request(key, version, correlation_id, "x", fields)))[4:]
            header, offset = parse_request_header(frame)
            call = connection.known.recall(frame, answers, parts.metadata.applied_index)
            was_known = call is not None
            started = call or parts.dispatcher.read(header, frame, offset, connection, answers)
            started.start(parts.dispatcher)
            return was_known

        async def answered(key: ApiKey, version: int) -> Any:
            frame = await asyncio.wait_for(answers.frames.get(), 10)
            assert frame is not None
            return decode_response(key, version, frame, 4)[1]

        def produce(number: int, **more: Any) -> bool:
            records = bytes(build_batch([Record(key=None, value=b"x", timestamp_ms=1_000)]))
            data = [{"name": "orders", "partition_data": [{"index": 0, "records": records}]}]
            fields = {"acks": 1, "timeout": 1000, "topic_data": data, **more}
            return start(ApiKey.PRODUCE, 9, number, **fields)

        def fetch(number: int, wait_ms: int, topic: str = "orders") -> None:
            wanted = [{"topic": topic, "partitions": [{"partition": 0, "fetch_offset": 1}]}]
            limits = {"max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1 << 20}
            start(ApiKey.FETCH, 12, number, replica_id=-1, topics=wanted, **limits)

        async def produced() -> ErrorCode:
            answer = await answered(ApiKey.PRODUCE, 9)
            return answer.responses[0].partition_responses[0].error_code

        async def fetched() -> ErrorCode:
            return (await answered(ApiKey.FETCH, 12)).responses[0].partitions[0].error_code

        rights = (
            acl(Operation.WRITE, ResourceType.TOPIC, resource_name="orders"),
            acl(Operation.READ, ResourceType.TOPIC, resource_name="orders"),
        )
        produce(1)
        assert await produced() == TOPIC
        fetch(2, 0)
        assert await fetched() == TOPIC
        await parts.metadata.submit(c.AddAcls(bindings=rights))
        assert not produce(3)
        assert await produced() == ErrorCode.none
        assert produce(30), "known, and allowed"
        assert await produced() == ErrorCode.none
        produce(4, transactional_id="t")
        assert await produced() == TXN
        fetch(5, 0, "other")
        assert await fetched() == TOPIC

        # A fetch that waits for the third record; its right ends while it waits, then the record comes.
        wanted = [{"topic": "orders", "partitions": [{"partition": 0, "fetch_offset": 2}]}]
        start(
            ApiKey.FETCH, 12, 6, replica_id=-1, topics=wanted, max_wait=60_000, min_bytes=1, max_bytes=1 << 20
        )
        await parts.metadata.submit(c.RemoveAcls(bindings=rights))
        produce(7)
        assert await produced() == TOPIC
        assert produce(70), "known, and not allowed any more"
        assert await produced() == TOPIC
        own = CONNECTION
        frame = memoryview(bytearray(encode_request(ApiKey.PRODUCE, 9, 8, "x", _produce_fields())))[4:]
        header, offset = parse_request_header(frame)
        others = Answers()
        parts.dispatcher.read(header, frame, offset, own, others).start(parts.dispatcher)
        await asyncio.wait_for(others.frames.get(), 10)
        waited = await answered(ApiKey.FETCH, 12)
        partition = waited.responses[0].partitions[0]
        assert partition.error_code == TOPIC
        assert not partition.records


def _produce_fields() -> dict[str, Any]:
    records = bytes(build_batch([Record(key=None, value=b"x", timestamp_ms=1_000)]))
    data = [{"name": "orders", "partition_data": [{"index": 0, "records": records}]}]
    return {"acks": 1, "timeout": 1000, "topic_data": data}


def test_error_codes_are_found_wherever_they_stand() -> None:
    """The walk that the tests above rely on."""

    @dataclasses.dataclass
    class Part:
        partition_error_code: Enum

    @dataclasses.dataclass
    class Whole:
        parts: tuple[Part, ...]

    assert list(codes(Whole((Part(TOPIC),)))) == [TOPIC]


async def test_a_fetch_session_obeys_a_revoked_right(tmp_path: Path) -> None:
    async with live(tmp_path) as node:
        parts = node.node.parts
        await node.topic("orders")
        access = Authorizer(parts.metadata).access("User:mallory", "10.0.0.9")
        connection = dataclasses.replace(CONNECTION, access=access)
        right = acl(Operation.READ, ResourceType.TOPIC, resource_name="orders")
        await parts.metadata.submit(c.AddAcls(bindings=(right,)))
        answers = Answers()

        async def fetch(session_id: int, epoch: int, topics: list[dict[str, Any]]) -> Any:
            fields = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "topics": topics}
            fields |= {"session_id": session_id, "session_epoch": epoch}
            frame = memoryview(bytearray(encode_request(ApiKey.FETCH, 12, 1, "x", fields)))[4:]
            header, offset = parse_request_header(frame)
            parts.dispatcher.read(header, frame, offset, connection, answers).start(parts.dispatcher)
            answer = await asyncio.wait_for(answers.frames.get(), 10)
            return decode_response(ApiKey.FETCH, 12, answer or b"", 4)[1]

        first = await fetch(0, 0, [{"topic": "orders", "partitions": [{"partition": 0}]}])
        assert first.session_id
        assert not (await fetch(first.session_id, 1, [])).responses, "nothing new, and nothing named"
        await parts.metadata.submit(c.RemoveAcls(bindings=(right,)))
        after = await fetch(first.session_id, 2, [])
        assert [one.error_code for one in after.responses[0].partitions] == [TOPIC]


def test_an_unknown_version_of_api_versions_is_answered_with_those_there_are() -> None:
    """Its request cannot be read, which must not look as if nothing were left of it (KIP-511)."""
    harness = Closed()
    frame = encode_request(ApiKey.API_VERSIONS, 4, 5, "x", {"client_software_name": "a"})
    found = harness.frame(frame[:6] + b"\x00\x63" + frame[8:])
    assert found is not None
    _, body = decode_response(ApiKey.API_VERSIONS, 0, found, 4)
    assert body.error_code == ErrorCode.unsupported_version
    assert ApiKey.API_VERSIONS in {one.api_key for one in body.api_keys}
