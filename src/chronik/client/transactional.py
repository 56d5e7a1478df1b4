"""A transaction of this client's own (KIP-98): records and offsets that become visible together or never.

For example:

    transaction = Transaction(cluster, "billing-1")
    async with Producer(cluster, transaction=transaction) as producer:
        await transaction.begin()
        await producer.send("out", b"...")
        await transaction.add_offsets("group", {tp: next_offset})
        await transaction.commit(producer)

Beginning under an id fences everybody who used it before. A commit waits for every record; when one of
them failed it refuses, and only `abort` leads on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from chronik.client.apis import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
    Api,
)
from chronik.client.cluster import Cluster
from chronik.client.offsets import commit_fields, raise_worst
from chronik.client.producer import Producer
from chronik.model import ErrorCode, NodeId, ProducerIdentity, RequestError, TopicPartition


class Transaction:
    def __init__(self, cluster: Cluster, transactional_id: str, *, timeout_ms: int = 60_000) -> None:
        self.transactional_id = transactional_id
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._identity: ProducerIdentity | None = None
        self._is_open = False
        self._partitions: set[TopicPartition] = set()
        self._has_offsets = False
        self._failure: Exception | None = None
        self._enlisting = asyncio.Lock()

    async def begin(self) -> None:
        """Open a transaction; nothing is sent before there is something to enlist."""
        if self._is_open:
            raise RequestError(ErrorCode.invalid_txn_state, "a transaction is open: commit or abort it first")
        if self._identity is None:
            self._identity = await self._init()
        self._is_open, self._has_offsets, self._partitions, self._failure = True, False, set(), None

    async def enlist(self, tp: TopicPartition) -> ProducerIdentity:
        async with self._enlisting:
            identity = self._opened()
            if self._failure is not None:
                raise RequestError(
                    ErrorCode.invalid_txn_state, f"the transaction failed, abort it: {self._failure}"
                )
            if tp not in self._partitions:
                await self._add_partition(identity, tp)
                self._partitions.add(tp)
            return identity

    def fail(self, error: Exception) -> None:
        self._failure = self._failure or error

    async def add_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int],
        *,
        member_id: str = "",
        member_epoch: int = -1,
    ) -> None:
        """Commit a group's offsets as a part of this transaction."""
        identity = self._opened()
        fields: dict[str, object] = {**self._fields(identity), "group_id": group_id}
        await self._on_coordinator(ADD_OFFSETS_TO_TXN, fields)
        self._has_offsets = True
        fields |= {
            "generation_id": member_epoch,
            "member_id": member_id,
            "topics": commit_fields(offsets),
        }

        async def attempt(node_id: NodeId) -> None:
            response = await self._cluster.send(node_id, TXN_OFFSET_COMMIT, fields)
            raise_worst(
                self._error(partition.error_code, f"{topic.name}-{partition.partition_index}")
                for topic in response.topics
                for partition in topic.partitions
                if partition.error_code != ErrorCode.none
            )

        await self._cluster.on_coordinator("group", group_id, attempt)

    async def commit(self, producer: Producer) -> None:
        """Wait for the producer's records, then make everything visible. Raises if one of them failed."""
        await producer.flush()
        if self._failure is not None:
            raise self._failure
        await self._end(commit=True)

    async def abort(self, producer: Producer) -> None:
        """Throw everything away. The next one has a new epoch, so nothing of this one can arrive late."""
        await producer.settle()
        await self._end(commit=False)
        self._identity = None

    async def _end(self, *, commit: bool) -> None:
        identity = self._opened()
        if self._partitions or self._has_offsets:
            await self._on_coordinator(END_TXN, {**self._fields(identity), "committed": commit})
        self._is_open = False

    async def _init(self) -> ProducerIdentity:
        async def attempt(node_id: NodeId) -> ProducerIdentity:
            fields = {"transactional_id": self.transactional_id, "transaction_timeout": self._timeout_ms}
            response = await self._cluster.send(node_id, INIT_PRODUCER_ID, fields)
            if response.error_code != ErrorCode.none:
                raise self._error(response.error_code)
            return ProducerIdentity(response.producer_id, response.producer_epoch)

        return await self._cluster.on_coordinator("transaction", self.transactional_id, attempt)

    async def _add_partition(self, identity: ProducerIdentity, tp: TopicPartition) -> None:
        topic = {"name": tp.topic, "partitions": [tp.partition]}
        names = ("transactional_id", "producer_id", "producer_epoch")
        given = self._fields(identity)
        fields = {f"v3_and_below_{name}": given[name] for name in names} | {"v3_and_below_topics": [topic]}

        async def attempt(node_id: NodeId) -> None:
            response = await self._cluster.send(node_id, ADD_PARTITIONS_TO_TXN, fields)
            for topic in response.results_by_topic_v3_and_below:
                for partition in topic.results_by_partition:
                    if partition.partition_error_code != ErrorCode.none:
                        raise self._error(partition.partition_error_code, str(tp))

        await self._cluster.on_coordinator("transaction", self.transactional_id, attempt)

    async def _on_coordinator(self, api: Api, fields: Mapping[str, object]) -> None:
        async def attempt(node_id: NodeId) -> None:
            response = await self._cluster.send(node_id, api, fields)
            if response.error_code != ErrorCode.none:
                raise self._error(response.error_code)

        await self._cluster.on_coordinator("transaction", self.transactional_id, attempt)

    def _opened(self) -> ProducerIdentity:
        if not self._is_open or self._identity is None:
            raise RequestError(ErrorCode.invalid_txn_state, "no transaction is open: begin one first")
        return self._identity

    def _fields(self, identity: ProducerIdentity) -> dict[str, object]:
        return {"transactional_id": self.transactional_id, **identity._asdict()}

    def _error(self, code: ErrorCode, what: str = "") -> RequestError:
        place = f", {what}" if what else ""
        return RequestError(
            code, f"transaction {self.transactional_id!r}{place}: {code.name.replace('_', ' ')}"
        )
