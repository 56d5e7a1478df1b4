"""Reading the closed segments of nodes that run: begun and cancelled by a person, looked at by page."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from chronik.admin.context import AdminContext
from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.admin.needs import BY_NODE
from chronik.admin.peers import understood
from chronik.model import Int32, NodeId, Unavailable
from chronik.security.acls import Operation, ResourceType
from chronik.server.gate import on_cluster
from chronik.storage.verifying import SegmentCheck

ASK_SECONDS: Final = 5.0


class VerifyBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    node_id: Int32 | None = None
    """Null: every node that is alive."""
    cancel: bool = False
    """End the run that is under way instead of beginning one."""


class VerifyHere(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cancel: bool = False


class NodeVerification(msgspec.Struct, frozen=True, kw_only=True):
    node_id: NodeId
    report: SegmentCheck | None = None
    """Null when the node did not answer."""
    problem: str | None = None


class Verifications(msgspec.Struct, frozen=True):
    nodes: list[NodeVerification]


def _named(body: VerifyBody) -> list[str]:
    which = "all nodes" if body.node_id is None else f"node {body.node_id}"
    return [which, "cancel"] if body.cancel else [which]


@endpoint(
    "GET",
    "/admin/verify",
    needs=on_cluster(Operation.DESCRIBE),
    summary="How far the checks of nodes' segments are, and what they found",
    answer=Verifications,
)
async def verify_status(call: HttpCall) -> Verifications:
    """Findings stand under the topics that the caller may DESCRIBE; all are counted."""
    return await _ask_all(call, sorted(call.context.state.brokers), None)


@endpoint(
    "POST",
    "/admin/verify",
    needs=on_cluster(Operation.ALTER),
    summary="Check the closed segments of a node that runs, or of all nodes",
    body=VerifyBody,
    answer=Verifications,
    access=HttpAccess.CHANGE,
    about=_named,
)
async def verify(call: HttpCall) -> Verifications:
    """Reads checksums, order of offsets and indexes, slowly, and repairs nothing. One run at a time on a
    node. `chronik verify` reads the rest too, of a node that is stopped."""
    wanted: VerifyBody = call.body
    brokers = call.context.state.brokers
    if wanted.node_id is not None and wanted.node_id not in brokers:
        raise HttpError(404, "no_such_node", f"The cluster has no node {wanted.node_id}.")
    nodes = sorted(brokers) if wanted.node_id is None else [wanted.node_id]
    return await _ask_all(call, nodes, VerifyHere(cancel=wanted.cancel))


@endpoint(
    "GET",
    "/_node/verify",
    needs=BY_NODE,
    summary="How far the check of this node's segments is; nodes ask each other",
    answer=SegmentCheck,
)
async def verify_status_node(call: HttpCall) -> SegmentCheck:
    return call.context.verifier.report


@endpoint(
    "POST",
    "/_node/verify",
    needs=BY_NODE,
    summary="Begin or end the check of this node's segments; nodes ask each other",
    body=VerifyHere,
    answer=SegmentCheck,
    access=HttpAccess.CHANGE,
)
async def verify_node(call: HttpCall) -> SegmentCheck:
    return _act(call.context, call.body)


def _act(context: AdminContext, wanted: VerifyHere) -> SegmentCheck:
    """A second start leaves the run alone that is under way, as a second cancel does."""
    if wanted.cancel:
        context.verifier.cancel()
    else:
        context.verifier.start()
    return context.verifier.report


async def _ask_all(call: HttpCall, nodes: list[NodeId], wanted: VerifyHere | None) -> Verifications:
    return Verifications(list(await asyncio.gather(*(_ask(call, node_id, wanted) for node_id in nodes))))


async def _ask(call: HttpCall, node_id: NodeId, wanted: VerifyHere | None) -> NodeVerification:
    context = call.context
    if node_id == context.node_id:
        report = context.verifier.report if wanted is None else _act(context, wanted)
    else:
        try:
            answer = await context.peers.ask(
                node_id,
                "GET" if wanted is None else "POST",
                "/_node/verify",
                wanted,
                timeout_s=ASK_SECONDS,
                authorization=call.authorization,
            )
            report = understood(node_id, answer, SegmentCheck)
        except (Unavailable, HttpError) as error:
            return NodeVerification(node_id=node_id, problem=str(error))
    shown = [one for one in report.findings if _may_see(call, one.topic)]
    file = report.file if call.access.on_cluster(Operation.ALTER) else None
    return NodeVerification(
        node_id=node_id, report=msgspec.structs.replace(report, findings=shown, file=file)
    )


def _may_see(call: HttpCall, topic: str) -> bool:
    return call.access.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic)
