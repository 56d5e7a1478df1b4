"""The nodes' own clients have rights of their own, and no more."""

from __future__ import annotations

import pytest

from chronik.metadata.events import Resync
from chronik.metadata.state import ClusterState
from chronik.security.acls import CLUSTER_NAME, OPERATIONS, Operation, ResourceType
from chronik.server.access import HTTP, NODE_PREFIX, QUERY, Authorizer

READING = {(Operation.READ, ResourceType.TOPIC), (Operation.DESCRIBE, ResourceType.TOPIC)}
RIGHTS = {
    QUERY: READING | {(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC)},
    HTTP: READING
    | {
        (Operation.WRITE, ResourceType.TOPIC),
        (Operation.READ, ResourceType.GROUP),
        (Operation.DESCRIBE, ResourceType.GROUP),
        (Operation.DELETE, ResourceType.GROUP),
        (Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        (Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
        (Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER),
    },
}


class _Bus:
    def listen(self, _listener: object) -> None:
        pass


class _Metadata:
    bus = _Bus()
    state = ClusterState()


@pytest.mark.parametrize("principal", [QUERY, HTTP, QUERY + "1", HTTP + "12"])
def test_a_client_of_the_nodes_may_do_its_task(principal: str) -> None:
    authorizer = Authorizer(_Metadata())  # type: ignore[arg-type]
    authorizer._on_event(Resync())
    asked = [(operation, kind) for kind, operations in OPERATIONS.items() for operation in operations]
    allowed = {
        (operation, kind)
        for operation, kind in asked
        if authorizer.decide(principal, "h", operation, kind, CLUSTER_NAME).allowed
    }
    assert allowed == RIGHTS[principal.rstrip("12")]
    assert authorizer.decide(NODE_PREFIX + "1", "h", *asked[0], CLUSTER_NAME).allowed
