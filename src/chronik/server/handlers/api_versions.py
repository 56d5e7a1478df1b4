"""ApiVersions: what this node offers. Every client's first request, sent before it knows any version."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from chronik.model import ErrorCode
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import NOTHING
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.api_versions.v4.request import ApiVersionsRequest

# KIP-511: letters, digits, dots and dashes, with a letter or digit at both ends.
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.\-]*[a-zA-Z0-9])?")

_TELEMETRY: Final = (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY)
"""Offered only while there is a client metrics subscription. Without one, every client would ask in vain
every five minutes. (Kafka offers them only if a metrics receiver is configured.)"""


@handles(ApiKey.API_VERSIONS, versions=(0, 4), needs=NOTHING)
async def api_versions(request: ApiVersionsRequest, ctx: RequestContext) -> Reply:
    if ctx.api_version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return reply(error_code=ErrorCode.invalid_request)
    if ctx.api_version >= 3:
        ctx.connection.software = (request.client_software_name, request.client_software_version)
    features = ctx.services.features
    return reply(
        error_code=ErrorCode.none,
        api_keys=[
            {"api_key": key, "min_version": low, "max_version": high}
            for key, (low, high) in ctx.api_ranges.items()
            if key not in _TELEMETRY or ctx.services.state.client_metrics
        ],
        supported_features=[
            # Before version 4 the response must not contain a feature whose range starts at 0 (KIP-1022).
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
