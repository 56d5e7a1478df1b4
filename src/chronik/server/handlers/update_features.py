"""UpdateFeatures: raise the levels of features (KIP-584, KIP-778).

`chronik.version` is the cluster's level: it goes up when every node knows the new one, and never back. The
others have one level only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from chronik.metadata.commands import SetLevel
from chronik.metadata.levels import FEATURE
from chronik.model import ErrorCode
from chronik.security.acls import Operation
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.feature_levels import UpgradeType, check_feature
from chronik.server.gate import on_cluster
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.update_features.v0.request import FeatureUpdateKey as FeatureUpdateV0
    from kio.schema.update_features.v0.request import UpdateFeaturesRequest as UpdateFeaturesRequestV0
    from kio.schema.update_features.v2.request import FeatureUpdateKey as FeatureUpdateV2
    from kio.schema.update_features.v2.request import UpdateFeaturesRequest as UpdateFeaturesRequestV2

    Update: TypeAlias = FeatureUpdateV0 | FeatureUpdateV2
    Request: TypeAlias = UpdateFeaturesRequestV0 | UpdateFeaturesRequestV2


@handles(ApiKey.UPDATE_FEATURES, versions=(0, 2), decoded_as=(0, 2), needs=on_cluster(Operation.ALTER))
async def update_features(request: Request, ctx: RequestContext) -> Reply:
    # All updates are made, or none and one error is returned. Versions before 2 also list each feature.
    services = ctx.services
    level = services.state.level
    for update in request.feature_updates:
        await check_feature(update.feature, update.max_version_level, _upgrade_type(update), services)
        if update.feature == FEATURE:
            level = update.max_version_level
    if level != services.state.level and not getattr(request, "validate_only", False):
        await services.metadata.submit(SetLevel(level=level), timeout_s=request.timeout.total_seconds())
    done = [{"feature": update.feature, "error_code": ErrorCode.none} for update in request.feature_updates]
    return reply(error_code=ErrorCode.none, results=done if ctx.api_version < 2 else [])


def _upgrade_type(update: Update) -> int:
    if hasattr(update, "upgrade_type"):
        return int(update.upgrade_type)
    return UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
