"""What a partition asks of its remote log (KIP-405), and the answers of a node that has no object store."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Protocol

from chronik.metadata.commands import RemoteLog
from chronik.model import ErrorCode, RequestError
from chronik.storage.epochs import EpochHistory
from chronik.storage.reading import LogSlice, TimestampedOffset

if TYPE_CHECKING:
    from chronik.replication.partition import Partition

__all__ = ["NO_REMOTE_LOGS", "RemoteLogs", "log_start"]


def log_start(remote: RemoteLog | None, local_start: int) -> int:
    """Where a log starts that may go on in the object store."""
    if remote is None or not remote.start_offset < remote.end_offset or local_start > remote.end_offset:
        return local_start
    return remote.start_offset


class RemoteLogs(Protocol):
    """Errors are RequestError."""

    async def read(
        self,
        partition: Partition,
        offset: int,
        bytes_max: int,
        *,
        min_one_batch: bool,
        until: float | None,
        asker: Hashable,
    ) -> LogSlice:
        """Batches from `offset` on. Empty at `until`, by the loop's clock; they are fetched for the next read
        all the same. Empty at once if too much is read already, by all or by `asker`."""
        ...

    async def delete_before(self, partition: Partition, offset: int) -> None:
        """Leader: forget everything before `offset`, in the store and on the local disk."""

    async def epochs(self, partition: Partition) -> EpochHistory:
        """The leader epochs of the whole log, remote and local."""
        ...

    async def offset_for_timestamp(self, partition: Partition, timestamp_ms: int) -> TimestampedOffset | None:
        """The answer among the records that only the store has."""
        ...

    async def max_timestamp(self, partition: Partition) -> int:
        """The highest timestamp of the records that only the store has; -1 if none has one."""
        ...


class _NoRemoteLogs:
    def _refusal(self, partition: Partition) -> RequestError:
        return RequestError(
            ErrorCode.kafka_storage_error,
            f"records of {partition.tp} are in an object store, and node {partition.node_id} has none: set "
            "object_store as on the other nodes",
        )

    async def read(
        self,
        partition: Partition,
        offset: int,
        bytes_max: int,
        *,
        min_one_batch: bool,
        until: float | None,
        asker: Hashable,
    ) -> LogSlice:
        raise self._refusal(partition)

    async def delete_before(self, partition: Partition, offset: int) -> None:
        raise self._refusal(partition)

    async def epochs(self, partition: Partition) -> EpochHistory:
        raise self._refusal(partition)

    async def offset_for_timestamp(self, partition: Partition, timestamp_ms: int) -> TimestampedOffset | None:
        raise self._refusal(partition)

    async def max_timestamp(self, partition: Partition) -> int:
        raise self._refusal(partition)


NO_REMOTE_LOGS: RemoteLogs = _NoRemoteLogs()
