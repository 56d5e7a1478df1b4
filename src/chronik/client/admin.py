"""Topics, configs and offsets, asked and changed. Groups are in `groups`, transactions in `transactions`."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from chronik.client.apis import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    Api,
)
from chronik.client.cluster import Cluster
from chronik.client.metadata import TopicInfo
from chronik.client.offsets import OffsetAt, by_topic, list_offsets, raise_worst
from chronik.model import WITHOUT_EFFECT, ErrorCode, NodeId, RequestError, TopicPartition, Unavailable

ResourceType = Literal["topic", "broker", "group"]
_RESOURCE_TYPE: Final[Mapping[str, int]] = {"topic": 2, "broker": 4, "group": 32}
_CONFIG_SOURCE: Final[Mapping[int, str]] = {
    1: "topic",
    2: "broker",
    3: "cluster",
    4: "static",
    5: "default",
    6: "logger",
    7: "client metrics",
    8: "group",
}
_SET: Final = 0
_DELETE: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    name: str
    partitions: int = -1
    """-1: the cluster's default."""
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    name: str
    topic_id: uuid.UUID | None
    partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    name: str
    value: str | None
    source: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None

    @property
    def has_effect(self) -> bool:
        """False if chronik knows the config and nothing reads it."""
        return not (self.documentation or "").startswith(WITHOUT_EFFECT)


class Admin:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list_topics(self, *, internal: bool = False) -> list[TopicInfo]:
        topics = await self._cluster.topics()
        return [topics[name] for name in sorted(topics) if internal or not topics[name].is_internal]

    async def describe_topics(self, names: Sequence[str]) -> list[TopicInfo]:
        """Each topic in turn; raises unknown_topic_or_partition for the first that does not exist."""
        found = await self._cluster.topics(names)
        for name in names:
            info = found.get(name)
            code = ErrorCode.unknown_topic_or_partition if info is None else info.error_code
            if code == ErrorCode.unknown_topic_or_partition:
                raise RequestError(code, f"topic {name!r} does not exist")
            if code not in (ErrorCode.none, ErrorCode.leader_not_available):
                raise RequestError(code, f"topic {name!r}: {code.name.replace('_', ' ')}")
        return [found[name] for name in names]

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[CreatedTopic | RequestError]:
        """One result per topic, in order. A retry after a lost answer may find its own topic."""
        fields = {
            "topics": [
                {
                    "name": topic.name,
                    "num_partitions": topic.partitions,
                    "replication_factor": topic.replication_factor,
                    "assignments": [],
                    "configs": [{"name": k, "value": v} for k, v in topic.configs.items()],
                }
                for topic in topics
            ],
            "timeout": self._cluster.options.request_timeout_ms,
            "validate_only": validate_only,
        }
        response = await self._on_controller(CREATE_TOPICS, fields, lambda r: r.topics)
        results = {result.name: result for result in response.topics}
        return [_created(topic, results.get(topic.name)) for topic in topics]

    async def delete_topics(self, names: Sequence[str]) -> list[RequestError | None]:
        """None per deleted topic, in order, or what went wrong."""
        fields = {
            "topics": [{"name": name, "topic_id": None} for name in names],
            "topic_names": list(names),
            "timeout": self._cluster.options.request_timeout_ms,
        }
        response = await self._on_controller(DELETE_TOPICS, fields, lambda r: r.responses)
        results = {result.name: result for result in response.responses}
        return [_error(results.get(name), f"topic {name!r}") for name in names]

    async def create_partitions(self, topic: str, count: int) -> None:
        fields = {
            "topics": [{"name": topic, "count": count, "assignments": None}],
            "timeout": self._cluster.options.request_timeout_ms,
            "validate_only": False,
        }
        response = await self._on_controller(CREATE_PARTITIONS, fields, lambda r: r.results)
        if error := _error(response.results[0], f"topic {topic!r}"):
            raise error

    async def offsets(
        self, at: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, OffsetAt]:
        return await list_offsets(self._cluster, at, read_committed=read_committed)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Drop the records below these offsets; returns where each log now begins."""
        low: dict[TopicPartition, int] = {}

        async def rest() -> None:
            todo = [tp for tp in before if tp not in low]
            by_leader: dict[NodeId, list[TopicPartition]] = {}
            for tp, leader_id in (await self._cluster.leaders(todo)).items():
                by_leader.setdefault(leader_id, []).append(tp)
            errors: list[Exception] = []
            for leader_id, tps in by_leader.items():
                errors += await self._delete_records(leader_id, tps, before, low)
            raise_worst(errors)

        await self._cluster.retry().run(rest)
        return low

    async def _delete_records(
        self,
        leader_id: NodeId,
        tps: Sequence[TopicPartition],
        before: Mapping[TopicPartition, int],
        low: dict[TopicPartition, int],
    ) -> list[Exception]:
        fields = {
            "topics": [
                {
                    "name": topic,
                    "partitions": [{"partition_index": tp.partition, "offset": before[tp]} for tp in group],
                }
                for topic, group in by_topic(tps).items()
            ],
            "timeout": self._cluster.options.request_timeout_ms,
        }
        errors: list[Exception] = []
        try:
            response = await self._cluster.send(leader_id, DELETE_RECORDS, fields)
        except (RequestError, Unavailable) as error:
            self._cluster.forget_leaders(tp.topic for tp in tps)
            return [error]
        for topic in response.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                if partition.error_code == ErrorCode.none:
                    low[tp] = partition.low_watermark
                else:
                    self._cluster.forget_leaders([tp.topic])
                    errors.append(RequestError(partition.error_code, f"{tp}: {partition.error_code.name}"))
        return errors

    async def describe_config(
        self, kind: ResourceType, name: str, keys: Iterable[str] | None = None
    ) -> list[ConfigEntry]:
        resource = {
            "resource_type": _RESOURCE_TYPE[kind],
            "resource_name": name,
            "configuration_keys": None if keys is None else list(keys),
        }
        fields = {"resources": [resource], "include_synonyms": False, "include_documentation": True}
        result = (await self._on_resource(kind, name, DESCRIBE_CONFIGS, fields)).results[0]
        if error := _error(result, _whose(kind, name)):
            raise error
        return sorted((_config_entry(entry) for entry in result.configs), key=lambda entry: entry.name)

    async def alter_config(
        self,
        kind: ResourceType,
        name: str,
        changes: Mapping[str, str | None],
        *,
        validate_only: bool = False,
    ) -> None:
        """Set these keys of a resource, all or none; None removes a key, so that its default holds again."""
        configs = [
            {"name": key, "config_operation": _DELETE if value is None else _SET, "value": value}
            for key, value in changes.items()
        ]
        resource = {"resource_type": _RESOURCE_TYPE[kind], "resource_name": name, "configs": configs}
        fields = {"resources": [resource], "validate_only": validate_only}
        response = await self._on_resource(kind, name, INCREMENTAL_ALTER_CONFIGS, fields)
        if error := _error(response.responses[0], _whose(kind, name)):
            raise error

    async def _on_resource(
        self, kind: ResourceType, name: str, api: Api, fields: Mapping[str, object]
    ) -> Any:
        """A broker's configs are asked from that broker, everything else from any."""
        if kind == "broker" and name:
            return await self._cluster.retry().run(lambda: self._cluster.send(int(name), api, fields))
        return await self._cluster.on_any(api, fields)

    async def _on_controller(self, api: Api, fields: Mapping[str, object], results: Any) -> Any:
        """Ask the controller; a node that is not it any more says so in every result."""

        async def attempt() -> Any:
            response = await self._cluster.send_controller(api, fields)
            if any(result.error_code == ErrorCode.not_controller for result in results(response)):
                self._cluster.forget_controller()
                raise RequestError(ErrorCode.not_controller)
            return response

        return await self._cluster.retry().run(attempt)


def _whose(kind: ResourceType, name: str) -> str:
    return f"{kind} {name!r}" if name else f"all {kind}s"


def _error(result: Any, what: str) -> RequestError | None:
    if result is None:
        return RequestError(ErrorCode.unknown_server_error, f"{what}: the node gave no result")
    if result.error_code == ErrorCode.none:
        return None
    message = getattr(result, "error_message", None) or result.error_code.name.replace("_", " ")
    return RequestError(result.error_code, f"{what}: {message}")


def _created(topic: NewTopic, result: Any) -> CreatedTopic | RequestError:
    if error := _error(result, f"topic {topic.name!r}"):
        return error
    return CreatedTopic(
        name=topic.name,
        topic_id=getattr(result, "topic_id", None),
        partitions=getattr(result, "num_partitions", topic.partitions),
        replication_factor=getattr(result, "replication_factor", topic.replication_factor),
    )


def _config_entry(entry: Any) -> ConfigEntry:
    source = _CONFIG_SOURCE.get(entry.config_source, "unknown")
    return ConfigEntry(
        name=entry.name,
        value=entry.value,
        source=source,
        is_default=source == "default",
        is_read_only=entry.read_only,
        is_sensitive=entry.is_sensitive,
        documentation=getattr(entry, "documentation", None),
    )
