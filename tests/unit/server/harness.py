"""A dispatcher over a real metadata store, with an instant log and partitions that are plain values."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from chronik.assembly import build_coordinators
from chronik.client_state import ClientState
from chronik.cluster.presence import Presence
from chronik.cluster.status import MemberStatus, RaftStatus
from chronik.config import Settings
from chronik.metadata import commands as c
from chronik.metadata.store import CommittedCommand, MetadataListener, MetadataStore
from chronik.model import ErrorCode, RequestError, TopicPartition, Unavailable
from chronik.replication.partition import AckCallback, Appended, Partition
from chronik.server.dispatch import Connection, Dispatcher, Handler
from chronik.server.handlers import all_handlers
from chronik.server.services import Services
from chronik.storage.epochs import EpochHistory
from chronik.wire.api import ApiKey, RequestHeader, parse_request_header
from chronik.wire.schema import decode_response, encode_request

CONNECTION = Connection(peer_host="10.0.0.9", listener_host="127.0.0.1", listener_port=9092)


async def answer(
    dispatcher: Dispatcher,
    header: RequestHeader,
    frame: bytes,
    offset: int,
    connection: Connection | None = None,
) -> bytes | None:
    """The answer to a request of a handler that is no hot one; a new connection if none is given."""
    connection = connection or replace(CONNECTION)
    return await dispatcher.read(header, frame, offset, connection, Answers()).answer(dispatcher)


class Answers:
    """A responder that remembers."""

    def __init__(self) -> None:
        self.frames: list[Any] = []
        self.closed = False

    def respond(self, buffers: Any) -> None:
        self.frames.append(buffers)

    def close(self) -> None:
        self.closed = True

    def worked(self, seconds: float) -> None:
        pass


class InstantLog:
    def __init__(self) -> None:
        self.index = 0
        self.listener: MetadataListener | None = None
        self.unavailable = False

    def subscribe(self, listener: MetadataListener) -> None:
        self.listener = listener

    async def append(self, data: bytes) -> int:
        if self.unavailable or self.listener is None:
            raise Unavailable("no controller")
        self.index += 1
        self.listener.on_committed([CommittedCommand(self.index, data)])
        return self.index


@dataclass
class FakePartition:
    tp: TopicPartition
    topic_id: UUID = field(default_factory=lambda: UUID(int=11))
    leader_epoch: int = 3
    high_watermark: int = 100
    last_stable_offset: int = 90
    log_start_offset: int = 10
    log_end_offset: int = 120
    leader_epoch_start_offset: int = 0
    remote: None = None
    is_tiered: bool = False
    size_bytes: int = 4096
    producers: None = None
    timestamps: list[tuple[int, int, int]] = field(default_factory=list)
    """(offset, timestamp, leader epoch)"""

    epochs: EpochHistory = field(default_factory=EpochHistory)

    followers: dict[int, object] = field(default_factory=dict)

    check_epoch = Partition.check_epoch

    @property
    def log(self) -> FakePartition:
        return self

    async def offset_for_timestamp(self, timestamp: int) -> tuple[int, int, int] | None:
        return next((found for found in self.timestamps if found[1] >= timestamp), None)

    async def offset_of_max_timestamp(self) -> tuple[int, int, int] | None:
        return max(self.timestamps, key=lambda found: found[1], default=None)

    def append_internal(self, batch: bytearray, now_ms: int) -> Appended:
        self.log_end_offset += 1
        return Appended(self.log_end_offset - 1, self.log_end_offset, -1)

    def when_acked(self, next_offset: int, acks: int, callback: AckCallback) -> None:
        callback(None)

    async def delete_records(self, offset: int, now_ms: int) -> int:
        self.log_start_offset = max(offset, self.log_start_offset)
        return self.log_start_offset


class FakeReplicas:
    may_lead = True

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, FakePartition] = {}

    def add(self, topic: str, partition: int = 0, **values: Any) -> FakePartition:
        tp = TopicPartition(topic, partition)
        self.partitions[tp] = made = FakePartition(tp=tp, **values)
        return made

    def get(self, tp: TopicPartition) -> FakePartition | None:
        return self.partitions.get(tp)

    def leader(self, tp: TopicPartition) -> FakePartition:
        if tp not in self.partitions:
            raise RequestError(ErrorCode.unknown_topic_or_partition)
        return self.partitions[tp]

    def all(self) -> Iterable[FakePartition]:
        return self.partitions.values()


class Harness:
    def __init__(self, brokers: int = 3, handlers: Iterable[Handler] | None = None, **settings: Any) -> None:
        self.log = InstantLog()
        self.store = MetadataStore(self.log, origin=1)
        self.replicas = FakeReplicas()
        ids = itertools.count(1000)
        given = Settings(data_dir=Path("/data"), **settings)
        coordinators = build_coordinators(
            given,
            self.store,
            self.replicas,
            ClientState(),
            now_ms=lambda: 1_000,
            new_uuid=lambda: UUID(int=next(ids)),
        )
        self.now = 100.0
        self.disconnected_since: dict[int, float] = {}
        self.presence = Presence(
            disconnected_since=self.disconnected_since.get,
            state=lambda: self.store.state,
            now=lambda: self.now,
        )
        self.store.bus.listen(self.presence.on_event)
        self.services = Services(
            settings=given,
            metadata=self.store,
            replicas=self.replicas,
            new_uuid=lambda: UUID(int=next(ids)),
            quorum=self._quorum,
            controller_id=lambda: 1,
            presence=self.presence,
            now_ms=lambda: 1_000,
            levels_of=self._levels_of,
            groups=coordinators.groups,
            transactions=coordinators.transactions,
            transaction_verifier=coordinators.transaction_verifier,
            schemas=coordinators.schemas,
        )
        self.dispatcher = Dispatcher(
            all_handlers() if handlers is None else handlers, self.services, strict=True
        )
        self.submit(c.InitCluster(cluster_id="test-cluster"))
        for broker_id in range(1, brokers + 1):
            self.submit(
                c.RegisterBroker(
                    broker_id=broker_id,
                    incarnation=UUID(int=broker_id),
                    endpoints={"kafka": c.Endpoint(host=f"host-{broker_id}", port=9092)},
                )
            )

    async def _levels_of(self, _node_id: int) -> tuple[int, int] | None:
        return None

    async def _quorum(self) -> RaftStatus:
        if self.log.unavailable:
            raise Unavailable("no controller")
        return RaftStatus(
            node_id=1,
            role="leader",
            term=7,
            leader_id=1,
            last_log_index=120,
            last_committed_index=110,
            last_applied_index=110,
            followers=(
                MemberStatus(node_id=2, match_index=120, lag_entries=0, last_contact_ms=5),
                MemberStatus(node_id=3, match_index=90, lag_entries=30, last_contact_ms=400),
                MemberStatus(node_id=4, match_index=10, lag_entries=110, is_voter=False),
            ),
        )

    def submit(self, command: c.Command) -> None:
        asyncio.run(self.store.submit(command))

    def topic(self, name: str = "orders", *assignments: tuple[int, ...], **configs: str) -> UUID:
        topic_id = self.services.new_uuid()
        self.submit(
            c.CreateTopic(
                name=name,
                topic_id=topic_id,
                assignments=assignments or ((1, 2, 3),),
                configs={key.replace("_", "."): value for key, value in configs.items()},
            )
        )
        return topic_id

    def call(self, api_key: ApiKey, version: int, **fields: Any) -> Any:
        """Send a request through bytes and back; the decoded response body."""
        response = self.frame(encode_request(api_key, version, 42, "test", fields))
        assert response is not None
        assert int.from_bytes(response[:4], "big") == len(response) - 4
        correlation_id, body = decode_response(api_key, version, response, 4)
        assert correlation_id == 42
        return body

    def frame(self, frame: bytes) -> bytes | None:
        header, offset = parse_request_header(frame, 4)
        return asyncio.run(answer(self.dispatcher, header, frame, offset))
