"""How a run follows its queries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from chronik.spark.pipeline.run import Run


class Query:
    """Ends between two questions."""

    def __init__(self, alive_for: int) -> None:
        self._alive_for = alive_for
        self.recentProgress: list[Any] = []
        self.lastProgress = None

    @property
    def isActive(self) -> bool:
        self._alive_for -= 1
        return self._alive_for >= 0

    def exception(self) -> None:
        return None


def test_the_last_state_is_how_the_query_ended() -> None:
    for alive_for in range(5):
        pipeline = SimpleNamespace(name="p", trigger="available-now", sinks={"s": None})
        loaded: Any = SimpleNamespace(pipeline=pipeline, document=SimpleNamespace(name="p.toml"))
        spark: Any = None
        run = Run(spark, loaded, print)
        query: Any = Query(alive_for)
        run.queries["s"] = query
        run.follow(lambda status: None)
        assert [each.state for each in run.status.queries] == ["done"]
