"""ApiVersions: what this node offers. Every client's first request, sent before it knows any version."""

from __future__ import annotations

import re
from typing import Any, Final

from chronik.model import ErrorCode
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.wire.api import ApiKey

# KIP-511: letters, digits, dots and dashes, with a letter or digit at both ends.
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.\-]*[a-zA-Z0-9])?")


@handles(ApiKey.API_VERSIONS, versions=(0, 4))
async def api_versions(request: Any, ctx: RequestContext) -> Reply:
    if ctx.api_version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return reply(error_code=ErrorCode.invalid_request)
    features = ctx.services.features
    return reply(
        error_code=ErrorCode.none,
        api_keys=[
            {"api_key": key, "min_version": low, "max_version": high}
            for key, (low, high) in ctx.api_ranges.items()
        ],
        supported_features=[
            # Before version 4 a range that starts at 0 cannot be told (KIP-1022).
            {"name": name, "min_version": feature.low, "max_version": feature.high}
            for name, feature in features.items()
            if feature.low > 0 or ctx.api_version >= 4
        ],
        finalized_features_epoch=ctx.services.state.applied_index,
        finalized_features=[
            {"name": name, "min_version_level": feature.level, "max_version_level": feature.level}
            for name, feature in features.items()
            if feature.level > 0
        ],
    )
