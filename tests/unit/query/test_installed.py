"""A node without the extra `query`: it serves Kafka clients, and says what is missing and how to get it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from chronik.node import Node
from chronik.query.confinement import offered
from chronik.query.installed import NOT_INSTALLED, is_installed
from tests.unit.admin.support import Http, with_node


@pytest.fixture
def without_tantivy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes a module that is None for one that is not there."""
    monkeypatch.setitem(sys.modules, "tantivy", None)


def test_one_missing_module_is_enough(without_tantivy: None) -> None:
    assert not is_installed()


def test_every_question_is_answered_with_what_to_do(
    tmp_path: Path, without_tantivy: None, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(node: Node, http: Http) -> None:
        wanted = {"name": "orders", "config": {"searchable": True}}
        assert (await http.post("/admin/create-topic", wanted)).status == 200
        select = {"query": "SELECT 1"}
        refused = [
            await http.post("/_search", {}),
            await http.post("/orders/_search", {}),
            await http.get("/_cat/indices"),
            await http.post("/_sql", select),
            await http.post("/_sql/explain", select),
            await http.get("/_sql/tables"),
        ]
        for answer in refused:
            assert (answer.status, answer.json) == (
                501,
                {"code": "query_not_installed", "message": NOT_INSTALLED},
            )
        assert not (await http.get("/admin/status")).json["has_query"]
        metrics = (await http.get("/metrics")).body
        assert b'chronik_query_child_up{process="search"} 0.0' in metrics
        assert b"chronik_index_lag_records{" not in metrics, "nothing is going to be indexed"

    with caplog.at_level(logging.INFO, logger="chronik.query"):
        with_node(tmp_path, work)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("chronik.query")]
    assert said == [NOT_INSTALLED]


def test_a_node_that_has_it_says_so(tmp_path: Path) -> None:
    async def work(_: Node, http: Http) -> None:
        assert (await http.get("/admin/status")).json["has_query"]

    with_node(tmp_path, work)


def test_what_confines_queries_is_said_before_the_first_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was shown when a process had started, which may be months after the node."""

    async def work(_: Node, http: Http) -> None:
        shown = (await http.get("/admin/status")).json["query_processes"]
        assert {one["kind"] for one in shown} == {"search", "sql"}
        for one in shown:
            assert not one["is_up"]
            assert one["confinement"].keys() == offered().keys()
            assert one["confinement"] == offered()

    with caplog.at_level(logging.INFO, logger="chronik.query"):
        with_node(tmp_path, work)
    (said,) = [line for line in caplog.messages if "run confined" in line]
    assert all(f"{name}: {how}" in said for name, how in offered().items())
    assert "Landlock" in said
    assert "seccomp" in said
