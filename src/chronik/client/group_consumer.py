"""A member of a consumer group, by the protocol in which the broker assigns (KIP-848).

One heartbeat task tells the coordinator who we are and what we own; its answer says what we should own. A
partition that is taken away is given up only after its offset was committed and no fetch of it will be handed
out, so that two members never work on it at once. Offsets are committed for what the caller said is done,
never for what was only fetched.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from chronik.client.apis import CONSUMER_GROUP_HEARTBEAT
from chronik.client.cluster import Cluster
from chronik.client.consumer import Consumer
from chronik.client.fetching import Fetched, FetchOptions
from chronik.client.groups import Groups
from chronik.client.offsets import EARLIEST, LATEST, list_offsets
from chronik.model import ChronikError, ErrorCode, NodeId, RequestError, TopicPartition, Unavailable

Start = Literal["earliest", "latest"]

_JOIN: Final = 0
_LEAVE: Final = -1
_REJOIN: Final = frozenset({ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch})
_FETCH_MS: Final = 500
"""How long a fetch may keep us from noticing that the assignment changed."""


class GroupConsumer:
    def __init__(
        self,
        cluster: Cluster,
        group_id: str,
        topics: Sequence[str],
        options: FetchOptions | None = None,
        *,
        start: Start = "latest",
        rebalance_timeout_ms: int = 45_000,
        member_id: str | None = None,
    ) -> None:
        self.member_id = member_id or str(uuid.uuid4())
        self._cluster = cluster
        self._groups = Groups(cluster)
        self._group_id = group_id
        self._topics = tuple(topics)
        self._start = start
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._consumer = Consumer(cluster, options, on_out_of_range=start)
        self._loop = asyncio.get_running_loop()
        self._epoch = _JOIN
        self._owned: frozenset[TopicPartition] = frozenset()
        self._target: frozenset[TopicPartition] = frozenset()
        """What the coordinator wants us to own; `poll` moves `_owned` towards it."""
        self._done: dict[TopicPartition, int] = {}
        self._heart: asyncio.Task[None] | None = None
        self._failure: ChronikError | None = None
        self._beat_now = asyncio.Event()
        self._changed = asyncio.Event()

    async def __aenter__(self) -> GroupConsumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return self._owned

    def done(self, tp: TopicPartition, next_offset: int) -> None:
        """Everything of the partition below this offset is worked off; the next commit says so."""
        if tp in self._owned:
            self._done[tp] = next_offset

    async def poll(self, timeout_ms: int | None = None) -> list[Fetched]:
        """Wait up to `timeout_ms` for records of our partitions; takes part in rebalances meanwhile."""
        if self._heart is None:
            self._heart = self._loop.create_task(self._beat())
            self._heart.add_done_callback(lambda _: self._changed.set())
        deadline = None if timeout_ms is None else self._loop.time() + timeout_ms / 1000
        while True:
            if self._failure is not None:
                raise self._failure
            if self._heart.done() and not self._heart.cancelled():
                self._heart.result()  # a bug ended the heartbeats: whoever polls has to hear of it
            if self._owned != self._target:
                await self._reconcile()
            left_ms = _FETCH_MS if deadline is None else int((deadline - self._loop.time()) * 1000)
            if left_ms <= 0:
                return []
            self._changed.clear()
            if self._owned:
                fetched = await self._consumer.poll(min(left_ms, _FETCH_MS))
                fetched = [part for part in fetched if part.tp in self._target]
                if fetched:
                    return fetched
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if deadline is None else left_ms / 1000):
                        await self._changed.wait()

    async def commit(self) -> None:
        """Commit what was said to be done."""
        retry = self._cluster.retry()
        while self._done:
            offsets, epoch = dict(self._done), self._epoch
            try:
                await self._groups.commit(
                    self._group_id, offsets, member_id=self.member_id, member_epoch=epoch
                )
            except RequestError as error:
                if error.code != ErrorCode.stale_member_epoch:
                    raise
                # Our epoch moved on while the commit was under way: the next heartbeat tells it.
                self._beat_now.set()
                await retry.pause(Unavailable(str(error)))
                continue
            for tp, offset in offsets.items():
                if self._done.get(tp) == offset:
                    del self._done[tp]

    async def close(self) -> None:
        """Commit what is done and leave, so that others take over at once."""
        try:
            if self._failure is None and self._epoch > 0:
                await self.commit()
        finally:
            if self._heart is not None:
                self._heart.cancel()
                await asyncio.gather(self._heart, return_exceptions=True)
            if self._epoch > 0:
                self._epoch, self._owned = _LEAVE, frozenset()
                with contextlib.suppress(ChronikError):
                    await self._heartbeat()
            await self._consumer.close()

    async def _reconcile(self) -> None:
        """Give up what we should not own, then take what we should."""
        target = self._target
        if self._owned - target:
            with contextlib.suppress(
                RequestError
            ):  # fenced: others own it already, they start where we committed
                await self.commit()
        kept = {tp: self._consumer.position(tp) for tp in sorted(self._owned & target)}
        fresh = await self._positions(target - self._owned)
        if self._target is not target:
            return  # it changed meanwhile, or we were fenced: look again
        self._consumer.assign({**kept, **fresh})
        self._owned = target
        self._done = {tp: offset for tp, offset in self._done.items() if tp in target}
        self._beat_now.set()

    async def _positions(self, tps: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the group left off, or the start that was asked for where it never was."""
        if not tps:
            return {}
        committed = await self._groups.offsets(self._group_id)
        known = {
            tp: committed[tp].offset for tp in sorted(tps) if tp in committed and committed[tp].offset >= 0
        }
        at = EARLIEST if self._start == "earliest" else LATEST
        fresh = await list_offsets(self._cluster, dict.fromkeys(sorted(tps - known.keys()), at))
        return {**known, **{tp: found.offset for tp, found in fresh.items()}}

    async def _beat(self) -> None:
        while True:
            self._beat_now.clear()
            try:
                interval = await self._tell_and_learn()
            except ChronikError as error:
                self._failure = error
                self._changed.set()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._beat_now.wait()

    async def _tell_and_learn(self) -> float:
        """One heartbeat; returns the seconds until the next one is due."""
        try:
            response = await self._heartbeat()
        except RequestError as error:
            if error.code not in _REJOIN:
                raise
            self._epoch, self._owned, self._target, self._done = _JOIN, frozenset(), frozenset(), {}
            self._consumer.assign({})
            self._changed.set()
            return 0.0
        self._epoch = response.member_epoch
        if response.assignment is not None:
            target = await self._named(response.assignment.topic_partitions)
            if target != self._target:
                self._target = target
                self._changed.set()
        return float(response.heartbeat_interval.total_seconds())

    async def _heartbeat(self) -> Any:
        async def attempt(node_id: NodeId) -> Any:
            joining = self._epoch == _JOIN
            fields = {
                "group_id": self._group_id,
                "member_id": self.member_id,
                "member_epoch": self._epoch,
                "rebalance_timeout": self._rebalance_timeout_ms if joining else -1,
                "subscribed_topic_names": list(self._topics) if joining else None,
                "topic_partitions": None if self._epoch == _LEAVE else self._ids(),
            }
            response = await self._cluster.send(node_id, CONSUMER_GROUP_HEARTBEAT, fields)
            if response.error_code != ErrorCode.none:
                message = response.error_message or response.error_code.name.replace("_", " ")
                raise RequestError(response.error_code, f"group {self._group_id!r}: {message}")
            return response

        return await self._cluster.on_coordinator("group", self._group_id, attempt)

    def _ids(self) -> list[dict[str, object]]:
        """What we own, by topic id, as the protocol wants it."""
        by_topic: dict[str, list[int]] = {}
        for tp in sorted(self._owned):
            by_topic.setdefault(tp.topic, []).append(tp.partition)
        topics = self._cluster.metadata.topics
        return [
            {"topic_id": topics[topic].topic_id, "partitions": partitions}
            for topic, partitions in by_topic.items()
            if topic in topics
        ]

    async def _named(self, topic_partitions: Sequence[Any]) -> frozenset[TopicPartition]:
        """An assignment by topic id, by name; a topic that was deleted meanwhile falls out."""
        names = self._names()
        if any(topic.topic_id not in names for topic in topic_partitions):
            await self._cluster.topics(self._topics)
            names = self._names()
        return frozenset(
            TopicPartition(names[topic.topic_id], partition)
            for topic in topic_partitions
            if topic.topic_id in names
            for partition in topic.partitions
        )

    def _names(self) -> Mapping[uuid.UUID | None, str]:
        return {info.topic_id: name for name, info in self._cluster.metadata.topics.items()}
