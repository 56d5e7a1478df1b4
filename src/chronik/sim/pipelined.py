"""Transactions as Java's producer writes them: several produce requests of one transaction under way at once.

Each goes to some of the partitions that one node leads, without waiting for the answers before it, and the
node adds the partitions to the transaction itself (KIP-890, transactions of version 2). A node must append
them in the order in which they were sent: a batch that overtakes an earlier one of its partition leaves a gap
in the sequence, which the node then refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from chronik.check import Send, Txn
from chronik.client import Cluster
from chronik.client.apis import INIT_PRODUCER_ID, Api
from chronik.model import ChronikError, ErrorCode, NodeId, ProducerIdentity, RequestError, TopicPartition
from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.sim.workload import OPTIONS, Recorder, encode
from chronik.wire.api import ApiKey

PRODUCE: Final = Api(ApiKey.PRODUCE, 12, 12)
END_TXN: Final = Api(ApiKey.END_TXN, 5, 5)
REQUESTS_MAX: Final = 5


class _Request(NamedTuple):
    values: dict[TopicPartition, str]
    answer: asyncio.Task[Any]


async def transact_pipelined(recorder: Recorder, name: str, rng: random.Random, pause_s: float) -> None:
    """Transactions with pipelined requests; a new producer epoch after each failure."""
    while not recorder.stopping:
        with contextlib.suppress(ChronikError, TimeoutError):
            async with Cluster(recorder.bootstrap, OPTIONS) as cluster:
                await _Pipeline(recorder, name, rng, cluster).run(pause_s)
        await asyncio.sleep(0.1)


class _Pipeline:
    """One life of a transactional producer."""

    def __init__(self, recorder: Recorder, name: str, rng: random.Random, cluster: Cluster) -> None:
        self._recorder = recorder
        self._name = name
        self._id = f"id-{name}"
        self._rng = rng
        self._cluster = cluster
        self._identity = ProducerIdentity(-1, -1)
        self._sequences: dict[TopicPartition, int] = {}

    async def run(self, pause_s: float) -> None:
        self._go_on_as(await self._on_coordinator(INIT_PRODUCER_ID, transaction_timeout=5_000))
        while not self._recorder.stopping:
            await self._transaction()
            await asyncio.sleep(self._rng.random() * pause_s)

    def _go_on_as(self, answer: Any) -> None:
        self._identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        self._sequences.clear()

    async def _on_coordinator(self, api: Api, **fields: object) -> Any:
        async def attempt(node_id: NodeId) -> Any:
            answer = await self._cluster.send(node_id, api, {"transactional_id": self._id, **fields})
            if answer.error_code != ErrorCode.none:
                raise RequestError(answer.error_code)
            return answer

        return await self._cluster.on_coordinator("transaction", self._id, attempt)

    async def _transaction(self) -> None:
        recorder = self._recorder
        leaders = await self._cluster.leaders(recorder.tps)
        node_id = self._rng.choice(sorted(set(leaders.values())))
        tps = [tp for tp in recorder.tps if leaders[tp] == node_id]
        connection = await self._cluster.connection(node_id)
        start = recorder.loop.now
        txn = f"{self._name}-t{len(recorder.events)}"
        requests = []
        for number in range(self._rng.randint(2, REQUESTS_MAX)):
            # The first request goes to one partition and is waited for. Those that follow are sent at once:
            # some wait until another partition has joined the transaction, and a later one that is for the
            # first partition alone, and so need not wait, must not overtake them.
            chosen = self._rng.sample(tps, self._rng.randint(1, len(tps)) if number else 1)
            values = {tp: f"{self._name}.{txn}.{number}.{tp.partition}.{tp.topic}" for tp in chosen}
            sending = connection.request(PRODUCE, self._fields(values))
            requests.append(_Request(values, recorder.loop.create_task(sending)))
            if number == 0:
                await asyncio.wait({requests[0].answer})
        answers = await asyncio.gather(*(request.answer for request in requests), return_exceptions=True)
        codes = [_codes(answer) for answer in answers]
        self._judge(requests, codes)
        self._record_sends(requests, codes, start, txn)
        commit = self._rng.random() < 0.7 and all(code == 0 for one in codes for code in one.values())
        outcome = "info"
        try:
            ended = await self._on_coordinator(END_TXN, **self._identity._asdict(), committed=commit)
            self._go_on_as(ended)
            outcome = "ok"
        finally:
            event = Txn(
                process=self._name,
                start=start,
                end=recorder.loop.now,
                txn=txn,
                committed=commit,
                outcome=outcome,  # type: ignore[arg-type]
            )
            recorder.record(event, f"{'commit' if commit else 'abort'} {txn}: {outcome}")

    def _fields(self, values: dict[TopicPartition, str]) -> dict[str, object]:
        topics: dict[str, list[dict[str, object]]] = {}
        for tp, value in values.items():
            sequence = self._sequences.get(tp, 0)
            self._sequences[tp] = sequence + 1
            batch = build_batch(
                [Record(key=None, value=encode(value, 60), timestamp_ms=self._recorder.now_ms())],
                producer_id=self._identity.producer_id,
                producer_epoch=self._identity.producer_epoch,
                base_sequence=sequence,
                is_transactional=True,
            )
            topics.setdefault(tp.topic, []).append({"index": tp.partition, "records": batch})
        return {
            "transactional_id": self._id,
            "acks": -1,
            "timeout": OPTIONS.request_timeout_ms,
            "topic_data": [{"name": topic, "partition_data": data} for topic, data in topics.items()],
        }

    def _judge(self, requests: Sequence[_Request], codes: Sequence[dict[TopicPartition, int]]) -> None:
        """A gap in a sequence is the node's fault when every batch before it was acknowledged."""
        gaps: set[TopicPartition] = set()
        for request, answered in zip(requests, codes, strict=True):
            for tp in request.values:
                code = answered.get(tp)
                if code == ErrorCode.out_of_order_sequence_number and tp not in gaps:
                    self._recorder.violations.append(
                        f"{self._name}: a pipelined batch of {tp} was refused as out of order, "
                        "though all before it were acknowledged"
                    )
                if code != ErrorCode.none:
                    gaps.add(tp)

    def _record_sends(
        self,
        requests: Sequence[_Request],
        codes: Sequence[dict[TopicPartition, int]],
        start: float,
        txn: str,
    ) -> None:
        for request, answered in zip(requests, codes, strict=True):
            for tp, value in request.values.items():
                is_in = answered.get(tp) == ErrorCode.none
                self._recorder.sent(
                    Send(
                        process=self._name,
                        start=start,
                        end=self._recorder.loop.now,
                        topic=tp.topic,
                        partition=tp.partition,
                        value=value,
                        outcome="ok" if is_in else "info",
                        idempotent=True,
                        txn=txn,
                    )
                )


def _codes(answer: Any) -> dict[TopicPartition, int]:
    """The error code of each partition; none of a request that was not answered."""
    if isinstance(answer, BaseException):
        return {}
    return {
        TopicPartition(topic.name, partition.index): partition.error_code
        for topic in answer.responses
        for partition in topic.partition_responses
    }
