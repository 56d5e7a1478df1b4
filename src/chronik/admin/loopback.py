"""A Kafka client of this very cluster, opened when first needed.

What it does goes the way of every client: to the leader, the coordinator, the controller, whichever node
that is. So an endpoint answers the same on every node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from chronik.client import ClientOptions, Cluster, Producer
from chronik.client.options import BrokerAddress

__all__ = ["Loopback"]


class Loopback:
    def __init__(self, host: str, port: int, options: Callable[[], ClientOptions]) -> None:
        """`options` says how this node's HTTP port speaks to brokers; asked when it first does."""
        self._options = options
        self._address = BrokerAddress(host, port)
        self._cluster: Cluster | None = None
        self._producer: Producer | None = None

    def cluster(self) -> Cluster:
        if self._cluster is None:
            options = replace(
                self._options(), client_id="chronik-http", deadline_ms=10_000, metadata_age_ms_max=2_000
            )
            self._cluster = Cluster([self._address], options)
        return self._cluster

    def producer(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(self.cluster(), create_topics=False)
        return self._producer

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.__aexit__(Exception, None, None)
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
