"""At which level the cluster is, which levels its nodes know, and raising it: `chronik upgrade` by HTTP."""

from __future__ import annotations

import asyncio

import msgspec

from chronik.admin.endpoint import HttpAccess, HttpCall, endpoint
from chronik.admin.errors import HttpError
from chronik.doctor.levels import NodeLevels, Upgrade, released
from chronik.metadata.commands import SetLevel
from chronik.metadata.levels import FEATURE
from chronik.model import Int32, NodeId
from chronik.security.acls import Operation
from chronik.server.feature_levels import UpgradeType, check_feature
from chronik.server.gate import on_cluster


class NodeLevelsView(msgspec.Struct, frozen=True, kw_only=True):
    node_id: NodeId
    levels: tuple[int, int] | None
    """The lowest and the highest that it knows; null: it does not answer."""
    release: str | None
    """The release that brought its highest level; null if it does not answer, or is newer than this node."""


class UpgradeView(msgspec.Struct, frozen=True, kw_only=True):
    level: int
    """That of the cluster."""
    release: str | None
    """The release that brought it."""
    highest: int | None
    """The highest level that all nodes know; null while one does not answer."""
    can_finalize: bool
    next_step: str
    nodes: list[NodeLevelsView]


class Finalize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    level: Int32
    dry_run: bool = False


class Finalized(msgspec.Struct, frozen=True, kw_only=True):
    before: int
    level: int
    dry_run: bool


@endpoint(
    "GET",
    "/admin/upgrade",
    needs=on_cluster(Operation.DESCRIBE),
    summary="The cluster's level, and which levels its nodes know",
    answer=UpgradeView,
)
async def upgrade_status(call: HttpCall) -> UpgradeView:
    """A node may go back to the release before as long as the cluster is at that release's level."""
    context = call.context
    node_ids = sorted(context.state.brokers)
    levels = await asyncio.gather(*map(context.services.levels_of, node_ids))
    known = [
        NodeLevels(node_id, *one) for node_id, one in zip(node_ids, levels, strict=True) if one is not None
    ]
    level = context.state.level
    found = Upgrade(level=level, nodes=known)
    silent = [node_id for node_id, one in zip(node_ids, levels, strict=True) if one is None]
    return UpgradeView(
        level=level,
        release=released(level),
        highest=None if silent else found.highest,
        can_finalize=not silent and found.highest > level,
        next_step=_start_first(silent) if silent else found.next_step,
        nodes=[
            NodeLevelsView(node_id=node_id, levels=one, release=None if one is None else released(one[1]))
            for node_id, one in zip(node_ids, levels, strict=True)
        ],
    )


@endpoint(
    "POST",
    "/admin/upgrade/finalize",
    needs=on_cluster(Operation.ALTER),
    summary="Raise the cluster to a level that all its nodes know",
    body=Finalize,
    answer=Finalized,
    access=HttpAccess.CHANGE,
    about=lambda body: [f"level {body.level}"],
)
async def finalize_upgrade(call: HttpCall) -> Finalized:
    """There is no way back. With `dry_run`, whether it could be done."""
    services, wanted = call.context.services, call.body
    before = services.state.level
    if wanted.level == before:
        raise HttpError(409, "nothing_to_finalize", f"The cluster is at level {before} already.")
    await check_feature(FEATURE, wanted.level, UpgradeType.UPGRADE, services)
    if not wanted.dry_run:
        await services.metadata.submit(SetLevel(level=wanted.level))
    return Finalized(before=before, level=wanted.level, dry_run=wanted.dry_run)


def _start_first(silent: list[NodeId]) -> str:
    if len(silent) == 1:
        return f"node {silent[0]} does not answer: start or remove it before the upgrade is finalized"
    names = ", ".join(map(str, silent))
    return f"nodes {names} do not answer: start or remove them before the upgrade is finalized"
