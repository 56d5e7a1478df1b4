"""Adding and removing nodes, saying who votes, moving replicas. The cluster's membership does the work."""

from __future__ import annotations

import msgspec

from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.cluster.operations import ClusterOperations
from chronik.model import Int32
from chronik.security.acls import Operation
from chronik.server.gate import on_cluster


class AddNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    node_id: Int32
    kafka: str
    """host:port"""
    wal: str
    raft: str
    http: str | None = None


class RemoveNodeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    node_id: Int32
    force: bool = False
    """Remove it even if its replicas cannot be moved away first."""


class NodeNamed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    node_id: Int32


class Rebalance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    dry_run: bool = False


class Changed(msgspec.Struct, frozen=True):
    message: str
    moves: int = 0


def _membership(call: HttpCall) -> ClusterOperations:
    if call.context.membership is None:
        raise HttpError(
            409, "single_node", "This node is a cluster by itself: start it with peers to change its members."
        )
    return call.context.membership


@endpoint(
    "POST",
    "/admin/add-node",
    needs=on_cluster(Operation.ALTER),
    summary="Add a node",
    body=AddNode,
    answer=Changed,
    access=HttpAccess.CHANGE,
    about=lambda body: [f"node {body.node_id}"],
)
async def add_node(call: HttpCall) -> Changed:
    """The node may be started before or after; it gets replicas with the next rebalance."""
    added: AddNode = call.body
    return Changed(await _membership(call).add_node(msgspec.structs.asdict(added)))


@endpoint(
    "POST",
    "/admin/remove-node",
    needs=on_cluster(Operation.ALTER),
    summary="Drain and remove a node",
    body=RemoveNodeBody,
    answer=Changed,
    access=HttpAccess.CHANGE,
    deadline_s=600.0,
    about=lambda body: [f"node {body.node_id}"],
)
async def remove_node(call: HttpCall) -> Changed:
    """Moves its leaderships and replicas to the others first; answers when the node can be switched off."""
    return Changed(await _membership(call).remove_node(call.body.node_id, force=call.body.force))


@endpoint(
    "POST",
    "/admin/promote-node",
    needs=on_cluster(Operation.ALTER),
    summary="Have a node vote on metadata",
    body=NodeNamed,
    answer=Changed,
    access=HttpAccess.CHANGE,
    deadline_s=60.0,
    about=lambda body: [f"node {body.node_id}"],
)
async def promote_node(call: HttpCall) -> Changed:
    """If there are enough voters, another one becomes an observer. Answers when the change is made."""
    return Changed(await _membership(call).promote(call.body.node_id))


@endpoint(
    "POST",
    "/admin/demote-node",
    needs=on_cluster(Operation.ALTER),
    summary="Have a node only observe metadata",
    body=NodeNamed,
    answer=Changed,
    access=HttpAccess.CHANGE,
    deadline_s=60.0,
    about=lambda body: [f"node {body.node_id}"],
)
async def demote_node(call: HttpCall) -> Changed:
    """Another node becomes a voter in its place. Answers when the change is made."""
    return Changed(await _membership(call).demote(call.body.node_id))


@endpoint(
    "POST",
    "/admin/rebalance",
    needs=on_cluster(Operation.ALTER),
    summary="Spread replicas and leaders evenly",
    body=Rebalance,
    answer=Changed,
    access=HttpAccess.CHANGE,
    deadline_s=600.0,
)
async def rebalance(call: HttpCall) -> Changed:
    """Answers when everything has moved; with `dry_run`, what would."""
    moved = await _membership(call).rebalance(dry_run=call.body.dry_run)
    if not moved.replicas and not moved.leaders:
        return Changed("Nothing to move.")
    verb = "would move" if call.body.dry_run else "moved"
    return Changed(f"{moved.replicas} replicas and {moved.leaders} leaders {verb}.", moved.replicas)
