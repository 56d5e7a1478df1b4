"""The transactional ids whose state is in one partition of `__transaction_state`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from chronik.client_state import Share
from chronik.coordinators.journal import AppendResult, Journal
from chronik.log_lines import RepeatingLine
from chronik.model import ErrorCode, RequestError, invariant
from chronik.records.batch import BatchHeader, Buffer
from chronik.records.reader import read_records
from chronik.tasks import Tasks
from chronik.transactions.markers import Marker, MarkerWriter
from chronik.transactions.producer_ids import ProducerIds
from chronik.transactions.records import decode_key, decode_value, encode_key, encode_value
from chronik.transactions.transaction import PREPARED, TransactionMetadata, TxnRecord, TxnState

log = logging.getLogger(__name__)
_end_waits: Final = RepeatingLine(log, logging.WARNING, "the end of transaction %s is not written yet: %s")
_abort_waits: Final = RepeatingLine(log, logging.WARNING, "transaction %s cannot be aborted yet: %s")

RETRY_S = 0.5


class TxnShard:
    """State, replay, timers, and the tasks that finish prepared transactions."""

    def __init__(
        self,
        journal: Journal,
        markers: MarkerWriter,
        producer_ids: ProducerIds,
        now_ms: Callable[[], int],
        share: Share,
    ) -> None:
        self.journal = journal
        self._held = share.hold()
        self._sizes: dict[str, int] = {}
        self.transactions: dict[str, TransactionMetadata] = {}
        self._markers = markers
        self._producer_ids = producer_ids
        self._now_ms = now_ms
        self._ending: dict[str, asyncio.Task[None]] = {}
        """For each transactional id the task that finishes its prepared transaction."""
        self._tasks = Tasks(str(journal.partition.tp))
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    # -- replay -----------------------------------------------------------------------------------

    def apply(self, header: BatchHeader, batch: Buffer) -> None:
        if header.is_control:
            return
        for record in read_records(batch):
            try:
                transactional_id = decode_key(record.key or b"")
                if transactional_id is None:
                    continue
                if record.value is None:
                    self.transactions.pop(transactional_id, None)
                    continue
                value = decode_value(record.value)
            except ValueError as error:
                log.error("%s: record %d is skipped: %s", self.journal.partition.tp, record.offset, error)
                continue
            self.transactions[transactional_id] = TransactionMetadata(
                transactional_id, value, coordinator_epoch=self.journal.leader_epoch
            )

    def opened(self) -> None:
        for txn in self.transactions.values():
            self._settle(txn)
            self._account(txn)
        if self.transactions:
            log.info(
                "%s: coordinating %d transactional ids", self.journal.partition.tp, len(self.transactions)
            )

    def close(self) -> None:
        self._closed = True
        self._held.release()
        for timer in self._timers.values():
            timer.cancel()
        self._tasks.cancel()

    # -- finding ----------------------------------------------------------------------------------

    def needs_id(self, transactional_id: str) -> bool:
        """The next step may need a new producer id."""
        txn = self.transactions.get(transactional_id)
        return txn is None or txn.record.is_epoch_exhausted

    def find_or_add(
        self, transactional_id: str, new_producer_id: int | None, timeout_ms: int
    ) -> TransactionMetadata:
        txn = self.transactions.get(transactional_id)
        if txn is None:
            invariant(new_producer_id is not None, "a new transactional id needs a producer id")
            record = TxnRecord(producer_id=int(new_producer_id or 0), timeout_ms=timeout_ms)
            txn = TransactionMetadata(transactional_id, record, coordinator_epoch=self.journal.leader_epoch)
            self.transactions[transactional_id] = txn
            self._account(txn)
        return txn

    def _account(self, txn: TransactionMetadata) -> None:
        """Count anew what the transactional id takes."""
        size = txn.size_bytes()
        self._held.add(size - self._sizes.get(txn.transactional_id, 0))
        self._sizes[txn.transactional_id] = size

    # -- writing ----------------------------------------------------------------------------------

    async def write(self, txn: TransactionMetadata, record: TxnRecord) -> TxnRecord:
        """Append `record` and make it the current one. Completes even if the caller is cancelled."""
        txn.begin(record)
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def done(written: AppendResult) -> None:
            if written.error is ErrorCode.none:
                txn.done()
                self._settle(txn)
                self._account(txn)
            else:
                txn.failed()
            if not answer.done():
                answer.set_result(written.error)

        self.journal.append([(encode_key(txn.transactional_id), encode_value(record))], done)
        error = await answer
        if error is not ErrorCode.none:
            raise RequestError(error)
        return record

    def _settle(self, txn: TransactionMetadata) -> None:
        """A record became the current one: start its timer, or write the markers if it is prepared."""
        transactional_id = txn.transactional_id
        timer = self._timers.pop(transactional_id, None)
        if timer is not None:
            timer.cancel()
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        deadline_ms = txn.deadline_ms
        if deadline_ms is not None:
            delay_s = max(deadline_ms - self._now_ms(), 0) / 1000
            self._timers[transactional_id] = loop.call_later(delay_s + 0.001, self._on_deadline, txn)
        elif txn.record.state in PREPARED and transactional_id not in self._ending:
            self._start(txn)

    def _start(self, txn: TransactionMetadata) -> None:
        task = self._tasks.spawn(self._finish(txn), f"ending transaction {txn.transactional_id}")
        self._ending[txn.transactional_id] = task
        task.add_done_callback(lambda ended: self._ended(txn, ended))

    def _ended(self, txn: TransactionMetadata, task: asyncio.Task[None]) -> None:
        del self._ending[txn.transactional_id]
        is_done = not task.cancelled() and task.exception() is None
        if is_done and not self._closed and txn.record.state in PREPARED:
            self._start(txn)  # the next one was prepared before this task was quite over

    # -- ending -----------------------------------------------------------------------------------

    async def _finish(self, txn: TransactionMetadata) -> None:
        """Write the markers of a prepared transaction, then its outcome."""
        prepared = txn.record
        marker = Marker(
            producer_id=prepared.producer_id,
            producer_epoch=prepared.producer_epoch,
            coordinator_epoch=txn.coordinator_epoch,
            is_commit=prepared.state is TxnState.PREPARE_COMMIT,
            version=prepared.version,
        )
        await self._markers.write_all(marker, prepared.partitions)
        while self.journal.is_current and not self._closed:
            try:
                await self.write(txn, txn.complete(now_ms=self._now_ms()))
                return
            except RequestError as error:
                _end_waits(txn.transactional_id, txn.transactional_id, error)
                await asyncio.sleep(RETRY_S)

    async def wait_for_end(self, txn: TransactionMetadata, timeout_s: float) -> None:
        """Wait a little for the markers, if they are being written."""
        task = self._ending.get(txn.transactional_id)
        if task is not None:
            await asyncio.wait({task}, timeout=timeout_s)

    # -- time -------------------------------------------------------------------------------------

    def _on_deadline(self, txn: TransactionMetadata) -> None:
        self._timers.pop(txn.transactional_id, None)
        if not self._closed and self.transactions.get(txn.transactional_id) is txn:
            self._start_abort(txn)

    def _start_abort(self, txn: TransactionMetadata) -> None:
        self._tasks.spawn(self._abort(txn), f"aborting transaction {txn.transactional_id}")

    async def _abort(self, txn: TransactionMetadata) -> None:
        """The producer took too long: abort and fence it."""
        try:
            new_producer_id = await self._producer_ids.next() if txn.record.is_epoch_exhausted else None
            record = txn.time_out(now_ms=self._now_ms(), new_producer_id=new_producer_id)
            if record is not None:
                log.info("transaction %s timed out and is aborted", txn.transactional_id)
                await self.write(txn, record)
                return
        except Exception as error:
            _abort_waits(txn.transactional_id, txn.transactional_id, error)
        if not self._closed and txn.deadline_ms is not None:
            loop = asyncio.get_running_loop()
            self._timers[txn.transactional_id] = loop.call_later(RETRY_S, self._on_deadline, txn)

    def expire(self, expiration_ms: int) -> None:
        """Forget ids that were not used for long."""
        for transactional_id, txn in list(self.transactions.items()):
            if txn.is_expired(now_ms=self._now_ms(), expiration_ms=expiration_ms):
                self._forget(transactional_id, txn)

    def _forget(self, transactional_id: str, txn: TransactionMetadata) -> None:
        def done(written: AppendResult) -> None:
            if self.transactions.get(transactional_id) is not txn:
                return
            if written.error is ErrorCode.none:
                del self.transactions[transactional_id]
                self._held.add(-self._sizes.pop(transactional_id, 0))
            else:
                txn.failed()

        txn.pending = txn.record  # requests get a retriable error until the tombstone is durable
        self.journal.append([(encode_key(transactional_id), None)], done)
