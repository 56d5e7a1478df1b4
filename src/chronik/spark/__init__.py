"""The pipeline on Spark: a data source that speaks Kafka's protocol, and the jobs built on it.

Flow: the driver asks the cluster which offsets there are and cuts them into ranges; each task fetches the
raw record batches of its range, a compiled scanner turns them into Arrow columns, Spark takes them from
there. Writes go the other way: Arrow columns become record batches, written in transactions that the
driver commits together.

Invariants: no Python object per record, in either direction; what travels to a task can be pickled and
opens its connections inside `read` or `write`; a job that is killed at any moment and started again
leaves every record once in its result.

Not its job: anything inside the broker. It knows the protocol, the record format and files.

Importing this package costs nothing heavy; `ChronikDataSource` loads pyspark when it is first named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chronik.spark.source import ChronikDataSource

__all__ = ["ChronikDataSource"]


def __getattr__(name: str) -> Any:
    if name == "ChronikDataSource":
        from chronik.spark.source import ChronikDataSource

        return ChronikDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
