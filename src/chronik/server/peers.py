"""Other brokers, asked over their Kafka port: markers to write, transactions to ask about."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from chronik.client.apis import Api
from chronik.client.connection import Connection
from chronik.client.options import BrokerAddress, ClientOptions
from chronik.metadata.store import MetadataStore
from chronik.model import (
    ChronikError,
    ErrorCode,
    NodeId,
    ProducerIdentity,
    RequestError,
    TopicPartition,
    Unavailable,
)
from chronik.transactions.markers import Marker, Results
from chronik.wire.api import ApiKey

_WRITE_TXN_MARKERS: Final = Api(ApiKey.WRITE_TXN_MARKERS, 1, 2)
_ADD_PARTITIONS_TO_TXN: Final = Api(ApiKey.ADD_PARTITIONS_TO_TXN, 4, 5)


class BrokerPeers:
    """One connection per broker, opened when first needed and again when it broke."""

    def __init__(
        self, metadata: MetadataStore, options: ClientOptions | None = None, endpoint: str = "kafka"
    ) -> None:
        """`options` is how this node's clients speak to other nodes, `endpoint` the listener they use."""
        self._metadata = metadata
        self._options = options or ClientOptions()
        self._endpoint = endpoint
        self._connections: dict[NodeId, Connection] = {}
        self._locks: dict[NodeId, asyncio.Lock] = {}

    async def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    async def write_markers(self, node_id: NodeId, marker: Marker, tps: Iterable[TopicPartition]) -> Results:
        topics = _by_topic(tps)
        answer = await self._request(
            node_id,
            _WRITE_TXN_MARKERS,
            {
                "markers": [
                    {
                        "producer_id": marker.producer_id,
                        "producer_epoch": marker.producer_epoch,
                        "transaction_result": marker.is_commit,
                        "coordinator_epoch": marker.coordinator_epoch,
                        "transaction_version": marker.version,
                        "topics": [
                            {"name": name, "partition_indexes": indexes} for name, indexes in topics.items()
                        ],
                    }
                ]
            },
        )
        return {
            TopicPartition(topic.name, one.partition_index): one.error_code
            for result in answer.markers
            for topic in result.topics
            for one in topic.partitions
        }

    async def add_partitions(
        self,
        node_id: NodeId,
        transactional_id: str,
        producer: ProducerIdentity,
        tps: Collection[TopicPartition],
        *,
        verify_only: bool,
    ) -> None:
        answer = await self._request(
            node_id,
            _ADD_PARTITIONS_TO_TXN,
            {
                "transactions": [
                    {
                        "transactional_id": transactional_id,
                        "producer_id": producer.producer_id,
                        "producer_epoch": producer.producer_epoch,
                        "verify_only": verify_only,
                        "topics": [
                            {"name": name, "partitions": indexes} for name, indexes in _by_topic(tps).items()
                        ],
                    }
                ]
            },
        )
        codes = [answer.error_code] + [
            one.partition_error_code
            for result in answer.results_by_transaction
            for topic in result.topic_results
            for one in topic.results_by_partition
        ]
        for code in codes:
            if code is not ErrorCode.none:
                raise RequestError(code)

    async def _request(self, node_id: NodeId, api: Api, fields: Mapping[str, object]) -> Any:
        try:
            connection = await self._connection(node_id)
            return await connection.request(api, fields)
        except RequestError:
            raise
        except (ChronikError, OSError) as error:
            raise Unavailable(f"broker {node_id} cannot be asked: {error}") from error

    async def _connection(self, node_id: NodeId) -> Connection:
        async with self._locks.setdefault(node_id, asyncio.Lock()):
            connection = self._connections.get(node_id)
            if connection is None or not connection.is_open:
                broker = self._metadata.state.brokers.get(node_id)
                kafka = None if broker is None else broker.endpoints.get(self._endpoint)
                if kafka is None:
                    raise Unavailable(f"broker {node_id} is not known")
                options = replace(
                    self._options,
                    client_id="chronik-broker",
                    request_timeout_ms=10_000,
                    connect_timeout_ms=3_000,
                )
                connection = await Connection.open(BrokerAddress(kafka.host, kafka.port), options)
                self._connections[node_id] = connection
            return connection


def _by_topic(tps: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for tp in tps:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return topics
