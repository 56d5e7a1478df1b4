"""What becomes of a query in the engine, with no cluster behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from chronik.client import ClientOptions, Cluster
from chronik.client.options import BrokerAddress
from chronik.query import run as running
from chronik.query.messages import QueryError
from chronik.query.sql import SqlEngine
from chronik.query.unreadable_records import Skipped
from tests.unit.query.test_statement import Limits


def no_cluster() -> Cluster:
    return Cluster([BrokerAddress("127.0.0.1", 1)], ClientOptions())


@pytest.fixture
def engine(tmp_path: Path) -> SqlEngine:
    return SqlEngine(tmp_path / "sql", no_cluster, Limits(), Skipped())


@pytest.mark.parametrize("where", ["single", "duckdb.connect"])
async def test_memory_that_runs_out_before_the_statement_runs_is_called_so(
    engine: SqlEngine, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Another query had all of it: the answer was an internal error with a traceback in the log."""

    def fail(*_: Any, **__: Any) -> Any:
        raise duckdb.OutOfMemoryException("Out of Memory Error: bad allocation")

    with monkeypatch.context() as patch:
        patch.setattr(f"{running.__name__}.{where}", fail)
        with pytest.raises(QueryError) as refused:
            await engine.explain({"query": "SELECT 1"}, 1)
    assert refused.value.code == "out_of_memory"
    assert "plan" in await engine.explain({"query": "SELECT 1"}, 1)
