"""The metadata log of a node that is a cluster by itself: an entry is committed once it is durable."""

from __future__ import annotations

import asyncio
from collections import deque

from chronik.metadata.store import Committed, MetadataListener
from chronik.model import StorageError, Unavailable
from chronik.records.batch import check_batch, headers
from chronik.records.reader import Record, read_records
from chronik.records.writer import build_batch
from chronik.storage import reading
from chronik.storage.log import PartitionLog


class LocalMetadataLog:
    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._listener: MetadataListener | None = None
        self._pending: deque[tuple[Committed, asyncio.Future[None]]] = deque()
        log.subscribe(self)

    async def replay(self, listener: MetadataListener) -> None:
        """Hand over everything that was committed before this start; appends go on from there."""
        self._listener = listener
        offset = self._log.log_start_offset
        while offset < self._log.log_end_offset:
            found = await reading.read(self._log, offset, 1 << 20, self._log.log_end_offset)
            for buffer in found.buffers:
                for position, header in headers(buffer):
                    for record in read_records(buffer, position):
                        listener.on_committed([Committed(record.offset + 1, record.value or b"")])
                    offset = header.next_offset

    @property
    def last_index(self) -> int:
        return self._log.log_end_offset

    async def append(self, data: bytes) -> int:
        batch = build_batch([Record(key=None, value=data, timestamp_ms=0)])
        try:
            offset = self._log.append(batch, check_batch(batch), 0, 0)
        except StorageError as error:
            raise Unavailable(str(error)) from error
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append((Committed(offset + 1, data), durable))
        await durable
        return offset + 1

    def on_durable(self, end_offset: int) -> None:
        while self._pending and self._pending[0][0].index <= end_offset:
            committed, durable = self._pending.popleft()
            if self._listener is not None:
                self._listener.on_committed([committed])
            if not durable.done():
                durable.set_result(None)

    def on_rejected(self, end_offset: int, error: StorageError) -> None:
        """The disk refused: whoever proposed hears it at once, and waits for no commit that never comes."""
        while self._pending and self._pending[-1][0].index > end_offset:
            _, durable = self._pending.pop()
            if not durable.done():
                durable.set_exception(Unavailable(str(error)))
