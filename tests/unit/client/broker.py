"""A broker at the wire level: enough of Kafka, in memory, for the client's own tests.

`answers` overrides an API: a function from the decoded request to the response's fields, or an exception
instance HANG or DROP for a broker that does not answer or cuts the line.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from chronik.model import ErrorCode, TopicPartition
from chronik.records.batch import headers, read_header, stamp
from chronik.wire.api import ApiKey, parse_request_header
from chronik.wire.schema import decode_request, encode_response

HANG = object()
DROP = object()
Answer = Callable[[Any], Any]

_VERSIONS = {
    ApiKey.PRODUCE: (3, 12),
    ApiKey.FETCH: (4, 12),
    ApiKey.LIST_OFFSETS: (1, 8),
    ApiKey.METADATA: (0, 12),
    ApiKey.API_VERSIONS: (0, 3),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (0, 6),
}


class Broker:
    def __init__(self, node_id: int = 1, *, api_versions_max: int = 3) -> None:
        self.node_id = node_id
        self.port = 0
        self.peers: list[Broker] = [self]
        self.leaders: dict[TopicPartition, int] = {}
        self.logs: dict[TopicPartition, bytearray] = defaultdict(bytearray)
        self.log_start_offsets: dict[TopicPartition, int] = defaultdict(int)
        self.aborted: list[dict[str, int]] = []
        self.requests: list[tuple[ApiKey, Any]] = []
        self.answers: dict[ApiKey, list[Answer | object]] = defaultdict(list)
        self.connections = 0
        self._api_versions_max = api_versions_max
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._arrived = asyncio.Condition()

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add_topic(self, name: str, partitions: int = 1, leader_id: int | None = None) -> None:
        for partition in range(partitions):
            self.leaders[TopicPartition(name, partition)] = leader_id or self.node_id

    def append(self, tp: TopicPartition, batch: bytes | bytearray) -> int:
        log = self.logs[tp]
        base_offset = self.end_offset(tp)
        stamped = bytearray(batch)
        stamp(stamped, 0, base_offset, 0)
        log += stamped
        self.wake()
        return base_offset

    def end_offset(self, tp: TopicPartition) -> int:
        end = self.log_start_offsets[tp]
        for _, header in headers(self.logs[tp]):
            end = header.next_offset
        return end

    def count(self, api: ApiKey) -> int:
        return sum(key == api for key, _ in self.requests)

    def wake(self) -> None:
        async def notify() -> None:
            async with self._arrived:
                self._arrived.notify_all()

        self._waker = asyncio.get_running_loop().create_task(notify())

    async def until(self, fact: Callable[[], bool]) -> None:
        async with self._arrived:
            await self._arrived.wait_for(fact)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                answer = await self._answer(frame)
                if answer is DROP:
                    break
                if isinstance(answer, bytes):
                    writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, frame: bytes) -> bytes | object:
        header, offset = parse_request_header(frame)
        key, version = header.api_key, header.api_version
        if key == ApiKey.API_VERSIONS and version > self._api_versions_max:
            fields = {"error_code": ErrorCode.unsupported_version, "api_keys": []}
            return encode_response(key, 0, header.correlation_id, fields)
        request = decode_request(key, version, frame, offset)
        self.requests.append((key, request))
        self.wake()
        scripted = self.answers[key]
        handler = scripted.pop(0) if scripted else getattr(self, "on_" + key.name.lower())
        if handler is HANG or handler is DROP:
            return handler
        fields = handler(request)
        if asyncio.iscoroutine(fields):
            fields = await fields
        if fields is None:
            return HANG
        return encode_response(key, version, header.correlation_id, fields)

    def on_api_versions(self, _: Any) -> dict[str, Any]:
        keys = [{"api_key": k, "min_version": lo, "max_version": hi} for k, (lo, hi) in _VERSIONS.items()]
        return {"api_keys": keys}

    def on_metadata(self, request: Any) -> dict[str, Any]:
        known = {tp.topic for tp in self.leaders}
        names = sorted(known) if request.topics is None else [topic.name for topic in request.topics]
        if request.allow_auto_topic_creation:
            for name in set(names) - known:
                self.add_topic(name)
        return {
            "brokers": [{"node_id": b.node_id, "host": "127.0.0.1", "port": b.port} for b in self.peers],
            "cluster_id": "fake",
            "controller_id": self.peers[0].node_id,
            "topics": [self._topic(name) for name in names],
        }

    def _topic(self, name: str) -> dict[str, Any]:
        tps = [tp for tp in self.leaders if tp.topic == name]
        partitions = [
            {
                "partition_index": tp.partition,
                "leader_id": self.leaders[tp],
                "leader_epoch": 0,
                "replica_nodes": [self.leaders[tp]],
                "isr_nodes": [self.leaders[tp]],
            }
            for tp in tps
        ]
        code = ErrorCode.none if tps else ErrorCode.unknown_topic_or_partition
        return {"error_code": code, "name": name, "topic_id": uuid.UUID(int=7), "partitions": partitions}

    def on_produce(self, request: Any) -> dict[str, Any] | None:
        responses = []
        for topic in request.topic_data:
            partitions = []
            for partition in topic.partition_data:
                tp = TopicPartition(topic.name, partition.index)
                if self.leaders.get(tp) != self.node_id:
                    partitions.append({"index": tp.partition, "error_code": ErrorCode.not_leader_or_follower})
                    continue
                read_header(partition.records)
                base_offset = self.append(tp, bytes(partition.records))
                partitions.append({"index": tp.partition, "base_offset": base_offset})
            responses.append({"name": topic.name, "partition_responses": partitions})
        return None if request.acks == 0 else {"responses": responses}

    async def on_fetch(self, request: Any) -> dict[str, Any]:
        def ready() -> bool:
            return any(
                p["records"] or p["error_code"] for topic in self._fetch(request) for p in topic["partitions"]
            )

        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.until(ready), request.max_wait.total_seconds())
        return {"responses": self._fetch(request)}

    def _fetch(self, request: Any) -> list[dict[str, Any]]:
        return [
            {
                "topic": topic.topic,
                "partitions": [
                    self._fetch_partition(TopicPartition(topic.topic, p.partition), p.fetch_offset)
                    for p in topic.partitions
                ],
            }
            for topic in request.topics
        ]

    def _fetch_partition(self, tp: TopicPartition, offset: int) -> dict[str, Any]:
        code = ErrorCode.none
        data = b""
        end_offset = self.end_offset(tp)
        if self.leaders.get(tp) != self.node_id:
            code = ErrorCode.not_leader_or_follower
        elif not self.log_start_offsets[tp] <= offset <= end_offset:
            code = ErrorCode.offset_out_of_range
        else:
            for position, header in headers(self.logs[tp]):
                if header.next_offset > offset:
                    data = bytes(self.logs[tp][position : position + header.size_bytes])
                    break
        return {
            "partition_index": tp.partition,
            "error_code": code,
            "high_watermark": end_offset,
            "last_stable_offset": end_offset,
            "log_start_offset": self.log_start_offsets[tp],
            "aborted_transactions": self.aborted,
            "records": data,
        }

    def on_list_offsets(self, request: Any) -> dict[str, Any]:
        topics = []
        for topic in request.topics:
            partitions = []
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                offset = self.end_offset(tp) if partition.timestamp == -1 else self.log_start_offsets[tp]
                code = ErrorCode.none
                if self.leaders.get(tp) != self.node_id:
                    code = ErrorCode.not_leader_or_follower
                partitions.append({"partition_index": tp.partition, "offset": offset, "error_code": code})
            topics.append({"name": topic.name, "partitions": partitions})
        return {"topics": topics}

    def on_init_producer_id(self, _: Any) -> dict[str, Any]:
        return {"producer_id": 1000 + self.count(ApiKey.INIT_PRODUCER_ID), "producer_epoch": 0}

    def on_create_topics(self, request: Any) -> dict[str, Any]:
        results = []
        for topic in request.topics:
            code = ErrorCode.none
            if any(tp.topic == topic.name for tp in self.leaders):
                code = ErrorCode.topic_already_exists
            else:
                self.add_topic(topic.name, max(1, topic.num_partitions))
            results.append({"name": topic.name, "error_code": code, "num_partitions": topic.num_partitions})
        return {"topics": results}

    def on_delete_topics(self, request: Any) -> dict[str, Any]:
        results = []
        for topic in request.topics:
            gone = [tp for tp in self.leaders if tp.topic == topic.name]
            for tp in gone:
                del self.leaders[tp]
            code = ErrorCode.none if gone else ErrorCode.unknown_topic_or_partition
            results.append({"name": topic.name, "error_code": code})
        return {"responses": results}

    def on_describe_configs(self, request: Any) -> dict[str, Any]:
        configs = [
            {"name": "retention.ms", "value": "1000", "config_source": 1},
            {"name": "segment.bytes", "value": "5", "config_source": 5},
        ]
        return {
            "results": [
                {"resource_type": r.resource_type, "resource_name": r.resource_name, "configs": configs}
                for r in request.resources
            ]
        }
