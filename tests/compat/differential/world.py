"""What the requests meet on either side: the same topics, records, groups and transactions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from uuid import UUID

from chronik.records.reader import Record
from chronik.records.writer import build_batch
from chronik.wire.api import ApiKey
from tests.wire import WireClient

TOPIC = "diff"
"""Two partitions; partition 0 has RECORDS records."""
COMPACTED = "diff-compacted"
TRANSACTED = "diff-transacted"
"""Three partitions, for transactions only: what stays open there keeps nobody else from reading."""
DATED, LIMITED, APPENDED = "diff-dated", "diff-limited", "diff-appended"
"""Records with strange timestamps: as they are (in partition 1, where the header claims more than is there),
within LIMIT_MS of now, and stamped by the broker.
"""
LIMIT_MS = 6 * 3_600_000
MISSING = "diff-missing"
GROUP = "diff-group"
"""Without members, with a committed offset."""
SUBSCRIPTION = "diff-telemetry"
RECORDS = 5
FIRST_TIMESTAMP_MS = 1_700_000_000_000
NO_TOPIC_ID = UUID(int=0xDEAD)


T = TypeVar("T")


def _new_topic(name: str, partitions: int, configs: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }


class World:
    """One side. `fresh` is a name that nothing had before, the same on both sides."""

    def __init__(self, client: WireClient) -> None:
        self.client = client
        self.fresh = ""
        self.version = 0
        self.topic_ids: dict[UUID, str] = {}
        self.versions: dict[ApiKey, tuple[int, int]] = {}
        self.made: dict[tuple[str, str], Any] = {}
        """What was made for the cases of an API and version, by its fresh name and a name of its own."""

    def learn_versions(self) -> None:
        known = {int(key): key for key in ApiKey}
        answer = self.client.ask(
            ApiKey.API_VERSIONS, 3, {"client_software_name": "wire", "client_software_version": "1"}
        )
        self.versions = {
            known[int(one.api_key)]: (int(one.min_version), int(one.max_version))
            for one in answer.api_keys
            if int(one.api_key) in known
        }

    def id_of(self, name: str) -> UUID:
        return next(topic_id for topic_id, known in self.topic_ids.items() if known == name)

    def begin(self, api_key: ApiKey, version: int) -> None:
        """A fresh name for the next request, the same for all of this version."""
        self.version = version
        self.fresh = "diff-" + hashlib.sha256(repr((api_key, version)).encode()).hexdigest()[:12]

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What `make` gives, made when the cases of this API and version first need it."""
        key = (self.fresh, name)
        if key not in self.made:
            self.made[key] = make()
        found: T = self.made[key]
        return found

    def set_up(self) -> None:
        self._subscribe()
        self.until(self._offers_telemetry)
        limits = {f"message.timestamp.{which}.max.ms": str(LIMIT_MS) for which in ("before", "after")}
        topics = [
            _new_topic(TOPIC, 2, {"retention.ms": "-1"}),
            _new_topic(COMPACTED, 1, {"cleanup.policy": "compact"}),
            # What is old or claims to be stays: otherwise retention would empty the topic during the test.
            _new_topic(TRANSACTED, 3, {"retention.ms": "-1"}),
            _new_topic(DATED, 2, {"retention.ms": "-1"}),
            _new_topic(LIMITED, 1, {"retention.ms": "-1", **limits}),
            _new_topic(APPENDED, 1, {"message.timestamp.type": "LogAppendTime"}),
        ]
        created = self.client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout": 30_000})
        for one in created.topics:
            assert one.error_code == 0, one
            self.topic_ids[one.topic_id] = one.name
        for one in topics:
            self.until(lambda name=one["name"]: self._metadata_has(name))
        self.until(lambda: self.produce_error() == 0)
        for key, kind in ((GROUP, 0), (self.transaction, 1)):
            self.until(lambda key=key, kind=kind: self._coordinator_error(key, kind) == 0)
        self.until(lambda: self._commit_error() == 0)
        self.until(lambda: self._producer_error() == 0)

    def _subscribe(self) -> None:
        """To metrics of clients: without a subscription the APIs for them may not be offered."""
        configs = {"metrics": "org.apache.kafka.producer.", "interval.ms": "60000"}
        resource = {
            "resource_type": 16,
            "resource_name": SUBSCRIPTION,
            "configs": [
                {"name": name, "config_operation": 0, "value": value} for name, value in configs.items()
            ],
        }
        answer = self.client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
        assert answer.responses[0].error_code == 0, answer

    def _offers_telemetry(self) -> bool:
        self.learn_versions()
        return ApiKey.PUSH_TELEMETRY in self.versions

    def subscription_of(self, instance_id: UUID) -> int:
        """The subscription that this client instance has; it may ask only once."""

        def ask() -> int:
            fields = {"client_instance_id": instance_id}
            return int(self.client.ask(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, fields).subscription_id)

        return self.once(f"subscription of {instance_id}", ask)

    transaction = "diff-transaction"

    def until(self, fact: Any) -> None:
        for _ in range(2_000):
            if fact():
                return
        raise AssertionError("the broker does not become ready")

    def _metadata_has(self, name: str) -> bool:
        answer = self.client.ask(ApiKey.METADATA, 9, {"topics": [{"name": name}]})
        return all(partition.leader_id == 1 for partition in answer.topics[0].partitions)

    def produce_error(self) -> int:
        answer = self.client.ask(ApiKey.PRODUCE, 9, produce(TOPIC, records(RECORDS)))
        return int(answer.responses[0].partition_responses[0].error_code)

    def _coordinator_error(self, key: str, kind: int) -> int:
        answer = self.client.ask(ApiKey.FIND_COORDINATOR, 4, {"key_type": kind, "coordinator_keys": [key]})
        return int(answer.coordinators[0].error_code)

    def _producer_error(self) -> int:
        fields = {"transactional_id": self.transaction, "transaction_timeout": 60_000}
        answer = self.client.ask(
            ApiKey.INIT_PRODUCER_ID, 4, {**fields, "producer_id": -1, "producer_epoch": -1}
        )
        return int(answer.error_code)

    def _commit_error(self) -> int:
        answer = self.client.ask(ApiKey.OFFSET_COMMIT, 8, commit(GROUP, TOPIC, 3))
        return int(answer.topics[0].partitions[0].error_code)


def records(count: int, *, keys: bool = True, **options: Any) -> bytes:
    made = [
        Record(
            key=b"key %d" % number if keys else None,
            value=b"value %d" % number,
            timestamp_ms=FIRST_TIMESTAMP_MS + number,
        )
        for number in range(count)
    ]
    return bytes(build_batch(made, **options))


def produce(
    topic: str, data: bytes | None, *, partition: int = 0, acks: int = -1, **more: Any
) -> dict[str, Any]:
    return {
        "acks": acks,
        "timeout": 10_000,
        "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": data}]}],
        **more,
    }


def commit(group: str, topic: str, offset: int, *, partition: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {"partition_index": partition, "committed_offset": offset, "committed_metadata": "note"}
                ],
            }
        ],
        **more,
    }
