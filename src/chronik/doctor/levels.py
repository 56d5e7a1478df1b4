"""Which releases the nodes of a cluster run, and whether an upgrade is under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from chronik.doctor.findings import Finding, ok, unknown, warning
from chronik.metadata.levels import FEATURE, LEVEL_FIRST, LEVELS
from chronik.model import NodeId

if TYPE_CHECKING:
    from chronik.client import Cluster


class NodeLevels(NamedTuple):
    node_id: NodeId
    low: int
    high: int

    @property
    def release(self) -> str:
        return released(self.high) or "newer than this one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    level: int
    """The cluster's level."""
    nodes: Sequence[NodeLevels]
    is_told: bool = True
    """Whether any node tells levels; brokers of other makes do not."""

    @property
    def highest(self) -> int:
        """The highest level that all nodes know."""
        return min(node.high for node in self.nodes)

    @property
    def newest(self) -> int:
        return max(node.high for node in self.nodes)

    @property
    def behind(self) -> list[NodeLevels]:
        """Nodes that run an older release than others."""
        return [node for node in self.nodes if node.high < self.newest]

    @property
    def next_step(self) -> str:
        if self.behind:
            noun = "node" if len(self.behind) == 1 else "nodes"
            names = ", ".join(str(node.node_id) for node in self.behind)
            return f"{noun} {names} can be upgraded, or the others taken back"
        if self.newest > self.level:
            return "all nodes can do more, `chronik upgrade finalize` raises it"
        return "there is nothing to finalize"


def released(level: int) -> str | None:
    """The first release that knows a level; None if this one does not know it."""
    return LEVELS[level][0] if level in LEVELS else None


async def look_at_levels(cluster: Cluster) -> Upgrade:
    from chronik.client.features import features_of

    nodes = []
    level, is_told = LEVEL_FIRST, False
    for node_id in await cluster.node_ids():
        features = await features_of(cluster, node_id)
        nodes.append(NodeLevels(node_id, *features.supported.get(FEATURE, (LEVEL_FIRST, LEVEL_FIRST))))
        is_told = is_told or FEATURE in features.supported
        level = max(level, features.finalized.get(FEATURE, LEVEL_FIRST))
    return Upgrade(level=level, nodes=nodes, is_told=is_told)


def releases(upgrade: Upgrade) -> Finding:
    check = "releases"
    if not upgrade.is_told:
        return unknown(check, "the nodes do not tell at which levels they can work")
    if upgrade.behind:
        older = ", ".join(f"{one.node_id} ({one.release})" for one in upgrade.behind)
        return warning(
            check,
            f"an upgrade is under way, these nodes still run an older release: {older}",
            "Upgrade these nodes too, or take the others back (`chronik upgrade status`).",
        )
    if upgrade.newest > upgrade.level:
        return warning(
            check,
            f"all nodes know level {upgrade.newest}, the cluster is still at level {upgrade.level}",
            "Once you have seen the new release work, finish the upgrade: `chronik upgrade finalize`.",
        )
    return ok(check, f"all nodes work at level {upgrade.level}{_of_release(upgrade.level)}")


def _of_release(level: int) -> str:
    name = released(level)
    return "" if name is None else f" (release {name})"
