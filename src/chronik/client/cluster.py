"""The cluster as a client sees it: connections, versions, who leads what, whom to ask.

Knowledge goes stale, so every call names what it needs (a leader, a coordinator, the controller) and an
answer of the kind "I am not the one" throws the knowledge away before the next attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Literal, TypeVar

from chronik.client.apis import DESCRIBE_CLUSTER, FIND_COORDINATOR, METADATA, Api
from chronik.client.connection import Connection
from chronik.client.metadata import Metadata, NodeInfo, PartitionInfo, TopicInfo
from chronik.client.options import BrokerAddress, ClientOptions, parse_bootstrap
from chronik.client.retry import Retry, Unreachable
from chronik.model import NO_LEADER, ErrorCode, NodeId, RequestError, TopicPartition, Unavailable

__all__ = ["Cluster", "CoordinatorKind", "Metadata", "NodeInfo", "PartitionInfo", "TopicInfo"]

T = TypeVar("T")

CoordinatorKind = Literal["group", "transaction"]
_KEY_TYPE: Final[Mapping[str, int]] = {"group": 0, "transaction": 1}


class Cluster:
    def __init__(
        self, bootstrap: str | Sequence[BrokerAddress], options: ClientOptions | None = None
    ) -> None:
        self.options = options or ClientOptions()
        self.metadata = Metadata()
        self._bootstrap = parse_bootstrap(bootstrap) if isinstance(bootstrap, str) else tuple(bootstrap)
        self._loop = asyncio.get_running_loop()
        self._connections: dict[BrokerAddress, Connection] = {}
        self._opening: dict[BrokerAddress, asyncio.Lock] = {}
        self._coordinators: dict[tuple[CoordinatorKind, str], NodeId] = {}
        self._refreshed_at: dict[str | None, float] = {}
        """When each topic (None: the list of all) was last asked for."""
        self._refreshing = asyncio.Lock()
        self._refresh_count = 0
        self._refreshed_in: dict[str | None, int] = {}
        """The refresh that last had each topic, by its number: clocks may stand still between two."""
        self._closed = False

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._closed = True
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    async def probe(self) -> Metadata:
        """Look at the bootstrap nodes once, without retries: is anybody there?"""
        await self._refresh(())
        return self.metadata

    # knowledge

    async def topics(
        self, names: Iterable[str] | None = None, *, create: bool = False
    ) -> Mapping[str, TopicInfo]:
        """Fresh knowledge of these topics, or of all; absent ones carry their error code."""
        wanted = None if names is None else tuple(names)
        await self.retry().run(lambda: self._refresh(wanted, create=create))
        if wanted is None:
            return self.metadata.topics
        return {name: self.metadata.topics[name] for name in wanted if name in self.metadata.topics}

    async def partitions(self, topic: str, *, create: bool = False) -> Mapping[int, PartitionInfo]:
        """The partitions of a topic that exists, from the cache if that is young enough."""
        info = self._cached(topic)
        if info is None:
            info = await self.retry().run(lambda: self._existing_topic(topic, create))
        return info.partitions

    async def leader(self, tp: TopicPartition) -> NodeId:
        """The leader of a partition; raises a retriable error when there is none at the moment."""
        return (await self.leaders([tp]))[tp]

    async def leaders(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, NodeId]:
        leaders: dict[TopicPartition, NodeId] = {}
        for tp, leader in (await self.find_leaders(tps)).items():
            if isinstance(leader, RequestError):
                raise leader
            leaders[tp] = leader
        return leaders

    async def find_leaders(
        self, tps: Collection[TopicPartition]
    ) -> dict[TopicPartition, NodeId | RequestError]:
        """The leader of each partition, or why there is none; asks where the cache does not know."""
        unknown = {
            tp.topic: None
            for tp in tps
            if self._cached(tp.topic) is None or self.metadata.leader_of(tp) == NO_LEADER
        }
        if unknown:
            await self._refresh(unknown)
        return {tp: self._known_leader(tp) for tp in tps}

    async def coordinator(self, kind: CoordinatorKind, key: str) -> NodeId:
        cached = self._coordinators.get((kind, key))
        if cached is not None:
            return cached
        fields = {"key_type": _KEY_TYPE[kind], "coordinator_keys": [key]}
        response = await self.send_any(FIND_COORDINATOR, fields)
        found = response.coordinators[0]
        if found.error_code != ErrorCode.none:
            raise RequestError(found.error_code, found.error_message)
        if found.node_id not in self.metadata.nodes:
            await self._refresh(())
        self._coordinators[kind, key] = found.node_id
        return NodeId(found.node_id)

    def forget_leaders(self, topics: Iterable[str]) -> None:
        """The cached leaders of these topics proved wrong."""
        for topic in topics:
            self._refreshed_at.pop(topic, None)

    def forget_coordinator(self, kind: CoordinatorKind, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    def forget_controller(self) -> None:
        self.metadata = replace(self.metadata, controller_id=NO_LEADER)

    # requests

    def retry(self, deadline: float | None = None) -> Retry:
        return Retry(self.options, deadline)

    async def send(self, node_id: NodeId, api: Api, fields: Mapping[str, object]) -> Any:
        """One attempt on one node; Unavailable when it cannot be reached or does not answer."""
        return await (await self.connection(node_id)).request(api, fields)

    async def send_any(self, api: Api, fields: Mapping[str, object]) -> Any:
        """One attempt on whichever node can be reached."""
        return await (await self._any_connection()).request(api, fields)

    async def send_controller(self, api: Api, fields: Mapping[str, object]) -> Any:
        """One attempt on the controller, or on any node while it is not known (nodes forward)."""
        if self.metadata.controller_id not in self.metadata.nodes:
            await self._refresh(())
        if self.metadata.controller_id in self.metadata.nodes:
            try:
                return await self.send(self.metadata.controller_id, api, fields)
            except Unavailable:
                self.forget_controller()  # it may be gone for good: the next attempt asks who it is now
                raise
        return await self.send_any(api, fields)

    async def on_any(self, api: Api, fields: Mapping[str, object]) -> Any:
        return await self.retry().run(lambda: self.send_any(api, fields))

    async def on_coordinator(
        self, kind: CoordinatorKind, key: str, attempt: Callable[[NodeId], Awaitable[T]]
    ) -> T:
        """Run `attempt` against the coordinator until it succeeds; it raises RequestError for error codes."""

        async def once() -> T:
            node_id = await self.coordinator(kind, key)
            try:
                return await attempt(node_id)
            except (RequestError, Unavailable):
                self.forget_coordinator(kind, key)
                raise

        return await self.retry().run(once)

    async def connection(self, node_id: NodeId) -> Connection:
        node = self.metadata.nodes.get(node_id)
        if node is None:
            await self._refresh(())
            node = self.metadata.nodes.get(node_id)
        if node is None:
            raise RequestError(ErrorCode.broker_not_available, f"the cluster knows no node {node_id}")
        return await self._connect(node.address)

    async def node_ids(self) -> tuple[NodeId, ...]:
        """All nodes, for requests that every node answers for itself."""
        await self.retry().run(lambda: self._refresh(()))
        return tuple(sorted(self.metadata.nodes))

    async def describe(self) -> Any:
        return await self.on_any(DESCRIBE_CLUSTER, {})

    # inside

    def _cached(self, topic: str) -> TopicInfo | None:
        asked_at = self._refreshed_at.get(topic)
        info = self.metadata.topics.get(topic)
        if asked_at is None or info is None or info.error_code != ErrorCode.none:
            return None
        if (self._loop.time() - asked_at) * 1000 > self.options.metadata_age_ms_max:
            return None
        return info

    def _known_leader(self, tp: TopicPartition) -> NodeId | RequestError:
        leader_id = self.metadata.leader_of(tp)
        if leader_id != NO_LEADER:
            return leader_id
        info = self.metadata.topics.get(tp.topic)
        self.forget_leaders([tp.topic])
        if info is None or tp.partition not in info.partitions:
            code = ErrorCode.unknown_topic_or_partition
            if info is not None and info.error_code != ErrorCode.none:
                code = info.error_code
            return RequestError(code, f"{tp} does not exist")
        return RequestError(ErrorCode.leader_not_available, f"{tp} has no leader")

    async def _existing_topic(self, topic: str, create: bool) -> TopicInfo:
        await self._refresh([topic], create=create)
        info = self.metadata.topics.get(topic)
        if info is None or info.error_code != ErrorCode.none:
            code = ErrorCode.unknown_topic_or_partition if info is None else info.error_code
            raise RequestError(code, f"topic {topic!r}: {code.name.replace('_', ' ')}")
        return info

    async def _refresh(self, topics: Collection[str] | None, *, create: bool = False) -> None:
        """Ask for these topics (None: all, empty: only the nodes), unless somebody just did."""
        asked_in = self._refresh_count
        async with self._refreshing:
            keys: Collection[str | None] = (None,) if topics is None else topics
            if keys and not create and all(self._refreshed_in.get(key, 0) > asked_in for key in keys):
                return
            self._refresh_count += 1
            fields = {
                "topics": None if topics is None else [{"name": topic, "topic_id": None} for topic in topics],
                "allow_auto_topic_creation": create,
            }
            response = await self.send_any(METADATA, fields)
            self.metadata = self.metadata.merged(response, whole=topics is None)
            answered = {*keys, *(topic.name for topic in response.topics)}
            self._refreshed_at.update(dict.fromkeys(answered, self._loop.time()))
            self._refreshed_in.update(dict.fromkeys(answered, self._refresh_count))

    async def _any_connection(self) -> Connection:
        known = [node.address for node in self.metadata.nodes.values()]
        addresses = list(dict.fromkeys([*known, *self._bootstrap]))
        addresses.sort(key=lambda address: not self._is_connected(address))
        reasons = []
        for address in addresses:
            try:
                return await self._connect(address)
            except Unreachable as error:
                reasons.append(error.reason)
        raise Unreachable(", ".join(map(str, self._bootstrap)), reasons[0])

    def _is_connected(self, address: BrokerAddress) -> bool:
        connection = self._connections.get(address)
        return connection is not None and connection.is_open

    async def _connect(self, address: BrokerAddress) -> Connection:
        lock = self._opening.setdefault(address, asyncio.Lock())
        async with lock:
            connection = self._connections.get(address)
            if connection is not None and connection.is_open:
                return connection
            self._connections.pop(address, None)
            if self._closed:
                raise Unreachable(str(address), "the client is closed")
            connection = await Connection.open(address, self.options)
            if self._closed:
                connection.close()
                raise Unreachable(str(address), "the client is closed")
            self._connections[address] = connection
            return connection
