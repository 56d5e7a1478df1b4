"""What deploy/ names exists: metrics, settings, flags, values. The checks can fail (H03)."""

from __future__ import annotations

import json
import re
from pathlib import Path

from chronik import __version__
from chronik.config import table
from chronik.config_sources import load_settings
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


def test_every_metric_is_on_the_dashboard() -> None:
    shown = set(re.findall(r"chronik_[a-z0-9_]+", (ROOT / "deploy/grafana/chronik.json").read_text()))
    missing = {name for name, metric in METRICS.items() if not shown & {name, *metric.samples()}}
    assert missing == set()
    assert json.loads((ROOT / "deploy/grafana/chronik.json").read_text())["panels"]


def test_variables_flags_and_ports_of_the_deployments_are_settings() -> None:
    texts = {path: path.read_text() for path in (ROOT / "deploy").rglob("*") if path.is_file()}
    variables = {setting.env for setting in table().values()}
    named = {name for text in texts.values() for name in re.findall(r"\bCHRONIK_[A-Z_]+\b", text)}
    assert "CHRONIK_BIND" in named
    assert named - variables == set()
    flags = {flag for setting in table().values() if (flag := setting.flag)} | {"--config"}
    started = re.findall(r"chronik start ([^\"\n]*)|\[start, ([^\]]*)\]", "\n".join(texts.values()))
    given = {flag for line in started for flag in re.findall(r"--[a-z-]+", " ".join(line))}
    assert "--node-id" in given
    assert given - flags == set()
    exposed = re.search(r"^EXPOSE (.*)$", texts[ROOT / "deploy/container/Containerfile"], re.MULTILINE)
    ports = {str(table()[f"{name}_port"].default) for name in ("kafka", "http", "wal", "raft")}
    assert exposed is not None
    assert set(exposed[1].split()) == ports


def test_each_node_of_the_compose_file_finds_itself_in_the_cluster_file() -> None:
    compose = (ROOT / "deploy/container/compose.yml").read_text()
    for node_id in (1, 2, 3):
        assert f'--node-id, "{node_id}"' in compose
        resolved = load_settings({"node_id": str(node_id)}, {}, ROOT / "deploy/container/cluster.toml")
        settings = resolved.settings
        assert len(settings.peers) == 3
        assert str(settings.advertised(kafka_port=9092)) == f"chronik-{node_id}:9092"
        assert (
            f"chronik-{node_id}:{settings.http_port}"
            in (ROOT / "deploy/container/prometheus.yml").read_text()
        )


def test_other_images_of_the_compose_file_are_of_one_version() -> None:
    compose = (ROOT / "deploy/container/compose.yml").read_text()
    images = [name for name in re.findall(r"^ +image: (.*)$", compose, re.MULTILINE) if name != "chronik"]
    assert len(images) == 2
    assert [name for name in images if not re.search(r":v?\d+\.\d+\.\d+$", name)] == []


def test_the_chart_uses_only_values_that_it_has_and_is_of_this_version() -> None:
    chart = ROOT / "deploy/helm/chronik"
    values = re.findall(r"^(  )?(\w+):", (chart / "values.yaml").read_text(), re.MULTILINE)
    outer, known = "", set()
    for indent, name in values:
        outer = outer if indent else name
        known.add(f"{outer}.{name}" if indent else name)
    used = set()
    for path in chart.glob("templates/*"):
        text = path.read_text()
        used |= set(re.findall(r"\.Values\.([\w.]+)", text))
        opened = len(re.findall(r"\{\{-? (?:if|range|define|with) ", text))
        assert len(re.findall(r"\{\{-? end ", text)) == opened, path.name
    assert used
    assert used - known == set()
    assert f'appVersion: "{__version__}"' in (chart / "Chart.yaml").read_text()
