"""The Kafka APIs this client calls, each with the versions it speaks.

The upper ends stop where Kafka replaced topic names by topic ids (Produce 13, Fetch 13, OffsetCommit and
OffsetFetch 10): names are what users give us, and every broker still takes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chronik.model import ErrorCode, RequestError
from chronik.wire.api import ApiKey


@dataclass(frozen=True, slots=True)
class Api:
    key: ApiKey
    lowest: int
    highest: int

    def pick(self, offered: Mapping[int, tuple[int, int]], node: object) -> int:
        """The newest version both sides speak."""
        if self.key not in offered:
            raise RequestError(ErrorCode.unsupported_version, f"node {node} does not offer {self.key.name}")
        node_lowest, node_highest = offered[self.key]
        version = min(self.highest, node_highest)
        if version < max(self.lowest, node_lowest):
            raise RequestError(
                ErrorCode.unsupported_version,
                f"node {node} offers {self.key.name} in versions {node_lowest}-{node_highest}, "
                f"this client speaks {self.lowest}-{self.highest}",
            )
        return version


PRODUCE: Final = Api(ApiKey.PRODUCE, 3, 12)
PRODUCE_TRANSACTIONAL: Final = Api(ApiKey.PRODUCE, 3, 11)
"""From version 12 on a node adds partitions to the transaction by itself (KIP-890); this client still asks
for it."""
FETCH: Final = Api(ApiKey.FETCH, 4, 12)
LIST_OFFSETS: Final = Api(ApiKey.LIST_OFFSETS, 1, 8)
METADATA: Final = Api(ApiKey.METADATA, 4, 12)
OFFSET_COMMIT: Final = Api(ApiKey.OFFSET_COMMIT, 2, 9)
OFFSET_FETCH: Final = Api(ApiKey.OFFSET_FETCH, 8, 9)
FIND_COORDINATOR: Final = Api(ApiKey.FIND_COORDINATOR, 4, 6)
DESCRIBE_GROUPS: Final = Api(ApiKey.DESCRIBE_GROUPS, 0, 6)
LIST_GROUPS: Final = Api(ApiKey.LIST_GROUPS, 0, 5)
SASL_HANDSHAKE: Final = Api(ApiKey.SASL_HANDSHAKE, 1, 1)
SASL_AUTHENTICATE: Final = Api(ApiKey.SASL_AUTHENTICATE, 0, 2)
API_VERSIONS: Final = Api(ApiKey.API_VERSIONS, 0, 3)
CREATE_TOPICS: Final = Api(ApiKey.CREATE_TOPICS, 2, 7)
DELETE_TOPICS: Final = Api(ApiKey.DELETE_TOPICS, 1, 6)
DELETE_RECORDS: Final = Api(ApiKey.DELETE_RECORDS, 0, 2)
INIT_PRODUCER_ID: Final = Api(ApiKey.INIT_PRODUCER_ID, 0, 5)
ADD_PARTITIONS_TO_TXN: Final = Api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 3)
ADD_OFFSETS_TO_TXN: Final = Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 3)
END_TXN: Final = Api(ApiKey.END_TXN, 0, 4)
WRITE_TXN_MARKERS: Final = Api(ApiKey.WRITE_TXN_MARKERS, 1, 1)
TXN_OFFSET_COMMIT: Final = Api(ApiKey.TXN_OFFSET_COMMIT, 3, 4)
DESCRIBE_CONFIGS: Final = Api(ApiKey.DESCRIBE_CONFIGS, 1, 4)
CREATE_PARTITIONS: Final = Api(ApiKey.CREATE_PARTITIONS, 0, 3)
DELETE_GROUPS: Final = Api(ApiKey.DELETE_GROUPS, 0, 2)
INCREMENTAL_ALTER_CONFIGS: Final = Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1)
OFFSET_DELETE: Final = Api(ApiKey.OFFSET_DELETE, 0, 0)
DESCRIBE_CLUSTER: Final = Api(ApiKey.DESCRIBE_CLUSTER, 0, 1)
DESCRIBE_PRODUCERS: Final = Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0)
DESCRIBE_TRANSACTIONS: Final = Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0)
LIST_TRANSACTIONS: Final = Api(ApiKey.LIST_TRANSACTIONS, 0, 1)
ALTER_PARTITION_REASSIGNMENTS: Final = Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1)
LIST_PARTITION_REASSIGNMENTS: Final = Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0)
UPDATE_FEATURES: Final = Api(ApiKey.UPDATE_FEATURES, 1, 2)
CONSUMER_GROUP_HEARTBEAT: Final = Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1)
CONSUMER_GROUP_DESCRIBE: Final = Api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1)
SHARE_GROUP_DESCRIBE: Final = Api(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1)
STREAMS_GROUP_DESCRIBE: Final = Api(ApiKey.STREAMS_GROUP_DESCRIBE, 0, 0)
DESCRIBE_SHARE_GROUP_OFFSETS: Final = Api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 0)
