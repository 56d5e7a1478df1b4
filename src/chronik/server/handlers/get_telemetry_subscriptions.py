"""GetTelemetrySubscriptions: which of its metrics a client is to push, and how often (KIP-714)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronik.model import ErrorCode
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import NOTHING
from chronik.server.telemetry import ACCEPTED, TELEMETRY_BYTES_MAX
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.get_telemetry_subscriptions.v0.request import GetTelemetrySubscriptionsRequest


def telemetry_client(ctx: RequestContext) -> dict[str, str]:
    """What a subscription can match on, besides the client instance id."""
    name, version = ctx.connection.software
    return {
        "client_id": ctx.client_id or "",
        "client_software_name": name,
        "client_software_version": version,
        "client_source_address": ctx.connection.peer_host,
        "client_source_port": str(ctx.connection.peer_port),
    }


@handles(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, versions=(0, 0), needs=NOTHING)
async def get_telemetry_subscriptions(
    request: GetTelemetrySubscriptionsRequest, ctx: RequestContext
) -> Reply:
    services = ctx.services
    services.telemetry.subscribe(services.state.client_metrics)
    instance = services.telemetry.ask(
        request.client_instance_id, telemetry_client(ctx), now_ms=services.now_ms()
    )
    return reply(
        error_code=ErrorCode.none,
        client_instance_id=instance.instance_id,
        subscription_id=instance.subscription_id,
        accepted_compression_types=list(ACCEPTED),
        push_interval=instance.wanted.interval_ms,
        telemetry_max_bytes=TELEMETRY_BYTES_MAX,
        delta_temporality=True,
        requested_metrics=list(instance.wanted.metrics),
    )
