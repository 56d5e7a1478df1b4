"""Moving replicas by a plan that is looked at first: the plan, the moves, and those that are under way."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable

import msgspec

from chronik.admin.context import AdminContext
from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.admin.routes.topics import known_topic
from chronik.cluster.operations import STEPS_A_TURN
from chronik.cluster.placement import Slot
from chronik.cluster.rebalance import PARTITIONS_A_STEP, plan_moves_steps
from chronik.metadata.reassignment import is_moving, target_of
from chronik.metadata.values import Topic
from chronik.model import Int32, NodeId, RequestError, TopicPartition
from chronik.security.acls import Operation
from chronik.server.gate import on_cluster
from chronik.server.reassigning import plan_reassignment
from chronik.tasks import in_slices


class PlanBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topics: list[str] | None = None
    """Null: all."""
    drain: list[Int32] = []
    """Nodes from which every replica is taken away; without any, replicas are spread evenly."""


class MoveView(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    before: tuple[NodeId, ...]
    after: tuple[NodeId, ...]
    size_bytes: int | None
    """Size of the replica on this node; null where there is none."""


class MovePlan(msgspec.Struct, frozen=True):
    moves: list[MoveView]


class WantedReplicas(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: str
    partition: Int32
    replicas: tuple[Int32, ...] | None
    """Preferred leader first; null gives up a move that is under way."""


class Moves(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    moves: list[WantedReplicas]


class MovesBegun(msgspec.Struct, frozen=True, kw_only=True):
    begun: int
    refused: list[str]
    """A sentence for each partition that could not be moved."""


class MoveUnderWay(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    replicas: tuple[NodeId, ...]
    """Old and new ones."""
    adding: tuple[NodeId, ...]
    removing: tuple[NodeId, ...]
    in_sync: tuple[NodeId, ...]


class MovesUnderWay(msgspec.Struct, frozen=True):
    moves: list[MoveUnderWay]


@endpoint(
    "POST",
    "/admin/reassign/plan",
    needs=on_cluster(Operation.DESCRIBE),
    summary="How replicas would be spread evenly, or taken away from nodes",
    body=PlanBody,
    answer=MovePlan,
)
async def reassign_plan(call: HttpCall) -> MovePlan:
    """Changes nothing: `POST /admin/reassign` begins the moves. Partitions that move already are left out."""
    wanted: PlanBody = call.body
    state = call.context.state
    if unknown := sorted(set(wanted.drain) - state.brokers.keys()):
        raise HttpError(404, "no_such_node", f"The cluster has no node {unknown[0]}.")
    names = sorted(state.topics) if wanted.topics is None else list(dict.fromkeys(wanted.topics))
    topics = [known_topic(call.context, name) for name in names]
    async with call.context.planning.turn():
        return MovePlan(
            await in_slices(_plan(call.context, topics, dict.fromkeys(wanted.drain)), STEPS_A_TURN)
        )


def _plan(
    context: AdminContext, topics: Iterable[Topic], drained: Collection[NodeId]
) -> Generator[None, None, list[MoveView]]:
    """In steps, so that the loop goes on and the call's deadline can end it."""
    before: dict[TopicPartition, tuple[NodeId, ...]] = {}
    for topic in topics:
        for number, one in enumerate(topic.partitions):
            if not is_moving(one):
                before[TopicPartition(topic.name, one.partition)] = target_of(one)
            if number % PARTITIONS_A_STEP == 0:
                yield
    slots = [
        Slot(one.broker_id, one.rack)
        for one in context.state.live_brokers()
        if not one.draining and one.broker_id not in drained
    ]
    views = []
    for number, move in enumerate((yield from plan_moves_steps(before, slots, drained))):
        views.append(
            MoveView(
                topic=move.tp.topic,
                partition=move.tp.partition,
                before=move.before,
                after=move.target,
                size_bytes=_size(context, move.tp),
            )
        )
        if number % PARTITIONS_A_STEP == 0:
            yield
    return views


@endpoint(
    "POST",
    "/admin/reassign",
    needs=on_cluster(Operation.ALTER),
    summary="Move replicas, or give moves up",
    body=Moves,
    answer=MovesBegun,
    access=HttpAccess.CHANGE,
    about=lambda body: [f"{move.topic}-{move.partition}" for move in body.moves],
)
async def reassign(call: HttpCall) -> MovesBegun:
    """Answers when the moves have begun; `GET /admin/reassign` tells how they go on."""
    services, state = call.context.services, call.context.state
    refused: list[str] = []
    planned = []
    wanted = {TopicPartition(move.topic, move.partition): move for move in call.body.moves}
    if len(wanted) < len(call.body.moves):
        raise HttpError(400, "invalid_body", "A partition is named twice.")
    for tp, move in wanted.items():
        try:
            planned.append((tp, plan_reassignment(state, tp, move.replicas, may_resize=False)))
        except RequestError as error:
            refused.append(f"{tp}: {error.message or error.code.name}")
    for tp, why in await services.metadata.submit_each(planned):
        refused.append(f"{tp}: {why.message or why.code.name}")
    return MovesBegun(begun=len(call.body.moves) - len(refused), refused=refused)


@endpoint(
    "GET",
    "/admin/reassign",
    needs=on_cluster(Operation.DESCRIBE),
    summary="Replicas that are on the move",
    answer=MovesUnderWay,
)
async def reassign_under_way(call: HttpCall) -> MovesUnderWay:
    return MovesUnderWay(
        [
            MoveUnderWay(
                topic=topic.name,
                partition=one.partition,
                replicas=one.replicas,
                adding=one.adding,
                removing=one.removing,
                in_sync=one.isr,
            )
            for _, topic in sorted(call.context.state.topics.items())
            for one in topic.partitions
            if is_moving(one)
        ]
    )


def _size(context: AdminContext, tp: TopicPartition) -> int | None:
    here = context.services.replicas.get(tp)
    return None if here is None else here.size_bytes
