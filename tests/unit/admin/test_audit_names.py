"""What the audit log says about a change: its object, whether the path or the body names it (X06)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from chronik.admin.endpoint import HttpAccess
from chronik.admin.routes import ENDPOINTS
from chronik.server.changes import joined

BODIES: dict[str, tuple[dict[str, Any], str]] = {
    "add_node": ({"node_id": 2, "kafka": "h:1", "wal": "h:2", "raft": "h:3"}, "node 2"),
    "remove_node": ({"node_id": 2}, "node 2"),
    "promote_node": ({"node_id": 3}, "node 3"),
    "demote_node": ({"node_id": 4}, "node 4"),
    "create_topic": ({"name": "orders"}, "orders"),
    "reassign": (
        {
            "moves": [
                {"topic": "orders", "partition": 0, "replicas": [1]},
                {"topic": "payments", "partition": 7, "replicas": None},
            ]
        },
        "orders-0, payments-7",
    ),
    "reset_offsets": ({"to": "earliest", "topics": [{"topic": "orders"}]}, "orders"),
    "abort_transaction": ({"transactional_id": "transfers"}, "transfers"),
    "abort_here": (
        {
            "topic": "orders",
            "partition": 1,
            "producer_id": 9,
            "producer_epoch": 0,
            "coordinator_epoch": 0,
        },
        "orders-1 producer 9",
    ),
    "make_key": ({"name": "grafana"}, "grafana"),
    "restore_metadata": (
        {
            "users": [{"user": "ada", "credentials": []}],
            "acls": [
                {"resource_type": 2, "resource_name": "orders", "principal": "User:eve", "operation": 3}
            ],
            "quotas": [{"entity": [["client-id", None], ["user", "bob"]], "values": {}}],
            "broker_configs": {"log.retention.ms": "1"},
            "group_configs": {"readers": {}},
            "client_metrics": {"all": {}},
        },
        "ada, User:eve on orders, client-id <default> user bob, log.retention.ms, readers, all",
    ),
    "restore_records": (
        {"topic": "orders", "partition": 2, "log_end_offset": 0, "batches": ""},
        "orders-2",
    ),
    "verify": ({"node_id": 2, "cancel": True}, "node 2, cancel"),
    "finalize_upgrade": ({"level": 2}, "level 2"),
    "change_levels": ({"log": "chronik.raft=debug"}, "chronik.raft=debug"),
}
OF_THE_CLUSTER = {
    *("rebalance", "set_schema_config", "delete_schema_config", "set_schema_mode", "delete_schema_mode"),
    *("take_audit", "registry_change_node", "verify_node"),
}
"""Name nothing: the first are about the whole cluster, the last are asked by nodes and never noted."""


def test_every_change_names_its_object() -> None:
    changes = [one for one in ENDPOINTS if one.access is HttpAccess.CHANGE and one.name not in OF_THE_CLUSTER]
    silent = {one.name for one in changes if not one.path_names and one.about is None and one.method != "GET"}
    assert silent == set()
    assert {one.name for one in changes if one.about is not None} == BODIES.keys()


@pytest.mark.parametrize("name", BODIES)
def test_what_the_audit_log_says_of_a_body(name: str) -> None:
    (endpoint,) = (one for one in ENDPOINTS if one.name == name)
    body, expected = BODIES[name]
    parsed = endpoint.parse_body(msgspec.json.encode(body))
    assert endpoint.about is not None
    assert joined(endpoint.about(parsed)) == expected


def test_a_hanging_transaction_is_named_by_its_partition() -> None:
    (endpoint,) = (one for one in ENDPOINTS if one.name == "abort_transaction")
    parsed = endpoint.parse_body(b'{"topic": "orders", "partition": 1, "producer_id": 9}')
    assert endpoint.about is not None
    assert list(endpoint.about(parsed)) == ["orders-1 producer 9"]
