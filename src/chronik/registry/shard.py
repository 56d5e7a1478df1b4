"""`_schemas` in one leader epoch: the state, and writes in turn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Final

import msgspec

from chronik.client_state import Share
from chronik.coordinators.journal import Journal
from chronik.log_lines import RepeatingLine
from chronik.model import ErrorCode, RequestError
from chronik.records.batch import BatchHeader, Buffer
from chronik.records.reader import read_records
from chronik.registry.records import Record, decode, id_alone
from chronik.registry.state import RegistryState

__all__ = ["SchemaShard"]

log = logging.getLogger(__name__)
_skipped: Final = RepeatingLine(log, logging.ERROR, "_schemas: record %d is skipped: %s")

RECORDS_AT_ONCE: Final = 500


class SchemaShard:
    def __init__(self, journal: Journal, share: Share) -> None:
        self.journal = journal
        self.share = share
        self._held = share.hold()
        self._state = RegistryState()
        self._writing = asyncio.Lock()
        self._is_in_doubt = False
        """A write failed, or its caller left: only the log knows whether it counts."""

    # -- replay -----------------------------------------------------------------------------------

    def apply(self, header: BatchHeader, batch: Buffer) -> None:
        if not header.is_control:
            _apply_batch(self._state, batch)

    def opened(self) -> None:
        self._account()
        if self._state.version_count:
            log.info(
                "the schema registry has %d subjects, %d versions, last id %d",
                self._state.subject_count,
                self._state.version_count,
                self._state.last_id,
            )

    def close(self) -> None:
        self._held.release()

    def _account(self) -> None:
        self._held.add(self._state.held_bytes - self._held.bytes)

    # -- reading and writing ----------------------------------------------------------------------

    @property
    def state_now(self) -> RegistryState:
        """For figures: what was last known to be committed."""
        return self._state

    async def state(self) -> RegistryState:
        """What is committed. Nobody but this shard changes it."""
        if self._is_in_doubt:
            async with self._writing:
                await self._settle()
        return self._state

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[RegistryState]:
        """One writer at a time; the state does not change until it calls `write`."""
        async with self._writing:
            await self._settle()
            yield self._state

    async def write(self, records: Iterable[Record]) -> None:
        """Inside `writing`: append, wait until committed, apply. A batch is written as a whole."""
        left = list(records)
        try:
            while left:
                batch, left = left[:RECORDS_AT_ONCE], left[RECORDS_AT_ONCE:]
                await self.journal.write(batch)
                for key, value in batch:
                    if (found := decode(key, value)) is not None:
                        self._state.apply(found)
        except BaseException:
            self._is_in_doubt = True
            raise
        self._account()

    async def _settle(self) -> None:
        if not self._is_in_doubt:
            return
        state = RegistryState()

        def apply(header: BatchHeader, batch: Buffer) -> None:
            if not header.is_control:
                _apply_batch(state, batch)

        if not await self.journal.load(apply):
            raise RequestError(ErrorCode.not_coordinator)
        self._state, self._is_in_doubt = state, False
        self._account()


def _apply_batch(state: RegistryState, batch: Buffer) -> None:
    for record in read_records(batch):
        try:
            found = decode(record.key or b"", record.value)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            _skipped(None, record.offset, error)
            state.last_id = max(state.last_id, id_alone(record.value))
            continue
        if found is not None:
            state.apply(found)
