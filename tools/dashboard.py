"""Completes the Grafana dashboard: every metric that no hand-made panel shows gets a plain one at its end.

Panels below the row "All other metrics" are made from the table of metrics by `check_docs.py --write`.
"""

from __future__ import annotations

import json
from typing import Any

from chronik.metrics import METRICS, Metric

ROW = "All other metrics"
_COLUMNS = 2
_WIDTH, _HEIGHT = 12, 8


def dashboard(text: str) -> str:
    """The dashboard with all metrics on it."""
    document = json.loads(text)
    panels: list[dict[str, Any]] = []
    for panel in document["panels"]:
        if panel.get("title") == ROW:
            break
        panels.append(panel)
    shown = json.dumps(panels)
    missing = [one for one in METRICS.values() if not any(f"{name}{{" in shown for name in _names(one))]
    top = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    number = max(panel["id"] for panel in panels)
    panels.append(
        {
            "id": number + 1,
            "type": "row",
            "title": ROW,
            "collapsed": False,
            "gridPos": {"h": 1, "w": 24, "x": 0, "y": top},
            "panels": [],
        }
    )
    for place, metric in enumerate(missing):
        line, column = divmod(place, _COLUMNS)
        position = {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": top + 1 + line * _HEIGHT}
        panels.append(_panel(panels[0], metric, number + 2 + place, position))
    document["panels"] = panels
    return json.dumps(document, indent=1) + "\n"


def _names(metric: Metric) -> set[str]:
    return {metric.name, *metric.samples()}


def _panel(model: dict[str, Any], metric: Metric, number: int, position: dict[str, int]) -> dict[str, Any]:
    name, labels = metric.name, ", ".join(("instance", *metric.labels))
    chosen = '{instance=~"$instance"}'
    if metric.kind == "histogram":
        inner = f"sum by ({labels}, le) (rate({name}_bucket{chosen}[$__rate_interval]))"
        expression = f"histogram_quantile(0.99, {inner})"
    elif metric.kind == "counter":
        expression = f"sum by ({labels}) (rate({name}{chosen}[$__rate_interval]))"
    else:
        expression = f"{name}{chosen}"
    legend = " ".join(f"{{{{{label}}}}}" for label in ("instance", *metric.labels))
    unit = "bytes" if "bytes" in name else "s" if "seconds" in name else "short"
    return {
        "id": number,
        "type": "timeseries",
        "title": name.removeprefix("chronik_").removesuffix("_total").replace("_", " "),
        "description": metric.doc,
        "datasource": model["datasource"],
        "gridPos": position,
        "fieldConfig": {
            "defaults": {"unit": unit, "custom": model["fieldConfig"]["defaults"]["custom"]},
            "overrides": [],
        },
        "options": model["options"],
        "targets": [{"refId": "A", "expr": expression, "legendFormat": legend}],
    }
