"""A small asyncio Kafka client: what the CLI, the pipeline, the query child and test workloads share.

Flow: `Cluster` keeps one `Connection` per node, negotiates versions and knows who leads what;
`Producer`, `Consumer` and the `Admin` family turn calls into requests and route, retry and
unpack them through it. Bytes in and out are `chronik.wire`'s, record batches are `chronik.records`'.

Invariants: every wait has a deadline or belongs to a caller who cancels it; retries happen in one place
(`Retry`) and never past the deadline; a failure says whether the request may have taken effect
(`Unanswered`) or certainly did not (`Unreachable`); a refusal (`RequestError`) had none, but for the few
codes with which a node says that it gave up waiting for others (`retry`). Time is `loop.time()` and sockets
are `loop.create_connection()`, so the client runs inside a loop with virtual time. No threads.

Not its job: assignment of partitions to members (the broker does it), schemas, serialization of keys
and values.
"""

from __future__ import annotations

from chronik.client.admin import Admin
from chronik.client.cluster import Cluster
from chronik.client.connection import Connection
from chronik.client.consumer import Consumer, ConsumerRecord, Fetched, FetchOptions
from chronik.client.group_consumer import GroupConsumer
from chronik.client.groups import Groups
from chronik.client.metadata import Metadata, PartitionInfo, TopicInfo
from chronik.client.options import BrokerAddress, ClientOptions, parse_bootstrap
from chronik.client.producer import Delivery, Producer, partition_for_key
from chronik.client.retry import Unanswered, Unreachable
from chronik.client.transactional import Transaction
from chronik.client.transactions import Transactions

__all__ = [
    "Admin",
    "BrokerAddress",
    "ClientOptions",
    "Cluster",
    "Connection",
    "Consumer",
    "ConsumerRecord",
    "Delivery",
    "FetchOptions",
    "Fetched",
    "GroupConsumer",
    "Groups",
    "Metadata",
    "PartitionInfo",
    "Producer",
    "TopicInfo",
    "Transaction",
    "Transactions",
    "Unanswered",
    "Unreachable",
    "parse_bootstrap",
    "partition_for_key",
]
