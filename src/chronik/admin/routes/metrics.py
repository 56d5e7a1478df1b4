"""What Prometheus scrapes."""

from __future__ import annotations

from chronik.admin.endpoint import Call, Content, endpoint
from chronik.admin.scrape import Scrape

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@endpoint("GET", "/metrics", summary="Metrics for Prometheus", media_type="text/plain", always=True)
async def metrics(call: Call) -> Content:
    """Every metric is described in docs/METRICS.md."""
    return Content(await Scrape(call.context).text(), MEDIA_TYPE)
