"""Batch and stream writers: tasks write open transactions, the driver commits them together."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from chronik.client import Cluster
from chronik.model import ErrorCode, RequestError
from chronik.spark.exactly_once import Ledger, SinkDecision
from chronik.spark.options import OptionError, WriteOptions
from chronik.spark.planning import DataLoss, ask
from chronik.spark.producing import OpenTransaction, TaskProducer, end_transaction

_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"
_WRITABLE = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
_LOST = frozenset(
    {
        ErrorCode.invalid_producer_epoch,
        ErrorCode.producer_fenced,
        ErrorCode.invalid_txn_state,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.transactional_id_not_found,
    }
)


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    sink_id: str | None
    topics: tuple[str, ...]
    records: int
    transaction: OpenTransaction | None = None
    decided: bool = field(default=False)
    """The batch was decided in an earlier run; this task wrote nothing."""


def check_schema(schema: StructType, options: WriteOptions) -> None:
    names = schema.fieldNames()
    if "value" not in names:
        raise OptionError("there is no column value: select something as value")
    if "topic" not in names and options.topic is None:
        raise OptionError("where to? set the option topic, or give the rows a column topic")
    for each in schema.fields:
        kinds = _WRITABLE.get(each.name)
        if kinds is None:
            known = ", ".join(_WRITABLE)
            raise OptionError(f"column {each.name!r} cannot be written; there are {known}")
        if each.dataType.simpleString() not in kinds:
            raise OptionError(
                f"column {each.name} is of type {each.dataType.simpleString()}, not {' or '.join(kinds)}"
            )


def write_task(
    options: WriteOptions,
    batches: Iterator[pa.RecordBatch],
    *,
    sink_id: str,
    batch_id: int | None,
    slot: int,
) -> Written:
    """What a task does. Transactional ids are by slot, so that there are only ever as many as tasks."""

    async def work(cluster: Cluster) -> Written:
        transactional_id = f"chronik-{sink_id}-{slot}" if options.transactional else None
        if options.transactional and batch_id is not None and options.topic is not None:
            decision = await Ledger(cluster, sink_id, options.topic).last()
            if decision is not None and decision.batch_id >= batch_id:
                for _ in batches:  # Spark requires that all rows are consumed
                    pass
                return Written(sink_id, (options.topic,), 0, decided=True)
        producer = TaskProducer(cluster, options, transactional_id)
        transaction = await producer.write_all(batches)
        topics = (options.topic,) if options.topic is not None else ()
        return Written(sink_id, topics, producer.records, transaction)

    return ask(options.connect, work)


class _Ends:
    """Ends the transactions of a batch; shared by the two writers."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
        written = [message for message in messages if isinstance(message, Written)]
        transactions = tuple(each.transaction for each in written if each.transaction is not None)
        sink_id = next((each.sink_id for each in written if each.sink_id is not None), None)
        topic = self._options.topic

        async def work(cluster: Cluster) -> None:
            if batch_id is None or sink_id is None or topic is None:
                await _commit_all(cluster, transactions)
                return
            ledger = Ledger(cluster, sink_id, topic)
            if any(each.decided for each in written):
                decision = await ledger.last()
                if decision is not None and decision.batch_id == batch_id:
                    await _commit_all(cluster, decision.transactions)
                for each in transactions:
                    await end_transaction(cluster, each, commit=False)
                return
            await ledger.decide(SinkDecision(batch_id, transactions))
            await _commit_all(cluster, transactions)

        if written and self._options.transactional:
            ask(self._options.connect, work)

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        async def work(cluster: Cluster) -> None:
            for message in messages:
                if isinstance(message, Written) and message.transaction is not None:
                    try:
                        await end_transaction(cluster, message.transaction, commit=False)
                    except RequestError as error:
                        if error.code not in _LOST:
                            raise

        ask(self._options.connect, work)


async def _commit_all(cluster: Cluster, transactions: Sequence[OpenTransaction]) -> None:
    for each in transactions:
        try:
            await end_transaction(cluster, each, commit=True)
        except RequestError as error:
            if error.code in _LOST:
                raise DataLoss(
                    f"{error}: it was aborted before it could be committed, after transaction.timeout.ms "
                    "or by a second copy of its task"
                ) from error
            raise


class ChronikWriter(_Ends, DataSourceArrowWriter):
    """All rows of a job become visible when it ends well, or none.

    With the options sinkId and batchId, a job that is run again after a crash adds nothing twice.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.batch_id is not None and (options.sink_id is None or options.topic is None):
            raise OptionError("option batchId needs the options sinkId and topic")
        self._sink_id = options.sink_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        slot = context.partitionId() if context is not None else 0
        return write_task(
            self._options, iterator, sink_id=self._sink_id, batch_id=self._options.batch_id, slot=slot
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages, self._options.batch_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class ChronikStreamWriter(_Ends, DataSourceStreamArrowWriter):
    """Each micro-batch is written once, however often it is run; see `exactly_once`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.topic is None and options.transactional:
            raise OptionError("a stream is written exactly once only to one topic: set the option topic")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        batch_id = context.getLocalProperty(_BATCH_ID) if context is not None else None
        query_id = context.getLocalProperty(_QUERY_ID) if context is not None else None
        sink_id = self._options.sink_id or query_id
        if context is None or batch_id is None or sink_id is None:
            raise OptionError(
                "this Spark does not tell its tasks which batch they belong to: set transactional"
            )
        return write_task(
            self._options, iterator, sink_id=sink_id, batch_id=int(batch_id), slot=context.partitionId()
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages)
