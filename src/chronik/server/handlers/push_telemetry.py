"""PushTelemetry: a client's metrics (KIP-714). The values of its last push are kept for those who look."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from chronik.model import ErrorCode, RequestError
from chronik.server.dispatch import Reply, RequestContext, handles, reply
from chronik.server.gate import NOTHING
from chronik.server.handlers.get_telemetry_subscriptions import telemetry_client
from chronik.server.throttling import charge_work
from chronik.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.push_telemetry.v0.request import PushTelemetryRequest


@handles(ApiKey.PUSH_TELEMETRY, versions=(0, 0), needs=NOTHING)
async def push_telemetry(request: PushTelemetryRequest, ctx: RequestContext) -> Reply:
    services, telemetry = ctx.services, ctx.services.telemetry
    connection, client, points = ctx.connection, telemetry_client(ctx), None
    try:
        telemetry.subscribe(services.state.client_metrics)
        telemetry.admit(
            request.client_instance_id,
            client,
            subscription_id=request.subscription_id,
            is_terminating=request.terminating,
            codec=request.compression_type,
            size=len(request.metrics),
            now_ms=services.now_ms(),
        )
        # After Kafka's own refusals, which are those that a client knows what to do about.
        connection.pushes_until_ms = telemetry.pace(
            connection.pushes_until_ms, request.client_instance_id, client, services.now_ms()
        )
        if request.metrics:
            metrics, worked = bytes(request.metrics), partial(charge_work, ctx)
            points = await telemetry.read(request.compression_type, metrics, worked)
    except RequestError as error:
        telemetry.pushes[error.code] += 1
        raise
    telemetry.pushes[ErrorCode.none] += 1
    telemetry.pushed_bytes += len(request.metrics)
    if request.metrics and request.client_instance_id is not None:
        telemetry.keep(
            request.client_instance_id,
            connection.principal,
            client,
            points,
            size_bytes=len(request.metrics),
            now_ms=services.now_ms(),
        )
    return reply(error_code=ErrorCode.none)
