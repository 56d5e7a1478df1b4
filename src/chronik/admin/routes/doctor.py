"""What is wrong with the cluster and with the machine of each node, and what to do about it."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from chronik.admin.context import AdminContext
from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.admin.needs import BY_NODE
from chronik.admin.peers import understood
from chronik.config import ConfigError, Settings
from chronik.config_sources import doubts_about, environment
from chronik.doctor.cluster import Kind, look_at_cluster
from chronik.doctor.findings import Finding, State, unknown, wrong
from chronik.doctor.machine import look_at_machine
from chronik.doctor.start import look_at_start
from chronik.doctor.store import look_at_store
from chronik.model import ChronikError, NodeId, Unavailable
from chronik.security.acls import Operation, ResourceType
from chronik.server.gate import on_cluster
from chronik.server.open_doors import check_doors

ASK_SECONDS: Final = 10.0
"""Longer than a node waits for its object store and for its ports."""
STUCK_AFTER_S_MAX: Final = 15.0
_KINDS: Final[dict[Kind, ResourceType]] = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
}


class DoctorQuery(msgspec.Struct, frozen=True, kw_only=True):
    stuck_after_s: float = 3.0
    """A group that rebalances for longer is stuck; the call waits for as long as one rebalances."""


class FindingView(msgspec.Struct, frozen=True, kw_only=True):
    check: str
    state: State
    message: str
    fix: str | None = None
    node_id: NodeId | None = None
    """Whose machine it is about; null: the cluster."""


class NodeFindings(msgspec.Struct, frozen=True):
    findings: list[FindingView]


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    findings: list[FindingView]
    """What is wrong first."""


@endpoint(
    "GET",
    "/admin/doctor",
    needs=on_cluster(Operation.DESCRIBE),
    summary="What is wrong with the cluster and its nodes' machines, and what to do",
    query=DoctorQuery,
    answer=Diagnosis,
    deadline_s=60.0,
)
async def doctor(call: HttpCall) -> Diagnosis:
    """Changes nothing. Names only what the caller may DESCRIBE. One call at a time, 503 if too many wait."""
    if not 0 <= call.query.stuck_after_s <= STUCK_AFTER_S_MAX:
        raise HttpError(400, "invalid_query", f"stuck_after_s is 0 to {STUCK_AFTER_S_MAX:g}.")
    nodes = sorted(call.context.state.brokers)
    async with call.context.doctor.turn():
        of_cluster, *of_nodes = await asyncio.gather(
            _look_at_cluster(call), *(_look_at_node(call, node_id) for node_id in nodes)
        )
    findings = [*of_cluster, *(one for found in of_nodes for one in found)]
    order = ("wrong", "warning", "unknown", "ok")
    return Diagnosis(findings=sorted(findings, key=lambda one: order.index(one.state)))


@endpoint(
    "GET",
    "/_node/doctor",
    needs=BY_NODE,
    summary="What is wrong with this node's machine; nodes ask each other",
    answer=NodeFindings,
    access=HttpAccess.STATUS,
)
async def doctor_node(call: HttpCall) -> NodeFindings:
    return NodeFindings(await _look_here(call.context))


async def _look_here(context: AdminContext) -> list[FindingView]:
    findings = await asyncio.to_thread(_look_at_machine, context.settings)
    findings += await look_at_store(context.settings)
    return [_view(one, context.node_id) for one in findings]


def _look_at_machine(settings: Settings) -> list[Finding]:
    """Blocking. What `chronik doctor` says on the node's machine."""
    refusal = None
    try:
        check_doors(settings)
    except ConfigError as error:
        refusal = str(error)
    doubts = doubts_about(settings, environment())
    return [
        *look_at_start(settings, refusal=refusal, doubts=doubts, is_running=True),
        *look_at_machine(settings),
    ]


async def _look_at_cluster(call: HttpCall) -> list[FindingView]:
    def sees(kind: Kind, name: str) -> bool:
        return call.access.allows(Operation.DESCRIBE, _KINDS[kind], name)

    try:
        found = await look_at_cluster(
            call.context.loopback.cluster(),
            expected=sorted(call.context.state.brokers),
            stuck_after_s=call.query.stuck_after_s,
            sees=sees,
        )
    except ChronikError as error:
        found = [
            wrong(
                "cluster",
                f"not all could be asked: {error}",
                "Start the nodes that are down, or look into their logs for why they do not answer.",
            )
        ]
    return [_view(one, None) for one in found]


async def _look_at_node(call: HttpCall, node_id: NodeId) -> list[FindingView]:
    context = call.context
    if node_id == context.node_id:
        return await _look_here(context)
    try:
        answer = await context.peers.ask(
            node_id, "GET", "/_node/doctor", timeout_s=ASK_SECONDS, authorization=call.authorization
        )
        return understood(node_id, answer, NodeFindings).findings
    except (Unavailable, HttpError) as error:
        return [_view(unknown("machine", f"it could not be asked: {error}"), node_id)]


def _view(one: Finding, node_id: NodeId | None) -> FindingView:
    return FindingView(check=one.check, state=one.state, message=one.message, fix=one.fix, node_id=node_id)
