"""UpdateFeatures: raise the levels of features (KIP-584, KIP-778).

`chronik.version` is the cluster's level: it goes up when every node knows the new one, and never back. The
others have one level only.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, TypeAlias

from chronik.metadata.commands import SetLevel
from chronik.metadata.levels import FEATURE
from chronik.model import ErrorCode, RequestError
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import on_cluster
from chronik.server.services import FeatureRange, Services
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.update_features.v0.request import FeatureUpdateKey as FeatureUpdateV0
    from kio.schema.update_features.v0.request import UpdateFeaturesRequest as UpdateFeaturesRequestV0
    from kio.schema.update_features.v2.request import FeatureUpdateKey as FeatureUpdateV2
    from kio.schema.update_features.v2.request import UpdateFeaturesRequest as UpdateFeaturesRequestV2

    Update: TypeAlias = FeatureUpdateV0 | FeatureUpdateV2
    Request: TypeAlias = UpdateFeaturesRequestV0 | UpdateFeaturesRequestV2


class UpgradeType(enum.IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@handles(ApiKey.UPDATE_FEATURES, versions=(0, 2), decoded_as=(0, 2), needs=on_cluster(Operation.ALTER))
async def update_features(request: Request, ctx: RequestContext) -> Reply:
    # All updates are made, or none and one error is returned. Versions before 2 also list each feature.
    services = ctx.services
    level = services.state.level
    for update in request.feature_updates:
        await _check(update, services)
        if update.feature == FEATURE:
            level = update.max_version_level
    if level != services.state.level and not getattr(request, "validate_only", False):
        await services.metadata.submit(SetLevel(level=level), timeout_s=request.timeout.total_seconds())
    done = [{"feature": update.feature, "error_code": ErrorCode.none} for update in request.feature_updates]
    return reply(error_code=ErrorCode.none, results=done if ctx.api_version < 2 else [])


async def _check(update: Update, services: Services) -> None:
    """Raise RequestError with Kafka's words unless the feature can be at the level that is asked for."""
    name, level = update.feature, update.max_version_level
    known = services.features.get(name)
    problem = (
        f"Local controller {services.settings.node_id} does not support this feature."
        if known is None
        else _problem(name, level, _upgrade_type(update), known) or await _unready(name, level, services)
    )
    if problem is not None:
        raise RequestError(
            ErrorCode.invalid_update_version, f"Invalid update version {level} for feature {name}. {problem}"
        )


def _upgrade_type(update: Update) -> int:
    if hasattr(update, "upgrade_type"):
        return int(update.upgrade_type)
    return UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE


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
