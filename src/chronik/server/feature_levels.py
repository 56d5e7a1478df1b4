"""When a feature may be at a level: for UpdateFeatures and for HTTP."""

from __future__ import annotations

import enum

from chronik.metadata.levels import FEATURE
from chronik.model import ErrorCode, RequestError
from chronik.server.services import FeatureRange, Services

__all__ = ["UpgradeType", "check_feature"]


class UpgradeType(enum.IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


async def check_feature(name: str, level: int, how: int, services: Services) -> None:
    """Raise RequestError with Kafka's words unless the feature can be at the level that is asked for."""
    known = services.features.get(name)
    problem = (
        f"Local controller {services.settings.node_id} does not support this feature."
        if known is None
        else _problem(name, level, how, known) or await _unready(name, level, services)
    )
    if problem is not None:
        raise RequestError(
            ErrorCode.invalid_update_version, f"Invalid update version {level} for feature {name}. {problem}"
        )


def _problem(name: str, level: int, how: int, known: FeatureRange) -> str | None:
    if how not in list(UpgradeType):
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    if level > known.level and how != UpgradeType.UPGRADE:
        return "Can't downgrade to a newer version."
    if level < known.level and how == UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
            "unsafe downgrade."
        )
    if level < known.level and name == FEATURE:
        return f"The cluster is at level {known.level}, which was finalized: it does not go back."
    if level != known.level and name != FEATURE:
        return f"It stays at {known.level}."
    if not known.low <= level <= known.high:
        return f"This node only supports versions {known.low}-{known.high}."
    return None


async def _unready(name: str, level: int, services: Services) -> str | None:
    """Why the level cannot be raised yet, or None. Nodes that are down count: they could not come back."""
    if name != FEATURE or level == services.state.level:
        return None
    for node_id in sorted(services.state.brokers):
        levels = await services.levels_of(node_id)
        if levels is None:
            return f"Broker {node_id} cannot be asked what it supports: start it, or remove it first."
        if not levels[0] <= level <= levels[1]:
            return f"Broker {node_id} only supports versions {levels[0]}-{levels[1]}."
    return None
