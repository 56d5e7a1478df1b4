"""The audit log's entries of changes: what was admitted and done, never what was refused or failed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from chronik.model import ErrorCode, Unavailable
from chronik.security.acls import Operation, ResourceType
from chronik.server.changes import CHANGES, changed_by
from chronik.server.handlers import all_handlers, delete_acls
from chronik.wire.api import ApiKey
from tests.unit.server.test_gate import ACL, ACL_FILTER, MARKER, REQUESTS, Closed, acl

ASKED = sorted(CHANGES & set(REQUESTS))
BOTH = ("mine", "hers")
PARTITIONS = [{"name": name, "partitions": [{"partition_index": 0, "offset": 0}]} for name in BOTH]
CONFIGS = [{"resource_type": 2, "resource_name": name, "configs": []} for name in BOTH]
NEW = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("new-mine", "hers-new")]
SOME: dict[ApiKey, tuple[dict[str, Any], str]] = {
    ApiKey.CREATE_TOPICS: ({"topics": NEW, "timeout": 1000}, "new-mine"),
    ApiKey.DELETE_TOPICS: ({"topics": [{"name": name} for name in BOTH], "timeout": 1000}, "mine"),
    ApiKey.CREATE_PARTITIONS: (
        {"topics": [{"name": name, "count": 2} for name in BOTH], "timeout": 1000},
        "mine",
    ),
    ApiKey.DELETE_RECORDS: ({"topics": PARTITIONS, "timeout": 1000}, "mine"),
    ApiKey.ALTER_CONFIGS: ({"resources": CONFIGS}, "mine"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ({"resources": CONFIGS}, "mine"),
}
"""Requests about a topic that the caller may change and one that it may not, and what is noted of each."""

DONE = {
    ApiKey.DELETE_TOPICS: "orders",
    ApiKey.CREATE_ACLS: "orders",
    ApiKey.DELETE_ACLS: "*, kafka-cluster",
    ApiKey.ALTER_CONFIGS: "orders, 1, g",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "orders, 1, g",
    ApiKey.CREATE_PARTITIONS: "orders",
    ApiKey.ALTER_CLIENT_QUOTAS: "user a",
    ApiKey.UPDATE_FEATURES: "",
}
"""What is noted of test_gate's requests by somebody with all rights. The others fail, for want of a partition
or of live nodes, or change nothing."""


class Audited(Closed):
    def __init__(self) -> None:
        super().__init__()
        self.trail = self.services.audit
        self.trail.is_on = self.trail.with_changes = True

    def changes(self) -> list[tuple[str, str]]:
        return [(one.action, one.resource) for one in self.trail.take(100) if one.allowed]

    def allow_all(self) -> None:
        self.allow(*(acl(Operation.ALL, kind) for kind in ResourceType))


@pytest.mark.parametrize("api_key", ASKED, ids=lambda key: key.name)
def test_what_was_refused_is_no_change(api_key: ApiKey) -> None:
    harness = Audited()
    harness.topic()
    version, fields, _ = REQUESTS[api_key]
    harness.call(api_key, version, **fields)
    assert harness.changes() == []


@pytest.mark.parametrize("api_key", ASKED, ids=lambda key: key.name)
def test_what_was_done_is_noted_and_what_failed_is_not(api_key: ApiKey) -> None:
    harness = Audited()
    harness.topic()
    harness.allow_all()
    version, fields, _ = REQUESTS[api_key]
    harness.call(api_key, version, **fields)
    done = DONE.get(api_key)
    assert harness.changes() == ([] if done is None else [(api_key.name.lower(), done)])


@pytest.mark.parametrize("api_key", SOME, ids=lambda key: key.name)
def test_of_a_request_the_admitted_part_alone_is_noted(api_key: ApiKey) -> None:
    harness = Audited()
    for name in BOTH:
        harness.topic(name)
        harness.replicas.add(name)
    harness.allow(
        acl(Operation.ALL, ResourceType.TOPIC, resource_name="mine"),
        acl(Operation.ALL, ResourceType.TOPIC, resource_name="new-mine"),
    )
    fields, expected = SOME[api_key]
    harness.call(api_key, REQUESTS[api_key][0], **fields)
    assert harness.changes() == [(api_key.name.lower(), expected)]


def test_parts_that_the_handler_refuses_are_not_noted() -> None:
    harness = Audited()
    harness.topic("old")
    harness.allow_all()
    names = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("old", "new", "a b")]
    harness.call(ApiKey.CREATE_TOPICS, 7, topics=names, timeout=1000)
    assert harness.changes() == [("create_topics", "new")]
    harness.call(ApiKey.CREATE_TOPICS, 7, topics=names, timeout=1000)
    harness.call(ApiKey.CREATE_TOPICS, 7, topics=[NEW[0]], timeout=1000, validate_only=True)
    assert harness.changes() == []


def test_names_come_from_the_answer_where_the_request_has_none() -> None:
    harness = Audited()
    topic_id = harness.topic("by-id")
    harness.allow_all()
    harness.call(ApiKey.DELETE_TOPICS, 6, topics=[{"name": None, "topic_id": topic_id}], timeout=1000)
    bad = {**ACL, "operation": 1}
    harness.call(ApiKey.CREATE_ACLS, 3, creations=[bad, {**ACL, "resource_name": "good"}])
    harness.call(ApiKey.DELETE_ACLS, 3, filters=[{**ACL_FILTER, "resource_name_filter": "good"}])
    entity = [{"entity_type": "user", "entity_name": None}]
    quota = {"entity": entity, "ops": [{"key": "producer_byte_rate", "value": 9.0, "remove": False}]}
    harness.call(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[quota], validate_only=False)
    assert harness.changes() == [
        ("delete_topics", "by-id"),
        ("create_acls", "good"),
        ("delete_acls", "good"),
        ("alter_client_quotas", "user <default>"),
    ]


def test_what_ran_out_of_time_is_noted_since_it_may_be_carried_out() -> None:
    harness = Audited()
    harness.allow_all()

    async def never(_data: bytes) -> int:
        return await asyncio.get_running_loop().create_future()

    harness.log.append = never  # type: ignore[method-assign]
    answer = harness.call(ApiKey.CREATE_TOPICS, 7, topics=[NEW[0]], timeout=1)
    assert answer.topics[0].error_code == ErrorCode.request_timed_out
    assert harness.changes() == [("create_topics", "new-mine")]


def test_what_was_committed_is_noted_though_the_leader_did_not_answer() -> None:
    harness = Audited()
    harness.allow_all()
    append = harness.log.append

    async def broken(data: bytes) -> int:
        await append(data)
        raise Unavailable("the connection to node 2 broke")

    harness.log.append = broken  # type: ignore[method-assign]
    answer = harness.call(ApiKey.CREATE_TOPICS, 7, topics=[NEW[0]], timeout=1000)
    assert answer.topics[0].error_code == ErrorCode.not_controller
    assert "new-mine" in harness.store.state.topics
    assert harness.changes() == [("create_topics", "new-mine")]


def test_a_request_of_several_entries_is_noted_though_the_leader_is_lost_after_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delete_acls, "ACLS_AT_ONCE", 1)
    harness = Audited()
    harness.allow_all()
    held, append = len(harness.store.state.security.acls), harness.log.append

    async def once(data: bytes) -> int:
        harness.log.unavailable = len(harness.store.state.security.acls) < held
        return await append(data)

    harness.log.append = once  # type: ignore[method-assign]
    everything = {**ACL_FILTER, "resource_type_filter": 1, "resource_name_filter": None}
    answer = harness.call(ApiKey.DELETE_ACLS, 3, filters=[everything])
    assert answer.filter_results[0].error_code == ErrorCode.not_controller
    assert len(harness.store.state.security.acls) == held - 1
    assert [action for action, _ in harness.changes()] == ["delete_acls"]


def test_groups_whose_coordinator_did_not_answer_may_be_deleted() -> None:
    codes = (ErrorCode.coordinator_not_available, ErrorCode.not_coordinator)
    results = [{"group_id": code.name, "error_code": code} for code in codes]
    noted = changed_by(ApiKey.DELETE_GROUPS, SimpleNamespace(), {"results": results})
    assert noted == "coordinator_not_available"


@pytest.mark.parametrize(("principal", "is_noted"), [("Node:2", False), ("User:mallory", True)])
def test_transaction_markers_are_noted_of_users(principal: str, is_noted: bool) -> None:
    harness = Audited()
    harness.topic()
    harness.allow_all()
    harness.access = harness.authorizer.access(principal, "10.0.0.9")

    async def written(_marker: Any, tps: Any) -> dict[Any, ErrorCode]:
        return dict.fromkeys(tps, ErrorCode.none)

    harness.services.transactions.markers.write_local = written  # type: ignore[method-assign]
    harness.call(ApiKey.WRITE_TXN_MARKERS, 1, markers=[MARKER])
    assert harness.changes() == ([("write_txn_markers", "orders")] if is_noted else [])


def test_every_change_that_may_be_refused_in_part_can_say_so() -> None:
    """Else the request would be answered with an error after a part of it was done and noted."""
    in_part = {ResourceType.TOPIC, ResourceType.GROUP}
    for handler in all_handlers():
        if handler.api_key in CHANGES and any(kind in in_part for _, kind in handler.needs.demands):
            assert handler.on_error is not None, handler.api_key.name
