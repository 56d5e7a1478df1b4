"""What Prometheus scrapes."""

from __future__ import annotations

from chronik.admin.endpoint import Content, HttpAccess, HttpCall, endpoint
from chronik.admin.scrape import Scrape
from chronik.security.acls import Operation
from chronik.server.gate import NOTHING

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@endpoint(
    "GET",
    "/metrics",
    needs=NOTHING,
    summary="Metrics for Prometheus",
    media_type="text/plain",
    always=True,
    access=HttpAccess.METRICS,
)
async def metrics(call: HttpCall) -> Content:
    """Every metric is described in docs/METRICS.md. Where a login is required, a scraper without one gets no
    metric that names a topic or a group."""
    named = call.context.guard.shows_names(is_anonymous=call.caller.is_anonymous)
    named = named and call.access.on_cluster(Operation.DESCRIBE)
    return Content(await Scrape(call.context, with_names=named).text(), MEDIA_TYPE)
