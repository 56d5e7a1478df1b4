"""The dashboard and the alert rules name only metrics that a node has, and the check can fail."""

from __future__ import annotations

import json
import re
from pathlib import Path

from chronik.metrics import METRICS
from tools.http_docs import unknown_metrics

ROOT = Path(__file__).parents[2]


def test_only_names_that_exist() -> None:
    assert list(unknown_metrics(ROOT)) == []


def test_a_name_that_does_not_exist_is_found(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "x.yml").write_text("expr: chronik_ready + chronik_made_up_total")
    assert list(unknown_metrics(tmp_path)) == ["deploy/x.yml: there is no metric chronik_made_up_total"]


def test_labels_in_expressions_exist() -> None:
    text = (ROOT / "deploy/grafana/chronik.json").read_text() + (
        ROOT / "deploy/prometheus/alerts.yml"
    ).read_text()
    known = {label for metric in METRICS.values() for label in metric.labels} | {"le", "instance", "job"}
    for names in re.findall(r"\bby \(([^)]*)\)", text):
        assert {name.strip() for name in names.split(",")} <= known


def test_every_part_of_the_system_is_on_the_dashboard() -> None:
    shown = set(re.findall(r"chronik_[a-z0-9_]+", (ROOT / "deploy/grafana/chronik.json").read_text()))
    missing = {name for name, metric in METRICS.items() if not shown & {name, *metric.samples()}}
    assert len(missing) < len(METRICS) / 2
    assert json.loads((ROOT / "deploy/grafana/chronik.json").read_text())["panels"]
